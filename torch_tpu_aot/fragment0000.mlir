module @fragment {
  func.func public @main(%arg0: tensor<2x128x4x64xbf16>, %arg1: tensor<i64>, %arg2: tensor<i64>, %arg3: tensor<128x32xcomplex<f32>>, %arg4: tensor<f32>, %arg5: tensor<f64>, %arg6: tensor<f64>) -> (tensor<2x128x4x64xbf16>, tensor<2x128x4x64xbf16>, tensor<2x128x4x64xbf16>, tensor<bf16>) {
    %0 = "stablehlo.constant"() {value = dense<0.000000e+00> : tensor<2x128x4x64xf32>} : () -> tensor<2x128x4x64xf32>
    %1 = "stablehlo.constant"() {value = dense<8> : tensor<2x128x4x64xui32>} : () -> tensor<2x128x4x64xui32>
    %2 = "stablehlo.constant"() {value = dense<-2.000000e+00> : tensor<2x128x4x64xf32>} : () -> tensor<2x128x4x64xf32>
    %3 = "stablehlo.constant"() {value = dense<1.000000e+00> : tensor<2x128x4x64xf32>} : () -> tensor<2x128x4x64xf32>
    %4 = "stablehlo.constant"() {value = dense<6.28318548> : tensor<2x128x4x64xf32>} : () -> tensor<2x128x4x64xf32>
    %5 = "stablehlo.constant"() {value = dense<5.96046448E-8> : tensor<2x128x4x64xf32>} : () -> tensor<2x128x4x64xf32>
    %6 = "stablehlo.iota"() {iota_dimension = 0 : i64} : () -> tensor<32768xi64>
    %7 = "stablehlo.broadcast_in_dim"(%arg2) {broadcast_dimensions = array<i64>} : (tensor<i64>) -> tensor<32768xi64>
    %8 = "stablehlo.add"(%6, %7) : (tensor<32768xi64>, tensor<32768xi64>) -> tensor<32768xi64>
    %9 = "stablehlo.convert"(%8) : (tensor<32768xi64>) -> tensor<32768xui64>
    %10 = "stablehlo.convert"(%arg1) : (tensor<i64>) -> tensor<ui64>
    %11 = "stablehlo.convert"(%9) : (tensor<32768xui64>) -> tensor<32768xui32>
    %12 = "stablehlo.constant"() {value = dense<32> : tensor<32768xui64>} : () -> tensor<32768xui64>
    %13 = "stablehlo.shift_right_logical"(%9, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %14 = "stablehlo.convert"(%13) : (tensor<32768xui64>) -> tensor<32768xui32>
    %15 = "stablehlo.constant"() {value = dense<0> : tensor<32768xui32>} : () -> tensor<32768xui32>
    %16 = "stablehlo.convert"(%10) : (tensor<ui64>) -> tensor<ui32>
    %17 = "stablehlo.constant"() {value = dense<32> : tensor<ui64>} : () -> tensor<ui64>
    %18 = "stablehlo.shift_right_logical"(%10, %17) : (tensor<ui64>, tensor<ui64>) -> tensor<ui64>
    %19 = "stablehlo.convert"(%18) : (tensor<ui64>) -> tensor<ui32>
    %20 = "stablehlo.constant"() {value = dense<3528531795> : tensor<32768xui64>} : () -> tensor<32768xui64>
    %21 = "stablehlo.convert"(%11) : (tensor<32768xui32>) -> tensor<32768xui64>
    %22 = "stablehlo.multiply"(%21, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %23 = "stablehlo.constant"() {value = dense<3449720151> : tensor<32768xui64>} : () -> tensor<32768xui64>
    %24 = "stablehlo.convert"(%15) : (tensor<32768xui32>) -> tensor<32768xui64>
    %25 = "stablehlo.multiply"(%24, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %26 = "stablehlo.shift_right_logical"(%25, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %27 = "stablehlo.convert"(%26) : (tensor<32768xui64>) -> tensor<32768xui32>
    %28 = "stablehlo.xor"(%27, %14) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %29 = "stablehlo.broadcast_in_dim"(%16) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %30 = "stablehlo.xor"(%28, %29) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %31 = "stablehlo.convert"(%25) : (tensor<32768xui64>) -> tensor<32768xui32>
    %32 = "stablehlo.shift_right_logical"(%22, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %33 = "stablehlo.convert"(%32) : (tensor<32768xui64>) -> tensor<32768xui32>
    %34 = "stablehlo.xor"(%33, %15) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %35 = "stablehlo.broadcast_in_dim"(%19) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %36 = "stablehlo.xor"(%34, %35) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %37 = "stablehlo.convert"(%22) : (tensor<32768xui64>) -> tensor<32768xui32>
    %38 = "stablehlo.constant"() {value = dense<2654435769> : tensor<ui32>} : () -> tensor<ui32>
    %39 = "stablehlo.add"(%16, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %40 = "stablehlo.constant"() {value = dense<3144134277> : tensor<ui32>} : () -> tensor<ui32>
    %41 = "stablehlo.add"(%19, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %42 = "stablehlo.convert"(%30) : (tensor<32768xui32>) -> tensor<32768xui64>
    %43 = "stablehlo.multiply"(%42, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %44 = "stablehlo.convert"(%36) : (tensor<32768xui32>) -> tensor<32768xui64>
    %45 = "stablehlo.multiply"(%44, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %46 = "stablehlo.shift_right_logical"(%45, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %47 = "stablehlo.convert"(%46) : (tensor<32768xui64>) -> tensor<32768xui32>
    %48 = "stablehlo.xor"(%47, %31) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %49 = "stablehlo.broadcast_in_dim"(%39) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %50 = "stablehlo.xor"(%48, %49) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %51 = "stablehlo.convert"(%45) : (tensor<32768xui64>) -> tensor<32768xui32>
    %52 = "stablehlo.shift_right_logical"(%43, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %53 = "stablehlo.convert"(%52) : (tensor<32768xui64>) -> tensor<32768xui32>
    %54 = "stablehlo.xor"(%53, %37) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %55 = "stablehlo.broadcast_in_dim"(%41) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %56 = "stablehlo.xor"(%54, %55) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %57 = "stablehlo.convert"(%43) : (tensor<32768xui64>) -> tensor<32768xui32>
    %58 = "stablehlo.add"(%39, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %59 = "stablehlo.add"(%41, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %60 = "stablehlo.convert"(%50) : (tensor<32768xui32>) -> tensor<32768xui64>
    %61 = "stablehlo.multiply"(%60, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %62 = "stablehlo.convert"(%56) : (tensor<32768xui32>) -> tensor<32768xui64>
    %63 = "stablehlo.multiply"(%62, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %64 = "stablehlo.shift_right_logical"(%63, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %65 = "stablehlo.convert"(%64) : (tensor<32768xui64>) -> tensor<32768xui32>
    %66 = "stablehlo.xor"(%65, %51) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %67 = "stablehlo.broadcast_in_dim"(%58) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %68 = "stablehlo.xor"(%66, %67) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %69 = "stablehlo.convert"(%63) : (tensor<32768xui64>) -> tensor<32768xui32>
    %70 = "stablehlo.shift_right_logical"(%61, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %71 = "stablehlo.convert"(%70) : (tensor<32768xui64>) -> tensor<32768xui32>
    %72 = "stablehlo.xor"(%71, %57) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %73 = "stablehlo.broadcast_in_dim"(%59) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %74 = "stablehlo.xor"(%72, %73) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %75 = "stablehlo.convert"(%61) : (tensor<32768xui64>) -> tensor<32768xui32>
    %76 = "stablehlo.add"(%58, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %77 = "stablehlo.add"(%59, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %78 = "stablehlo.convert"(%68) : (tensor<32768xui32>) -> tensor<32768xui64>
    %79 = "stablehlo.multiply"(%78, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %80 = "stablehlo.convert"(%74) : (tensor<32768xui32>) -> tensor<32768xui64>
    %81 = "stablehlo.multiply"(%80, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %82 = "stablehlo.shift_right_logical"(%81, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %83 = "stablehlo.convert"(%82) : (tensor<32768xui64>) -> tensor<32768xui32>
    %84 = "stablehlo.xor"(%83, %69) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %85 = "stablehlo.broadcast_in_dim"(%76) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %86 = "stablehlo.xor"(%84, %85) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %87 = "stablehlo.convert"(%81) : (tensor<32768xui64>) -> tensor<32768xui32>
    %88 = "stablehlo.shift_right_logical"(%79, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %89 = "stablehlo.convert"(%88) : (tensor<32768xui64>) -> tensor<32768xui32>
    %90 = "stablehlo.xor"(%89, %75) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %91 = "stablehlo.broadcast_in_dim"(%77) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %92 = "stablehlo.xor"(%90, %91) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %93 = "stablehlo.convert"(%79) : (tensor<32768xui64>) -> tensor<32768xui32>
    %94 = "stablehlo.add"(%76, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %95 = "stablehlo.add"(%77, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %96 = "stablehlo.convert"(%86) : (tensor<32768xui32>) -> tensor<32768xui64>
    %97 = "stablehlo.multiply"(%96, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %98 = "stablehlo.convert"(%92) : (tensor<32768xui32>) -> tensor<32768xui64>
    %99 = "stablehlo.multiply"(%98, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %100 = "stablehlo.shift_right_logical"(%99, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %101 = "stablehlo.convert"(%100) : (tensor<32768xui64>) -> tensor<32768xui32>
    %102 = "stablehlo.xor"(%101, %87) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %103 = "stablehlo.broadcast_in_dim"(%94) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %104 = "stablehlo.xor"(%102, %103) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %105 = "stablehlo.convert"(%99) : (tensor<32768xui64>) -> tensor<32768xui32>
    %106 = "stablehlo.shift_right_logical"(%97, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %107 = "stablehlo.convert"(%106) : (tensor<32768xui64>) -> tensor<32768xui32>
    %108 = "stablehlo.xor"(%107, %93) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %109 = "stablehlo.broadcast_in_dim"(%95) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %110 = "stablehlo.xor"(%108, %109) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %111 = "stablehlo.convert"(%97) : (tensor<32768xui64>) -> tensor<32768xui32>
    %112 = "stablehlo.add"(%94, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %113 = "stablehlo.add"(%95, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %114 = "stablehlo.convert"(%104) : (tensor<32768xui32>) -> tensor<32768xui64>
    %115 = "stablehlo.multiply"(%114, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %116 = "stablehlo.convert"(%110) : (tensor<32768xui32>) -> tensor<32768xui64>
    %117 = "stablehlo.multiply"(%116, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %118 = "stablehlo.shift_right_logical"(%117, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %119 = "stablehlo.convert"(%118) : (tensor<32768xui64>) -> tensor<32768xui32>
    %120 = "stablehlo.xor"(%119, %105) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %121 = "stablehlo.broadcast_in_dim"(%112) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %122 = "stablehlo.xor"(%120, %121) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %123 = "stablehlo.convert"(%117) : (tensor<32768xui64>) -> tensor<32768xui32>
    %124 = "stablehlo.shift_right_logical"(%115, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %125 = "stablehlo.convert"(%124) : (tensor<32768xui64>) -> tensor<32768xui32>
    %126 = "stablehlo.xor"(%125, %111) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %127 = "stablehlo.broadcast_in_dim"(%113) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %128 = "stablehlo.xor"(%126, %127) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %129 = "stablehlo.convert"(%115) : (tensor<32768xui64>) -> tensor<32768xui32>
    %130 = "stablehlo.add"(%112, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %131 = "stablehlo.add"(%113, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %132 = "stablehlo.convert"(%122) : (tensor<32768xui32>) -> tensor<32768xui64>
    %133 = "stablehlo.multiply"(%132, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %134 = "stablehlo.convert"(%128) : (tensor<32768xui32>) -> tensor<32768xui64>
    %135 = "stablehlo.multiply"(%134, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %136 = "stablehlo.shift_right_logical"(%135, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %137 = "stablehlo.convert"(%136) : (tensor<32768xui64>) -> tensor<32768xui32>
    %138 = "stablehlo.xor"(%137, %123) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %139 = "stablehlo.broadcast_in_dim"(%130) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %140 = "stablehlo.xor"(%138, %139) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %141 = "stablehlo.convert"(%135) : (tensor<32768xui64>) -> tensor<32768xui32>
    %142 = "stablehlo.shift_right_logical"(%133, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %143 = "stablehlo.convert"(%142) : (tensor<32768xui64>) -> tensor<32768xui32>
    %144 = "stablehlo.xor"(%143, %129) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %145 = "stablehlo.broadcast_in_dim"(%131) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %146 = "stablehlo.xor"(%144, %145) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %147 = "stablehlo.convert"(%133) : (tensor<32768xui64>) -> tensor<32768xui32>
    %148 = "stablehlo.add"(%130, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %149 = "stablehlo.add"(%131, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %150 = "stablehlo.convert"(%140) : (tensor<32768xui32>) -> tensor<32768xui64>
    %151 = "stablehlo.multiply"(%150, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %152 = "stablehlo.convert"(%146) : (tensor<32768xui32>) -> tensor<32768xui64>
    %153 = "stablehlo.multiply"(%152, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %154 = "stablehlo.shift_right_logical"(%153, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %155 = "stablehlo.convert"(%154) : (tensor<32768xui64>) -> tensor<32768xui32>
    %156 = "stablehlo.xor"(%155, %141) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %157 = "stablehlo.broadcast_in_dim"(%148) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %158 = "stablehlo.xor"(%156, %157) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %159 = "stablehlo.convert"(%153) : (tensor<32768xui64>) -> tensor<32768xui32>
    %160 = "stablehlo.shift_right_logical"(%151, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %161 = "stablehlo.convert"(%160) : (tensor<32768xui64>) -> tensor<32768xui32>
    %162 = "stablehlo.xor"(%161, %147) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %163 = "stablehlo.broadcast_in_dim"(%149) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %164 = "stablehlo.xor"(%162, %163) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %165 = "stablehlo.convert"(%151) : (tensor<32768xui64>) -> tensor<32768xui32>
    %166 = "stablehlo.add"(%148, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %167 = "stablehlo.add"(%149, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %168 = "stablehlo.convert"(%158) : (tensor<32768xui32>) -> tensor<32768xui64>
    %169 = "stablehlo.multiply"(%168, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %170 = "stablehlo.convert"(%164) : (tensor<32768xui32>) -> tensor<32768xui64>
    %171 = "stablehlo.multiply"(%170, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %172 = "stablehlo.shift_right_logical"(%171, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %173 = "stablehlo.convert"(%172) : (tensor<32768xui64>) -> tensor<32768xui32>
    %174 = "stablehlo.xor"(%173, %159) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %175 = "stablehlo.broadcast_in_dim"(%166) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %176 = "stablehlo.xor"(%174, %175) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %177 = "stablehlo.convert"(%171) : (tensor<32768xui64>) -> tensor<32768xui32>
    %178 = "stablehlo.shift_right_logical"(%169, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %179 = "stablehlo.convert"(%178) : (tensor<32768xui64>) -> tensor<32768xui32>
    %180 = "stablehlo.xor"(%179, %165) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %181 = "stablehlo.broadcast_in_dim"(%167) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %182 = "stablehlo.xor"(%180, %181) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %183 = "stablehlo.convert"(%169) : (tensor<32768xui64>) -> tensor<32768xui32>
    %184 = "stablehlo.add"(%166, %38) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %185 = "stablehlo.add"(%167, %40) : (tensor<ui32>, tensor<ui32>) -> tensor<ui32>
    %186 = "stablehlo.convert"(%176) : (tensor<32768xui32>) -> tensor<32768xui64>
    %187 = "stablehlo.multiply"(%186, %20) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %188 = "stablehlo.convert"(%182) : (tensor<32768xui32>) -> tensor<32768xui64>
    %189 = "stablehlo.multiply"(%188, %23) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %190 = "stablehlo.shift_right_logical"(%189, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %191 = "stablehlo.convert"(%190) : (tensor<32768xui64>) -> tensor<32768xui32>
    %192 = "stablehlo.xor"(%191, %177) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %193 = "stablehlo.broadcast_in_dim"(%184) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %194 = "stablehlo.xor"(%192, %193) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %195 = "stablehlo.convert"(%189) : (tensor<32768xui64>) -> tensor<32768xui32>
    %196 = "stablehlo.shift_right_logical"(%187, %12) : (tensor<32768xui64>, tensor<32768xui64>) -> tensor<32768xui64>
    %197 = "stablehlo.convert"(%196) : (tensor<32768xui64>) -> tensor<32768xui32>
    %198 = "stablehlo.xor"(%197, %183) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %199 = "stablehlo.broadcast_in_dim"(%185) {broadcast_dimensions = array<i64>} : (tensor<ui32>) -> tensor<32768xui32>
    %200 = "stablehlo.xor"(%198, %199) : (tensor<32768xui32>, tensor<32768xui32>) -> tensor<32768xui32>
    %201 = "stablehlo.convert"(%187) : (tensor<32768xui64>) -> tensor<32768xui32>
    %202 = "stablehlo.reshape"(%194) : (tensor<32768xui32>) -> tensor<32768x1xui32>
    %203 = "stablehlo.reshape"(%195) : (tensor<32768xui32>) -> tensor<32768x1xui32>
    %204 = "stablehlo.reshape"(%200) : (tensor<32768xui32>) -> tensor<32768x1xui32>
    %205 = "stablehlo.reshape"(%201) : (tensor<32768xui32>) -> tensor<32768x1xui32>
    %206 = "stablehlo.concatenate"(%202, %203, %204, %205) {dimension = 1 : i64} : (tensor<32768x1xui32>, tensor<32768x1xui32>, tensor<32768x1xui32>, tensor<32768x1xui32>) -> tensor<32768x4xui32>
    %207 = "stablehlo.reshape"(%206) : (tensor<32768x4xui32>) -> tensor<131072xui32>
    %208 = "stablehlo.bitcast_convert"(%207) : (tensor<131072xui32>) -> tensor<131072xi32>
    %209 = "stablehlo.reshape"(%208) : (tensor<131072xi32>) -> tensor<2x128x4x64x2xi32>
    %210 = "stablehlo.slice"(%209) {start_indices = array<i64: 0, 0, 0, 0, 0>, limit_indices = array<i64: 2, 128, 4, 64, 1>, strides = array<i64: 1, 1, 1, 1, 1>} : (tensor<2x128x4x64x2xi32>) -> tensor<2x128x4x64x1xi32>
    %211 = "stablehlo.reshape"(%210) : (tensor<2x128x4x64x1xi32>) -> tensor<2x128x4x64xi32>
    %212 = "stablehlo.bitcast_convert"(%211) : (tensor<2x128x4x64xi32>) -> tensor<2x128x4x64xui32>
    %213 = "stablehlo.shift_right_logical"(%212, %1) : (tensor<2x128x4x64xui32>, tensor<2x128x4x64xui32>) -> tensor<2x128x4x64xui32>
    %214 = "stablehlo.bitcast_convert"(%213) : (tensor<2x128x4x64xui32>) -> tensor<2x128x4x64xi32>
    %215 = "stablehlo.convert"(%214) : (tensor<2x128x4x64xi32>) -> tensor<2x128x4x64xf32>
    %216 = "stablehlo.multiply"(%215, %5) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %217 = "stablehlo.slice"(%209) {start_indices = array<i64: 0, 0, 0, 0, 1>, limit_indices = array<i64: 2, 128, 4, 64, 2>, strides = array<i64: 1, 1, 1, 1, 1>} : (tensor<2x128x4x64x2xi32>) -> tensor<2x128x4x64x1xi32>
    %218 = "stablehlo.reshape"(%217) : (tensor<2x128x4x64x1xi32>) -> tensor<2x128x4x64xi32>
    %219 = "stablehlo.bitcast_convert"(%218) : (tensor<2x128x4x64xi32>) -> tensor<2x128x4x64xui32>
    %220 = "stablehlo.shift_right_logical"(%219, %1) : (tensor<2x128x4x64xui32>, tensor<2x128x4x64xui32>) -> tensor<2x128x4x64xui32>
    %221 = "stablehlo.bitcast_convert"(%220) : (tensor<2x128x4x64xui32>) -> tensor<2x128x4x64xi32>
    %222 = "stablehlo.convert"(%221) : (tensor<2x128x4x64xi32>) -> tensor<2x128x4x64xf32>
    %223 = "stablehlo.multiply"(%222, %5) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %224 = "stablehlo.multiply"(%223, %4) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %225 = "stablehlo.cosine"(%224) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %226 = "stablehlo.subtract"(%3, %216) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %227 = "stablehlo.log"(%226) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %228 = "stablehlo.multiply"(%227, %2) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %229 = "stablehlo.sqrt"(%228) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %230 = "stablehlo.multiply"(%229, %225) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %231 = "stablehlo.add"(%230, %0) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %232 = "stablehlo.convert"(%231) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xbf16>
    %233 = "stablehlo.convert"(%232) : (tensor<2x128x4x64xbf16>) -> tensor<2x128x4x64xf32>
    %234 = "stablehlo.reshape"(%233) : (tensor<2x128x4x64xf32>) -> tensor<65536xf32>
    %235 = "stablehlo.reshape"(%234) : (tensor<65536xf32>) -> tensor<32768x2xf32>
    %236 = "stablehlo.slice"(%235) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 32768, 1>, strides = array<i64: 1, 1>} : (tensor<32768x2xf32>) -> tensor<32768x1xf32>
    %237 = "stablehlo.slice"(%235) {start_indices = array<i64: 0, 1>, limit_indices = array<i64: 32768, 2>, strides = array<i64: 1, 1>} : (tensor<32768x2xf32>) -> tensor<32768x1xf32>
    %238 = "stablehlo.reshape"(%236) : (tensor<32768x1xf32>) -> tensor<32768xf32>
    %239 = "stablehlo.reshape"(%237) : (tensor<32768x1xf32>) -> tensor<32768xf32>
    %240 = "stablehlo.complex"(%238, %239) : (tensor<32768xf32>, tensor<32768xf32>) -> tensor<32768xcomplex<f32>>
    %241 = "stablehlo.reshape"(%240) : (tensor<32768xcomplex<f32>>) -> tensor<2x128x4x32xcomplex<f32>>
    %242 = "stablehlo.reshape"(%arg3) : (tensor<128x32xcomplex<f32>>) -> tensor<1x128x1x32xcomplex<f32>>
    %243 = "stablehlo.real"(%242) : (tensor<1x128x1x32xcomplex<f32>>) -> tensor<1x128x1x32xf32>
    %244 = "stablehlo.real"(%241) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<2x128x4x32xf32>
    %245 = "stablehlo.broadcast_in_dim"(%243) {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x128x1x32xf32>) -> tensor<2x128x4x32xf32>
    %246 = "stablehlo.multiply"(%244, %245) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %247 = "stablehlo.imag"(%242) : (tensor<1x128x1x32xcomplex<f32>>) -> tensor<1x128x1x32xf32>
    %248 = "stablehlo.broadcast_in_dim"(%247) {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x128x1x32xf32>) -> tensor<2x128x4x32xf32>
    %249 = "stablehlo.multiply"(%244, %248) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %250 = "stablehlo.imag"(%241) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<2x128x4x32xf32>
    %251 = "stablehlo.multiply"(%250, %248) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %252 = "stablehlo.multiply"(%250, %245) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %253 = "stablehlo.subtract"(%246, %251) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %254 = "stablehlo.add"(%249, %252) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %255 = "stablehlo.complex"(%253, %254) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xcomplex<f32>>
    %256 = "stablehlo.reshape"(%255) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<32768xcomplex<f32>>
    %257 = "stablehlo.real"(%256) : (tensor<32768xcomplex<f32>>) -> tensor<32768xf32>
    %258 = "stablehlo.reshape"(%257) : (tensor<32768xf32>) -> tensor<32768x1xf32>
    %259 = "stablehlo.imag"(%256) : (tensor<32768xcomplex<f32>>) -> tensor<32768xf32>
    %260 = "stablehlo.reshape"(%259) : (tensor<32768xf32>) -> tensor<32768x1xf32>
    %261 = "stablehlo.concatenate"(%258, %260) {dimension = 1 : i64} : (tensor<32768x1xf32>, tensor<32768x1xf32>) -> tensor<32768x2xf32>
    %262 = "stablehlo.reshape"(%261) : (tensor<32768x2xf32>) -> tensor<65536xf32>
    %263 = "stablehlo.reshape"(%262) : (tensor<65536xf32>) -> tensor<2x128x4x64xf32>
    %264 = "stablehlo.convert"(%263) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xbf16>
    %265 = "stablehlo.convert"(%264) : (tensor<2x128x4x64xbf16>) -> tensor<2x128x4x64xf32>
    %266 = "stablehlo.convert"(%arg5) : (tensor<f64>) -> tensor<f32>
    %267 = "stablehlo.convert"(%arg6) : (tensor<f64>) -> tensor<f32>
    %268 = "stablehlo.broadcast_in_dim"(%267) {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<2x128x4x64xf32>
    %269 = "stablehlo.multiply"(%265, %268) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %270 = "stablehlo.broadcast_in_dim"(%266) {broadcast_dimensions = array<i64>} : (tensor<f32>) -> tensor<2x128x4x64xf32>
    %271 = "stablehlo.multiply"(%270, %269) : (tensor<2x128x4x64xf32>, tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xf32>
    %272 = "stablehlo.convert"(%271) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xbf16>
    %273 = "stablehlo.convert"(%272) : (tensor<2x128x4x64xbf16>) -> tensor<2x128x4x64xf32>
    %274 = "stablehlo.negate"(%247) : (tensor<1x128x1x32xf32>) -> tensor<1x128x1x32xf32>
    %275 = "stablehlo.reshape"(%273) : (tensor<2x128x4x64xf32>) -> tensor<65536xf32>
    %276 = "stablehlo.reshape"(%275) : (tensor<65536xf32>) -> tensor<32768x2xf32>
    %277 = "stablehlo.slice"(%276) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 32768, 1>, strides = array<i64: 1, 1>} : (tensor<32768x2xf32>) -> tensor<32768x1xf32>
    %278 = "stablehlo.slice"(%276) {start_indices = array<i64: 0, 1>, limit_indices = array<i64: 32768, 2>, strides = array<i64: 1, 1>} : (tensor<32768x2xf32>) -> tensor<32768x1xf32>
    %279 = "stablehlo.reshape"(%277) : (tensor<32768x1xf32>) -> tensor<32768xf32>
    %280 = "stablehlo.reshape"(%278) : (tensor<32768x1xf32>) -> tensor<32768xf32>
    %281 = "stablehlo.complex"(%279, %280) : (tensor<32768xf32>, tensor<32768xf32>) -> tensor<32768xcomplex<f32>>
    %282 = "stablehlo.reshape"(%281) : (tensor<32768xcomplex<f32>>) -> tensor<2x128x4x32xcomplex<f32>>
    %283 = "stablehlo.real"(%282) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<2x128x4x32xf32>
    %284 = "stablehlo.multiply"(%283, %245) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %285 = "stablehlo.broadcast_in_dim"(%274) {broadcast_dimensions = array<i64: 0, 1, 2, 3>} : (tensor<1x128x1x32xf32>) -> tensor<2x128x4x32xf32>
    %286 = "stablehlo.multiply"(%283, %285) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %287 = "stablehlo.imag"(%282) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<2x128x4x32xf32>
    %288 = "stablehlo.multiply"(%287, %285) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %289 = "stablehlo.multiply"(%287, %245) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %290 = "stablehlo.subtract"(%284, %288) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %291 = "stablehlo.add"(%286, %289) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xf32>
    %292 = "stablehlo.complex"(%290, %291) : (tensor<2x128x4x32xf32>, tensor<2x128x4x32xf32>) -> tensor<2x128x4x32xcomplex<f32>>
    %293 = "stablehlo.reshape"(%292) : (tensor<2x128x4x32xcomplex<f32>>) -> tensor<32768xcomplex<f32>>
    %294 = "stablehlo.real"(%293) : (tensor<32768xcomplex<f32>>) -> tensor<32768xf32>
    %295 = "stablehlo.reshape"(%294) : (tensor<32768xf32>) -> tensor<32768x1xf32>
    %296 = "stablehlo.imag"(%293) : (tensor<32768xcomplex<f32>>) -> tensor<32768xf32>
    %297 = "stablehlo.reshape"(%296) : (tensor<32768xf32>) -> tensor<32768x1xf32>
    %298 = "stablehlo.concatenate"(%295, %297) {dimension = 1 : i64} : (tensor<32768x1xf32>, tensor<32768x1xf32>) -> tensor<32768x2xf32>
    %299 = "stablehlo.reshape"(%298) : (tensor<32768x2xf32>) -> tensor<65536xf32>
    %300 = "stablehlo.reshape"(%299) : (tensor<65536xf32>) -> tensor<2x128x4x64xf32>
    %301 = "stablehlo.convert"(%300) : (tensor<2x128x4x64xf32>) -> tensor<2x128x4x64xbf16>
    %302 = "stablehlo.convert"(%301) : (tensor<2x128x4x64xbf16>) -> tensor<2x128x4x64xf32>
    %303 = "stablehlo.constant"() {value = dense<0.000000e+00> : tensor<f32>} : () -> tensor<f32>
    %307 = "stablehlo.reduce"(%302, %303) ({
      ^bb0(%304: tensor<f32>, %305: tensor<f32>):
        %306 = "stablehlo.add"(%304, %305) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        "stablehlo.return"(%306) : (tensor<f32>) -> ()
    }) {dimensions = array<i64: 0, 1, 2, 3>} : (tensor<2x128x4x64xf32>, tensor<f32>) -> tensor<f32>
    %308 = "stablehlo.convert"(%307) : (tensor<f32>) -> tensor<bf16>
    "func.return"(%232, %264, %301, %308) : (tensor<2x128x4x64xbf16>, tensor<2x128x4x64xbf16>, tensor<2x128x4x64xbf16>, tensor<bf16>) -> ()
  }
}
