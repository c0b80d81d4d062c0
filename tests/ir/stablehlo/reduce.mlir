// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// CHECK-LABEL: module @reductions
// CHECK: %[[LOW:.*]] = "stablehlo.constant"() {value = dense<0xFF800000> : tensor<f32>}
// CHECK: "stablehlo.reduce"(%arg0, %[[LOW]]) ({
// CHECK: "stablehlo.maximum"
// CHECK: {dimensions = array<i64: 1>} : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
// CHECK: "stablehlo.reduce"
// CHECK: "stablehlo.add"
func.func @reductions(%x: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<f32>) {
  %0 = tpu.reduce max %x [1] : (tensor<4x8xf32>) -> tensor<4xf32>
  %1 = tpu.reduce sum %x [0, 1] : (tensor<4x8xf32>) -> tensor<f32>
  return %0, %1 : tensor<4xf32>, tensor<f32>
}

// Sums of half types are sums of f32, rounded once.
// CHECK-LABEL: module @half
// CHECK: "stablehlo.convert"(%arg0) : (tensor<8xbf16>) -> tensor<8xf32>
// CHECK: "stablehlo.reduce"
// CHECK: "stablehlo.convert"({{.*}}) : (tensor<f32>) -> tensor<bf16>
func.func @half(%x: tensor<8xbf16>) -> tensor<bf16> {
  %0 = tpu.reduce sum %x [0] : (tensor<8xbf16>) -> tensor<bf16>
  return %0 : tensor<bf16>
}

// CHECK-LABEL: module @where
// CHECK: "stablehlo.iota"() {iota_dimension = 1 : i64} : () -> tensor<4x8xi32>
// CHECK: :2 = "stablehlo.reduce"
// CHECK: "stablehlo.convert"({{.*}}#1) : (tensor<4xi32>) -> tensor<4xi64>
func.func @where(%x: tensor<4x8xf32>) -> tensor<4xi64> {
  %0 = tpu.arg_reduce max %x along 1 : (tensor<4x8xf32>) -> tensor<4xi64>
  return %0 : tensor<4xi64>
}

// What a lowered call may round to inside comes with it; f64 is never rounded.
// CHECK-LABEL: module @rounded_product
// CHECK: "stablehlo.dot_general"{{.*}}precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision HIGH>]
// CHECK: "stablehlo.dot_general"{{.*}}precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]
// CHECK: "stablehlo.dot_general"{{.*}}precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]
func.func @rounded_product(%x: tensor<4x4xf32>, %y: tensor<4x4xf64>) -> (tensor<4x4xf32>, tensor<4x4xf64>) {
  %0 = tpu.aten "aten::mm"(%x, %x) [#tpu.tensor<0>, #tpu.tensor<1>] {precision = #tpu<precision high>}
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = tpu.dot %0, %x batch [] x [] contract [1] x [0] {precision = #tpu<precision medium>}
      : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = tpu.dot %y, %y batch [] x [] contract [1] x [0] {precision = #tpu<precision medium>}
      : (tensor<4x4xf64>, tensor<4x4xf64>) -> tensor<4x4xf64>
  return %1, %2 : tensor<4x4xf32>, tensor<4x4xf64>
}

// CHECK-LABEL: module @product
// CHECK: "stablehlo.dot_general"(%arg0, %arg1) {dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]}
func.func @product(%x: tensor<2x3x4xf32>, %y: tensor<2x4x5xf32>) -> tensor<2x3x5xf32> {
  %0 = tpu.dot %x, %y batch [0] x [0] contract [2] x [1] : (tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<2x3x5xf32>
  return %0 : tensor<2x3x5xf32>
}

// CHECK-LABEL: module @windows
// CHECK: "stablehlo.reduce_window"(%arg0
// CHECK: {window_dimensions = array<i64: 1, 2, 2>, window_strides = array<i64: 1, 2, 2>, window_dilations = array<i64: 1, 1, 1>, padding = dense<{{\[\[}}0, 0], [0, 0], [1, 1]]> : tensor<3x2xi64>}
// CHECK: "stablehlo.reduce_window"
// CHECK: window_dimensions = array<i64: 1, 4, 1>{{.*}}padding = dense<{{\[\[}}0, 0], [3, 0], [0, 0]]>
func.func @windows(%x: tensor<1x4x4xf32>) -> (tensor<1x2x3xf32>, tensor<1x4x4xf32>) {
  %0 = tpu.window_reduce max %x window [2, 2] strides [2, 2] dilation [1, 1] padding [0, 1] [0, 1]
      : (tensor<1x4x4xf32>) -> tensor<1x2x3xf32>
  %1 = tpu.scan sum %x along 1 : tensor<1x4x4xf32>
  return %0, %1 : tensor<1x2x3xf32>, tensor<1x4x4xf32>
}

// Where the largest of each window is: the windows' elements one after the other, each a strided slice.
// CHECK-LABEL: module @where_in_windows
// CHECK: "stablehlo.slice"(%arg0) {{.*}} strides = array<i64: 1, 2, 2>
// CHECK: "stablehlo.compare"
// CHECK: "stablehlo.select"{{.*}} -> tensor<1x2x2xi64>
func.func @where_in_windows(%x: tensor<1x4x4xf32>) -> tensor<1x2x2xi64> {
  %0 = tpu.window_arg_reduce max %x window [2, 2] strides [2, 2] dilation [1, 1] padding [0, 0] [0, 0]
      : (tensor<1x4x4xf32>) -> tensor<1x2x2xi64>
  return %0 : tensor<1x2x2xi64>
}

// NaN counts as the largest; equal elements keep their order.
// CHECK-LABEL: module @sorted
// CHECK: :2 = "stablehlo.sort"
// CHECK: comparison_direction LT
// CHECK: comparison_direction NE
// CHECK: {dimension = 0 : i64, is_stable = true}
func.func @sorted(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>) {
  %0, %1 = tpu.sort %x along 0 descending false : (tensor<8xf32>) -> (tensor<8xf32>, tensor<8xi64>)
  return %0, %1 : tensor<8xf32>, tensor<8xi64>
}

// CHECK-LABEL: module @matrices
// CHECK: "stablehlo.cholesky"({{.*}}) {lower = true} : (tensor<2x3x3xf32>) -> tensor<2x3x3xf32>
// CHECK: "stablehlo.triangular_solve"({{.*}}) {left_side = true, lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>} : (tensor<2x3x3xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
// CHECK: "stablehlo.triangular_solve"({{.*}}) {left_side = true, lower = false, unit_diagonal = true
func.func @matrices(%a: tensor<2x3x3xf32>, %b: tensor<2x3x4xf32>) -> tensor<2x3x4xf32> {
  %0 = tpu.cholesky %a : tensor<2x3x3xf32>
  %1 = tpu.triangular_solve %0, %b : (tensor<2x3x3xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  %2 = tpu.triangular_solve %a, %1 upper unit : (tensor<2x3x3xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
  return %2 : tensor<2x3x4xf32>
}

// CHECK-LABEL: module @fft
// CHECK: "stablehlo.fft"({{.*}}) {fft_type = #stablehlo<fft_type RFFT>, fft_length = array<i64: 3, 6>} : (tensor<2x3x6xf32>) -> tensor<2x3x4xcomplex<f32>>
// CHECK: "stablehlo.fft"({{.*}}) {fft_type = #stablehlo<fft_type FFT>, fft_length = array<i64: 4>}
// CHECK: "stablehlo.fft"({{.*}}) {fft_type = #stablehlo<fft_type IFFT>, fft_length = array<i64: 4>}
// CHECK: "stablehlo.fft"({{.*}}) {fft_type = #stablehlo<fft_type IRFFT>, fft_length = array<i64: 7>} : (tensor<2x3x4xcomplex<f32>>) -> tensor<2x3x7xf32>
func.func @fft(%x: tensor<2x3x6xf32>) -> tensor<2x3x7xf32> {
  %0 = tpu.fft from_real %x [3, 6] : (tensor<2x3x6xf32>) -> tensor<2x3x4xcomplex<f32>>
  %1 = tpu.fft forward %0 [4] : (tensor<2x3x4xcomplex<f32>>) -> tensor<2x3x4xcomplex<f32>>
  %2 = tpu.fft inverse %1 [4] : (tensor<2x3x4xcomplex<f32>>) -> tensor<2x3x4xcomplex<f32>>
  %3 = tpu.fft to_real %2 [7] : (tensor<2x3x4xcomplex<f32>>) -> tensor<2x3x7xf32>
  return %3 : tensor<2x3x7xf32>
}
