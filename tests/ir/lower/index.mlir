// RUN: tpu-opt %s --lower-aten --canonicalize --cse --split-input-file | FileCheck %s

// CHECK-LABEL: @embedding
// CHECK-NEXT: tpu.take %arg0 at %arg1 along 0
func.func @embedding(%w: tensor<10x4xf32>, %i: tensor<2x3xi64>) -> tensor<2x3x4xf32> {
  %0 = tpu.aten "aten::embedding"(%w, %i) [#tpu.tensor<0>, #tpu.tensor<1>, -1, false, false] in f32
      : (tensor<10x4xf32>, tensor<2x3xi64>) -> tensor<2x3x4xf32>
  return %0 : tensor<2x3x4xf32>
}

// -----
// CHECK-LABEL: @embedding_backward
// CHECK: tpu.scatter_rows add {{.*}} along 0 : (tensor<10x4xf32>, tensor<6xi64>, tensor<6x4xf32>)
func.func @embedding_backward(%g: tensor<2x3x4xf32>, %i: tensor<2x3xi64>) -> tensor<10x4xf32> {
  %0 = tpu.aten "aten::embedding_dense_backward"(%g, %i) [#tpu.tensor<0>, #tpu.tensor<1>, 10, -1, false] in f32
      : (tensor<2x3x4xf32>, tensor<2x3xi64>) -> tensor<10x4xf32>
  return %0 : tensor<10x4xf32>
}

// -----
// x[:, i, j]: the indexed dims merge into one; negative indices wrap.
// CHECK-LABEL: @index_two
// CHECK: tpu.reshape %arg0 : (tensor<2x3x4xf32>) -> tensor<2x12xf32>
// CHECK: tpu.take {{.*}} along 1 : (tensor<2x12xf32>, tensor<5xi64>) -> tensor<2x5xf32>
func.func @index_two(%x: tensor<2x3x4xf32>, %i: tensor<5xi64>, %j: tensor<5xi64>) -> tensor<2x5xf32> {
  %0 = tpu.aten "aten::index.Tensor"(%x, %i, %j) [#tpu.tensor<0>, #tpu.tensors<1, 3, absent [0]>] in f32
      : (tensor<2x3x4xf32>, tensor<5xi64>, tensor<5xi64>) -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}

// -----
// A mask decides how many elements there are: not a primitive. Writing one number through it is a selection.
// CHECK-LABEL: @masks
// CHECK: tpu.aten "aten::index.Tensor"
// CHECK: tpu.select
func.func @masks(%x: tensor<4xf32>, %m: tensor<4xi1>, %v: tensor<f32>) -> (tensor<2xf32>, tensor<4xf32>) {
  %0 = tpu.aten "aten::index.Tensor"(%x, %m) [#tpu.tensor<0>, #tpu.tensors<1, 1>] in f32
      : (tensor<4xf32>, tensor<4xi1>) -> tensor<2xf32>
  %1 = tpu.aten "aten::index_put"(%x, %m, %v) [#tpu.tensor<0>, #tpu.tensors<1, 1>, #tpu.tensor<2>, false] in f32
      : (tensor<4xf32>, tensor<4xi1>, tensor<f32>) -> tensor<4xf32>
  return %0, %1 : tensor<2xf32>, tensor<4xf32>
}

// -----
// CHECK-LABEL: @gather_scatter
// CHECK: tpu.take_along %arg0 at %arg1 along 1
// CHECK: tpu.scatter add
func.func @gather_scatter(%x: tensor<4x8xf32>, %i: tensor<4x2xi64>) -> tensor<4x8xf32> {
  %0 = tpu.aten "aten::gather"(%x, %i) [#tpu.tensor<0>, 1, #tpu.tensor<1>, false] in f32
      : (tensor<4x8xf32>, tensor<4x2xi64>) -> tensor<4x2xf32>
  %1 = tpu.aten "aten::scatter_add"(%x, %i, %0) [#tpu.tensor<0>, 1, #tpu.tensor<1>, #tpu.tensor<2>] in f32
      : (tensor<4x8xf32>, tensor<4x2xi64>, tensor<4x2xf32>) -> tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}

// -----
// A mean without the base's own elements, which stay where nothing falls; what falls on each is counted.
// CHECK-LABEL: @scatter_mean
// CHECK: %[[COUNT:.*]] = tpu.scatter add
// CHECK: %[[BASE:.*]] = tpu.select {{.*}}, %arg0
// CHECK: tpu.scatter add {{.*}} into %[[BASE]]
// CHECK: tpu.div
func.func @scatter_mean(%x: tensor<4x8xf32>, %i: tensor<4x2xi64>, %y: tensor<4x2xf32>) -> tensor<4x8xf32> {
  %0 = tpu.aten "aten::scatter_reduce.two"(%x, %i, %y) [#tpu.tensor<0>, 1, #tpu.tensor<1>, #tpu.tensor<2>, "mean", false] in f32
      : (tensor<4x8xf32>, tensor<4x2xi64>, tensor<4x2xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----
// CHECK-LABEL: @index_amax
// CHECK: tpu.scatter_rows max
func.func @index_amax(%x: tensor<4x8xf32>, %i: tensor<2xi64>, %y: tensor<2x8xf32>) -> tensor<4x8xf32> {
  %0 = tpu.aten "aten::index_reduce"(%x, %i, %y) [#tpu.tensor<0>, 0, #tpu.tensor<1>, #tpu.tensor<2>, "amax", true] in f32
      : (tensor<4x8xf32>, tensor<2xi64>, tensor<2x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// -----
// CHECK-LABEL: @nll
// CHECK: tpu.take_along
func.func @nll(%x: tensor<4x8xf32>, %t: tensor<4xi64>) -> (tensor<f32>, tensor<f32>) {
  %0:2 = tpu.aten "aten::nll_loss_forward"(%x, %t) [#tpu.tensor<0>, #tpu.tensor<1>, unit, 1, -100] in f32
      : (tensor<4x8xf32>, tensor<4xi64>) -> (tensor<f32>, tensor<f32>)
  return %0#0, %0#1 : tensor<f32>, tensor<f32>
}

// -----
// Seed and offset are the last two operands.
// CHECK-LABEL: @dropout
// CHECK: tpu.random_bits %arg2, %arg3
func.func @dropout(%x: tensor<4xf32>, %p: tensor<f64>, %seed: tensor<i64>, %offset: tensor<i64>)
    -> (tensor<4xf32>, tensor<4xi1>) {
  %0:2 = tpu.aten "aten::native_dropout"(%x, %p, %seed, %offset) [#tpu.tensor<0>, #tpu.scalar<1>, true] in f32
      : (tensor<4xf32>, tensor<f64>, tensor<i64>, tensor<i64>) -> (tensor<4xf32>, tensor<4xi1>)
  return %0#0, %0#1 : tensor<4xf32>, tensor<4xi1>
}

// -----
// CHECK-LABEL: @fused_sgd
// CHECK-NOT: tpu.aten
// CHECK: return
func.func @fused_sgd(%p: tensor<4xf32>, %g: tensor<4xf32>, %b: tensor<4xf32>, %wd: tensor<f64>, %mu: tensor<f64>,
                     %lr: tensor<f64>, %damp: tensor<f64>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0:3 = tpu.aten "aten::_fused_sgd"(%p, %g, %b, %wd, %mu, %lr, %damp)
      [#tpu.tensors<0, 1>, #tpu.tensors<1, 1>, #tpu.tensors<2, 1>, #tpu.scalar<3>, #tpu.scalar<4>, #tpu.scalar<5>,
       #tpu.scalar<6>, false, false, false, unit, unit] in f32
      : (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<f64>, tensor<f64>, tensor<f64>, tensor<f64>)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
  return %0#0, %0#1, %0#2 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// -----
// Bags are counted by where they begin; rows of padding go to no bag, so that the list isn't sorted.
// CHECK-LABEL: @bags
// CHECK: tpu.scatter_rows add
// CHECK: %[[BAG:.*]] = tpu.scan sum
// CHECK: tpu.sum_taken %arg0 at %arg1 to sorted %[[BAG]]
// CHECK: tpu.sum_taken %arg0 at %arg1 times %arg2 to %{{.*}} :
func.func @bags(%w: tensor<10x4xbf16>, %i: tensor<6xi64>, %p: tensor<6xf32>) -> (tensor<2x4xbf16>, tensor<2x4xbf16>) {
  %o = tpu.constant dense<[0, 4]> : tensor<2xi64>
  %0:4 = tpu.aten "aten::_embedding_bag"(%w, %i, %o)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, false, 1, false, unit, false, -1] in bf16
      : (tensor<10x4xbf16>, tensor<6xi64>, tensor<2xi64>)
      -> (tensor<2x4xbf16>, tensor<6xi64>, tensor<2xi64>, tensor<0xi64>)
  %1:4 = tpu.aten "aten::_embedding_bag"(%w, %i, %o, %p)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, false, 0, false, #tpu.tensor<3>, false, 3] in bf16
      : (tensor<10x4xbf16>, tensor<6xi64>, tensor<2xi64>, tensor<6xf32>)
      -> (tensor<2x4xbf16>, tensor<6xi64>, tensor<2xi64>, tensor<0xi64>)
  return %0#0, %1#0 : tensor<2x4xbf16>, tensor<2x4xbf16>
}

// -----
// CHECK-LABEL: @bags_backward
// CHECK: tpu.sum_taken {{.*}} at %{{.*}} to %arg1 : (tensor<2x4xf32>, tensor<6xi64>, tensor<6xi64>) -> tensor<10x4xf32>
func.func @bags_backward(%g: tensor<2x4xf32>, %i: tensor<6xi64>, %s: tensor<2xi64>, %m: tensor<0xi64>)
    -> tensor<10x4xf32> {
  %b = tpu.constant dense<[0, 0, 0, 1, 1, 1]> : tensor<6xi64>
  %0 = tpu.aten "aten::_embedding_bag_dense_backward"(%g, %i, %b, %s, %m)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, #tpu.tensor<3>, #tpu.tensor<4>, 10, false, 1, unit, -1] in f32
      : (tensor<2x4xf32>, tensor<6xi64>, tensor<6xi64>, tensor<2xi64>, tensor<0xi64>) -> tensor<10x4xf32>
  return %0 : tensor<10x4xf32>
}

// -----
// CHECK-LABEL: @bags_backward_by_frequency
// CHECK: tpu.aten "aten::_embedding_bag_dense_backward"
func.func @bags_backward_by_frequency(%g: tensor<2x4xf32>, %i: tensor<6xi64>, %s: tensor<2xi64>, %m: tensor<0xi64>)
    -> tensor<10x4xf32> {
  %b = tpu.constant dense<[0, 0, 0, 1, 1, 1]> : tensor<6xi64>
  %0 = tpu.aten "aten::_embedding_bag_dense_backward"(%g, %i, %b, %s, %m)
      [#tpu.tensor<0>, #tpu.tensor<1>, #tpu.tensor<2>, #tpu.tensor<3>, #tpu.tensor<4>, 10, true, 1, unit, -1] in f32
      : (tensor<2x4xf32>, tensor<6xi64>, tensor<6xi64>, tensor<2xi64>, tensor<0xi64>) -> tensor<10x4xf32>
  return %0 : tensor<10x4xf32>
}
