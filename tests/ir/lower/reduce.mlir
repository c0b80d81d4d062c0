// RUN: tpu-opt %s --lower-aten --canonicalize --cse --split-input-file | FileCheck %s

// CHECK-LABEL: @sum_bf16
// CHECK: tpu.convert %arg0 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
// CHECK: tpu.reduce sum {{.*}} [1] : (tensor<4x8xf32>) -> tensor<4xf32>
func.func @sum_bf16(%x: tensor<4x8xbf16>) -> tensor<4x1xbf16> {
  %0 = tpu.aten "aten::sum.dim_IntList"(%x) [#tpu.tensor<0>, array<i64: -1>, true, unit] in bf16
      : (tensor<4x8xbf16>) -> tensor<4x1xbf16>
  return %0 : tensor<4x1xbf16>
}

// -----
// Bools are counted in i64.
// CHECK-LABEL: @sum_bool
// CHECK: tpu.convert %arg0 : (tensor<4xi1>) -> tensor<4xi64>
// CHECK: tpu.reduce sum {{.*}} [0] : (tensor<4xi64>) -> tensor<i64>
func.func @sum_bool(%x: tensor<4xi1>) -> tensor<i64> {
  %0 = tpu.aten "aten::sum"(%x) [#tpu.tensor<0>, unit] in i1 : (tensor<4xi1>) -> tensor<i64>
  return %0 : tensor<i64>
}

// -----
// CHECK-LABEL: @max_dim
// CHECK-DAG: tpu.reduce max %arg0 [1]
// CHECK-DAG: tpu.arg_reduce max %arg0 along 1
func.func @max_dim(%x: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xi64>) {
  %0:2 = tpu.aten "aten::max.dim"(%x) [#tpu.tensor<0>, 1, false] in f32
      : (tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xi64>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xi64>
}

// -----
// Two passes: the mean, then the squared deviations from it; correction 1 divides by 7.
// CHECK-LABEL: @var
// CHECK-DAG: %[[SEVEN:.*]] = tpu.constant dense<7.000000e+00>
// CHECK: tpu.reduce sum %arg0 [1]
// CHECK: tpu.sub
// CHECK: tpu.reduce sum
// CHECK: tpu.div {{.*}}, %[[SEVEN]]
func.func @var(%x: tensor<4x8xf32>) -> tensor<4xf32> {
  %0 = tpu.aten "aten::var.correction"(%x) [#tpu.tensor<0>, array<i64: 1>, 1, false] in f32
      : (tensor<4x8xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// CHECK-LABEL: @addmm_bf16
// CHECK: tpu.dot %arg1, %arg2 batch [] x [] contract [1] x [0] : (tensor<2x3xbf16>, tensor<3x4xbf16>) -> tensor<2x4xf32>
// CHECK: tpu.convert {{.*}} : (tensor<2x4xf32>) -> tensor<2x4xbf16>
func.func @addmm_bf16(%b: tensor<4xbf16>, %x: tensor<2x3xbf16>, %y: tensor<3x4xbf16>, %beta: tensor<i64>,
                      %alpha: tensor<i64>) -> tensor<2x4xbf16> {
  %0 = tpu.aten "aten::addmm"(%b, %x, %y, %beta, %alpha)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, #tpu.scalar<3>, #tpu.scalar<4>] in bf16
      : (tensor<4xbf16>, tensor<2x3xbf16>, tensor<3x4xbf16>, tensor<i64>, tensor<i64>) -> tensor<2x4xbf16>
  return %0 : tensor<2x4xbf16>
}

// -----
// CHECK-LABEL: @softmax
// CHECK: tpu.reduce max %arg0 [1]
// CHECK: tpu.exp
// CHECK: tpu.reduce sum
// CHECK: tpu.div {{.*}} : tensor<4x1xf32>
// CHECK: tpu.mul {{.*}} : tensor<4x8xf32>
func.func @softmax(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = tpu.aten "aten::_softmax"(%x) [#tpu.tensor<0>, -1, false] in f32 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----
// CHECK-LABEL: @layer_norm
// CHECK: tpu.rsqrt
// CHECK: return {{.*}} : tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>
func.func @layer_norm(%x: tensor<4x8xf32>, %w: tensor<8xf32>, %b: tensor<8xf32>, %eps: tensor<f64>)
    -> (tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>) {
  %0:3 = tpu.aten "aten::native_layer_norm"(%x, %w, %b, %eps)
      [#tpu.tensor<0>, array<i64: 8>, #tpu.tensor<1>, #tpu.tensor<2>, #tpu.scalar<3>] in f32
      : (tensor<4x8xf32>, tensor<8xf32>, tensor<8xf32>, tensor<f64>)
      -> (tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>)
  return %0#0, %0#1, %0#2 : tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>
}

// -----
// A gradient that is not asked for is an empty placeholder.
// CHECK-LABEL: @layer_norm_backward
// CHECK-NOT: tpu.aten
// CHECK: return
func.func @layer_norm_backward(%dy: tensor<4x8xf32>, %x: tensor<4x8xf32>, %m: tensor<4x1xf32>, %r: tensor<4x1xf32>,
                               %w: tensor<8xf32>) -> (tensor<4x8xf32>, tensor<8xf32>, tensor<0xf32>) {
  %0:3 = tpu.aten "aten::native_layer_norm_backward"(%dy, %x, %m, %r, %w)
      [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 8>, #tpu.tensor<2>, #tpu.tensor<3>, #tpu.tensor<4>, unit,
       array<i1: true, true, false>] in f32
      : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x1xf32>, tensor<4x1xf32>, tensor<8xf32>)
      -> (tensor<4x8xf32>, tensor<8xf32>, tensor<0xf32>)
  return %0#0, %0#1, %0#2 : tensor<4x8xf32>, tensor<8xf32>, tensor<0xf32>
}

// -----
// CHECK-LABEL: @max_pool
// CHECK-DAG: tpu.window_reduce max %arg0 window [3, 3] strides [2, 2] dilation [1, 1] padding [1, 1] [0, 0]
// CHECK-DAG: tpu.window_arg_reduce max %arg0
func.func @max_pool(%x: tensor<1x2x8x8xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4x4xi64>) {
  %0:2 = tpu.aten "aten::max_pool2d_with_indices"(%x)
      [#tpu.tensor<0>, array<i64: 3, 3>, array<i64: 2, 2>, array<i64: 1, 1>, array<i64: 1, 1>, false] in f32
      : (tensor<1x2x8x8xf32>) -> (tensor<1x2x4x4xf32>, tensor<1x2x4x4xi64>)
  return %0#0, %0#1 : tensor<1x2x4x4xf32>, tensor<1x2x4x4xi64>
}

// -----
// CHECK-LABEL: @avg_pool_backward
// CHECK: tpu.pad
// CHECK: tpu.window_reduce sum
func.func @avg_pool_backward(%dy: tensor<1x2x4x4xf32>, %x: tensor<1x2x8x8xf32>) -> tensor<1x2x8x8xf32> {
  %0 = tpu.aten "aten::avg_pool2d_backward"(%dy, %x)
      [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 3, 3>, array<i64: 2, 2>, array<i64: 1, 1>, false, true, unit] in f32
      : (tensor<1x2x4x4xf32>, tensor<1x2x8x8xf32>) -> tensor<1x2x8x8xf32>
  return %0 : tensor<1x2x8x8xf32>
}
