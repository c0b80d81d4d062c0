// RUN: tpu-opt %s --lower-aten --canonicalize --cse --split-input-file | FileCheck %s

// Half types: one computation in f32, one rounding.
// CHECK-LABEL: @add_bf16
// CHECK-DAG: %[[X:.*]] = tpu.convert %arg0 : (tensor<4xbf16>) -> tensor<4xf32>
// CHECK-DAG: %[[Y:.*]] = tpu.convert %arg1 : (tensor<4xbf16>) -> tensor<4xf32>
// CHECK: %[[SUM:.*]] = tpu.add
// CHECK: tpu.convert %[[SUM]] : (tensor<4xf32>) -> tensor<4xbf16>
func.func @add_bf16(%x: tensor<4xbf16>, %y: tensor<4xbf16>, %alpha: tensor<i64>) -> tensor<4xbf16> {
  %0 = tpu.aten "aten::add.Tensor"(%x, %y, %alpha) [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.scalar<2>] in bf16
      : (tensor<4xbf16>, tensor<4xbf16>, tensor<i64>) -> tensor<4xbf16>
  return %0 : tensor<4xbf16>
}

// -----
// An in-place overload finds its functional twin; operands broadcast.
// CHECK-LABEL: @mul_
// CHECK: %[[B:.*]] = tpu.broadcast %arg1 [1] : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK: tpu.mul %arg0, %[[B]]
func.func @mul_(%x: tensor<2x3xf32>, %y: tensor<3xf32>) -> tensor<2x3xf32> {
  %0 = tpu.aten "aten::mul_.Tensor"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>] in f32
      : (tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// -----
// True division of integers is in floats.
// CHECK-LABEL: @div_int
// CHECK: tpu.div {{.*}} : tensor<3xf32>
func.func @div_int(%x: tensor<3xi64>, %y: tensor<3xi64>) -> tensor<3xf32> {
  %0 = tpu.aten "aten::div.Tensor"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>] in i64
      : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----
// CHECK-LABEL: @floor_divide_int
// CHECK: tpu.rem
// CHECK: tpu.div {{.*}} : tensor<3xi64>
// CHECK: tpu.select
func.func @floor_divide_int(%x: tensor<3xi64>, %y: tensor<3xi64>) -> tensor<3xi64> {
  %0 = tpu.aten "aten::div.Tensor_mode"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, "floor"] in i64
      : (tensor<3xi64>, tensor<3xi64>) -> tensor<3xi64>
  return %0 : tensor<3xi64>
}

// -----
// CHECK-LABEL: @square
// CHECK-NEXT: tpu.mul %arg0, %arg0
// CHECK-NEXT: return
func.func @square(%x: tensor<3xf32>) -> tensor<3xf32> {
  %0 = tpu.aten "aten::pow.Tensor_Scalar"(%x) [#tpu.tensor<0>, 2] in f32 : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----
// CHECK-LABEL: @gelu_tanh
// CHECK: tpu.tanh
func.func @gelu_tanh(%x: tensor<3xbf16>) -> tensor<3xbf16> {
  %0 = tpu.aten "aten::gelu"(%x) [#tpu.tensor<0>, "tanh"] in bf16 : (tensor<3xbf16>) -> tensor<3xbf16>
  return %0 : tensor<3xbf16>
}

// -----
// Without a lowering, or for types that one cannot do, the call stays.
// CHECK-LABEL: @stays
// CHECK: tpu.aten "aten::atan"
// CHECK: tpu.aten "aten::special_bessel_j0"
func.func @stays(%x: tensor<3xcomplex<f32>>, %y: tensor<3xf32>) -> (tensor<3xcomplex<f32>>, tensor<3xf32>) {
  %0 = tpu.aten "aten::atan"(%x) [#tpu.tensor<0>] : (tensor<3xcomplex<f32>>) -> tensor<3xcomplex<f32>>
  %1 = tpu.aten "aten::special_bessel_j0"(%y) [#tpu.tensor<0>] in f32 : (tensor<3xf32>) -> tensor<3xf32>
  return %0, %1 : tensor<3xcomplex<f32>>, tensor<3xf32>
}

// -----
// ldexp: the power in f64, where neither it nor the product overflows; e is no float.
// CHECK-LABEL: @ldexp
// CHECK: tpu.bitcast {{.*}} : (tensor<3xi64>) -> tensor<3xf64>
// CHECK: %[[PRODUCT:.*]] = tpu.mul {{.*}} : tensor<3xf64>
// CHECK: tpu.convert %[[PRODUCT]] : (tensor<3xf64>) -> tensor<3xf32>
// CHECK: tpu.convert {{.*}} : (tensor<3xf32>) -> tensor<3xf16>
func.func @ldexp(%x: tensor<3xf16>, %e: tensor<3xi32>) -> tensor<3xf16> {
  %0 = tpu.aten "aten::ldexp.Tensor"(%x, %e) [#tpu.tensor<0>, #tpu.tensor<1>] in f16
      : (tensor<3xf16>, tensor<3xi32>) -> tensor<3xf16>
  return %0 : tensor<3xf16>
}

// -----
// nextafter: on bits, of the operands' own type.
// CHECK-LABEL: @nextafter
// CHECK: tpu.bitcast %{{.*}} : (tensor<3xbf16>) -> tensor<3xi16>
// CHECK: tpu.bitcast %{{.*}} : (tensor<3xi16>) -> tensor<3xbf16>
// CHECK-NOT: tpu.aten
func.func @nextafter(%x: tensor<3xbf16>, %y: tensor<3xbf16>) -> tensor<3xbf16> {
  %0 = tpu.aten "aten::nextafter"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>] in bf16
      : (tensor<3xbf16>, tensor<3xbf16>) -> tensor<3xbf16>
  return %0 : tensor<3xbf16>
}
