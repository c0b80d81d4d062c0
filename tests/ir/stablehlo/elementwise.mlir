// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// CHECK-LABEL: module @arithmetic
// CHECK: func.func public @main(%arg0: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<4xf32>) -> (tensor<4xf32>)
// CHECK: "stablehlo.add"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK: "stablehlo.subtract"
// CHECK: "stablehlo.multiply"
// CHECK: "stablehlo.divide"
// CHECK: "stablehlo.power"
// CHECK: "stablehlo.maximum"
// CHECK: "stablehlo.minimum"
// CHECK: "stablehlo.atan2"
// CHECK: "stablehlo.remainder"
// CHECK: "func.return"
func.func @arithmetic(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
  %0 = tpu.add %x, %y : tensor<4xf32>
  %1 = tpu.sub %0, %y : tensor<4xf32>
  %2 = tpu.mul %1, %y : tensor<4xf32>
  %3 = tpu.div %2, %x : tensor<4xf32>
  %4 = tpu.pow %3, %x : tensor<4xf32>
  %5 = tpu.max %4, %x : tensor<4xf32>
  %6 = tpu.min %5, %x : tensor<4xf32>
  %7 = tpu.atan2 %6, %x : tensor<4xf32>
  %8 = tpu.rem %7, %y : tensor<4xf32>
  return %8 : tensor<4xf32>
}

// CHECK-LABEL: module @whole_powers
// CHECK-NOT: "stablehlo.power"
// CHECK-COUNT-63: "stablehlo.select"{{.*}} -> tensor<4xi64>
// CHECK-NOT: "stablehlo.power"
// CHECK-COUNT-7: "stablehlo.select"{{.*}} -> tensor<4xi8>
// CHECK-NOT: "stablehlo.power"
func.func @whole_powers(%x: tensor<4xi64>, %y: tensor<4xi8>) -> (tensor<4xi64>, tensor<4xi8>) {
  %0 = tpu.mul %x, %x : tensor<4xi64>
  %1 = tpu.pow %x, %0 : tensor<4xi64>
  %2 = tpu.abs %y : tensor<4xi8>
  %3 = tpu.pow %y, %2 : tensor<4xi8>
  return %1, %3 : tensor<4xi64>, tensor<4xi8>
}

// CHECK-LABEL: module @functions
// CHECK: "stablehlo.negate"
// CHECK: "stablehlo.abs"
// CHECK: "stablehlo.exponential"
// CHECK: "stablehlo.exponential_minus_one"
// CHECK: "stablehlo.log"
// CHECK: "stablehlo.log_plus_one"
// CHECK: "stablehlo.sqrt"
// CHECK: "stablehlo.rsqrt"
// CHECK: "stablehlo.sine"
// CHECK: "stablehlo.cosine"
// CHECK: "stablehlo.tan"
// CHECK: "stablehlo.tanh"
// CHECK: "stablehlo.logistic"
// CHECK: "stablehlo.floor"
// CHECK: "stablehlo.ceil"
// CHECK: "stablehlo.round_nearest_even"
// CHECK: "stablehlo.is_finite"{{.*}} -> tensor<4xi1>
func.func @functions(%x: tensor<4xf32>) -> tensor<4xi1> {
  %0 = tpu.neg %x : tensor<4xf32>
  %1 = tpu.abs %0 : tensor<4xf32>
  %2 = tpu.exp %1 : tensor<4xf32>
  %3 = tpu.expm1 %2 : tensor<4xf32>
  %4 = tpu.log %3 : tensor<4xf32>
  %5 = tpu.log1p %4 : tensor<4xf32>
  %6 = tpu.sqrt %5 : tensor<4xf32>
  %7 = tpu.rsqrt %6 : tensor<4xf32>
  %8 = tpu.sin %7 : tensor<4xf32>
  %9 = tpu.cos %8 : tensor<4xf32>
  %10 = tpu.tan %9 : tensor<4xf32>
  %11 = tpu.tanh %10 : tensor<4xf32>
  %12 = tpu.logistic %11 : tensor<4xf32>
  %13 = tpu.floor %12 : tensor<4xf32>
  %14 = tpu.ceil %13 : tensor<4xf32>
  %15 = tpu.round_even %14 : tensor<4xf32>
  %16 = tpu.is_finite %15 : (tensor<4xf32>) -> tensor<4xi1>
  return %16 : tensor<4xi1>
}

// What StableHLO has no operation for is expanded.
// CHECK-LABEL: module @expanded
// CHECK-NOT: erf
// CHECK-NOT: sinh
// CHECK: "stablehlo.exponential"
// CHECK: "stablehlo.exponential_minus_one"
// CHECK: "stablehlo.atan2"
// CHECK: "stablehlo.log_plus_one"
func.func @expanded(%x: tensor<4xf64>) -> (tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>,
                                           tensor<4xf64>, tensor<4xf64>, tensor<4xf64>) {
  %0 = tpu.erf %x : tensor<4xf64>
  %1 = tpu.sinh %x : tensor<4xf64>
  %2 = tpu.cosh %x : tensor<4xf64>
  %3 = tpu.asin %x : tensor<4xf64>
  %4 = tpu.asinh %x : tensor<4xf64>
  %5 = tpu.log2 %x : tensor<4xf64>
  %6 = tpu.trunc %x : tensor<4xf64>
  %7 = tpu.sign %x : tensor<4xf64>
  return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>,
      tensor<4xf64>, tensor<4xf64>, tensor<4xf64>
}

// CHECK-LABEL: module @tens
// CHECK-DAG: "stablehlo.log"
// CHECK-DAG: "stablehlo.power"
// CHECK-NOT: tpu.
func.func @tens(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = tpu.log10 %x : tensor<4xf32>
  %1 = tpu.exp2 %x : tensor<4xf32>
  return %0, %1 : tensor<4xf32>, tensor<4xf32>
}

// StableHLO has no inverse functions but atan2.
// CHECK-LABEL: module @inverse
// CHECK: "stablehlo.atan2"
// CHECK: "stablehlo.atan2"
// CHECK: "stablehlo.log
// CHECK: "stablehlo.log_plus_one"
// CHECK-NOT: tpu.
func.func @inverse(%x: tensor<4xf64>) -> (tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>) {
  %0 = tpu.acos %x : tensor<4xf64>
  %1 = tpu.atan %x : tensor<4xf64>
  %2 = tpu.acosh %x : tensor<4xf64>
  %3 = tpu.atanh %x : tensor<4xf64>
  return %0, %1, %2, %3 : tensor<4xf64>, tensor<4xf64>, tensor<4xf64>, tensor<4xf64>
}

// Integers: division never sees a zero; shifts by signedness; comparisons too.
// CHECK-LABEL: module @integers
// CHECK: %[[ZERO:.*]] = "stablehlo.compare"(%arg1
// CHECK: %[[SAFE:.*]] = "stablehlo.select"(%[[ZERO]]{{.*}}%arg1)
// CHECK: %[[MINUS:.*]] = "stablehlo.compare"(%[[SAFE]]
// CHECK: %[[SAFER:.*]] = "stablehlo.select"(%[[MINUS]]{{.*}}%[[SAFE]])
// CHECK: "stablehlo.divide"(%arg0, %[[SAFER]])
// CHECK: "stablehlo.shift_left"
// CHECK: "stablehlo.shift_right_arithmetic"
// CHECK: "stablehlo.shift_right_logical"
// CHECK: comparison_direction LT>, compare_type = #stablehlo<comparison_type UNSIGNED>
func.func @integers(%x: tensor<4xi32>, %y: tensor<4xi32>, %u: tensor<4xui8>)
    -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xui8>, tensor<4xi1>) {
  %0 = tpu.div %x, %y : tensor<4xi32>
  %1 = tpu.shl %x, %y : tensor<4xi32>
  %2 = tpu.shr %x, %y : tensor<4xi32>
  %3 = tpu.shr %u, %u : tensor<4xui8>
  %4 = tpu.compare lt %u, %3 : tensor<4xui8>
  return %0, %1, %2, %3, %4 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xui8>, tensor<4xi1>
}

// CHECK-LABEL: module @bits
// CHECK: "stablehlo.and"
// CHECK: "stablehlo.or"
// CHECK: "stablehlo.xor"
// CHECK: "stablehlo.not"
// CHECK: "stablehlo.select"
// CHECK: "stablehlo.convert"({{.*}}) : (tensor<4xi1>) -> tensor<4xbf16>
func.func @bits(%p: tensor<4xi1>, %q: tensor<4xi1>) -> tensor<4xbf16> {
  %0 = tpu.and %p, %q : tensor<4xi1>
  %1 = tpu.or %0, %q : tensor<4xi1>
  %2 = tpu.xor %1, %p : tensor<4xi1>
  %3 = tpu.not %2 : tensor<4xi1>
  %4 = tpu.select %3, %p, %q : tensor<4xi1>, tensor<4xi1>
  %5 = tpu.convert %4 : (tensor<4xi1>) -> tensor<4xbf16>
  return %5 : tensor<4xbf16>
}

// XLA's programs report nothing.
// CHECK-LABEL: module @requirements
// CHECK: "stablehlo.add"(%[[X:.*]], %[[X]])
func.func @requirements(%x: tensor<4xf32>) -> tensor<4xf32> {
  %holds = tpu.compare eq %x, %x : tensor<4xf32>
  %0 = tpu.require %x, %holds : tensor<4xf32>, tensor<4xi1>
  %1 = tpu.add %0, %x : tensor<4xf32>
  return %1 : tensor<4xf32>
}

// Philox: products of 32-bit words in 64 bits, ten rounds.
// CHECK-LABEL: module @random
// CHECK-COUNT-20: "stablehlo.multiply"{{.*}}tensor<2xui64>
// CHECK: "stablehlo.concatenate"
// CHECK: "stablehlo.bitcast_convert"{{.*}} -> tensor<5xi32>
func.func @random(%seed: tensor<i64>, %offset: tensor<i64>) -> tensor<5xi32> {
  %0 = tpu.random_bits %seed, %offset : (tensor<i64>, tensor<i64>) -> tensor<5xi32>
  return %0 : tensor<5xi32>
}

// CHECK-LABEL: module @parts
// CHECK: "stablehlo.real"(%arg0) : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
// CHECK: "stablehlo.imag"(%arg0) : (tensor<4xcomplex<f32>>) -> tensor<4xf32>
// CHECK: "stablehlo.complex"({{.*}}) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xcomplex<f32>>
func.func @parts(%z: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  %0 = tpu.real %z : tensor<4xcomplex<f32>>
  %1 = tpu.imaginary %z : tensor<4xcomplex<f32>>
  %2 = tpu.complex %1, %0 : tensor<4xf32>
  return %2 : tensor<4xcomplex<f32>>
}
