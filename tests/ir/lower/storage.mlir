// RUN: tpu-opt %s --lower-aten --canonicalize | FileCheck %s
// Strided windows become slices, transposes and broadcasts; only those that overlap themselves become gathers.

// CHECK-LABEL: @transposed
// CHECK-NEXT: tpu.transpose %arg0 [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
// CHECK-NEXT: return
func.func @transposed(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 3, 2>, array<i64: 1, 3>, 0, f32]
      : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// x[:, 1::2]
// CHECK-LABEL: @strided
// CHECK-NEXT: tpu.slice %arg0 [0, 1] to [4, 4] by [1, 2] : (tensor<4x5xf32>) -> tensor<4x2xf32>
// CHECK-NEXT: return
func.func @strided(%x: tensor<4x5xf32>) -> tensor<4x2xf32> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 4, 2>, array<i64: 5, 2>, 1, f32]
      : (tensor<4x5xf32>) -> tensor<4x2xf32>
  return %0 : tensor<4x2xf32>
}

// x[2].expand(3, 5)
// CHECK-LABEL: @expanded
// CHECK: tpu.slice %arg0 [2, 0] to [3, 5] by [1, 1]
// CHECK: tpu.broadcast {{.*}} -> tensor<3x5xf32>
func.func @expanded(%x: tensor<4x5xf32>) -> tensor<3x5xf32> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 3, 5>, array<i64: 0, 1>, 10, f32]
      : (tensor<4x5xf32>) -> tensor<3x5xf32>
  return %0 : tensor<3x5xf32>
}

// A diagonal: padded to whole rows of n + 1, of which it is the first column.
// CHECK-LABEL: @diagonal
// CHECK-NOT: tpu.take
// CHECK: tpu.slice {{.*}} : (tensor<4x5xf32>) -> tensor<4x1xf32>
func.func @diagonal(%x: tensor<4x4xf32>) -> tensor<4xf32> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 4>, array<i64: 5>, 0, f32]
      : (tensor<4x4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// x.unfold(0, 3, 1) reads elements more than once.
// CHECK-LABEL: @overlapping
// CHECK: tpu.take %arg0
func.func @overlapping(%x: tensor<8xf32>) -> tensor<6x3xf32> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 6, 3>, array<i64: 1, 1>, 0, f32]
      : (tensor<8xf32>) -> tensor<6x3xf32>
  return %0 : tensor<6x3xf32>
}

// x.view(torch.int64)
// CHECK-LABEL: @reinterpreted
// CHECK: tpu.bitcast {{.*}} -> tensor<4xi64>
func.func @reinterpreted(%x: tensor<2x4xi32>) -> tensor<2x2xi64> {
  %0 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 2, 2>, array<i64: 2, 1>, 0, i64]
      : (tensor<2x4xi32>) -> tensor<2x2xi64>
  return %0 : tensor<2x2xi64>
}

// x[:, 1] = y
// CHECK-LABEL: @column_written
// CHECK: tpu.update_slice %{{.*}} into %arg0 at [0, 1] by [1, 1] : tensor<4x1xf32> into tensor<4x5xf32>
func.func @column_written(%x: tensor<4x5xf32>, %y: tensor<4xf32>) -> tensor<4x5xf32> {
  %0 = tpu.aten "tpu::update"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 4>, array<i64: 5>, 1]
      : (tensor<4x5xf32>, tensor<4xf32>) -> tensor<4x5xf32>
  return %0 : tensor<4x5xf32>
}

// x.view(torch.bool)[3:5] = y: the bytes beside stay what they are.
// CHECK-LABEL: @bools_written
// CHECK: %[[BYTES:.*]] = tpu.bitcast %arg1 : (tensor<2xi1>) -> tensor<2xui8>
// CHECK: tpu.update_slice %[[BYTES]] into %arg0 at [3] by [1] : tensor<2xui8> into tensor<8xui8>
func.func @bools_written(%x: tensor<8xui8>, %y: tensor<2xi1>) -> tensor<8xui8> {
  %0 = tpu.aten "tpu::update"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 2>, array<i64: 1>, 3]
      : (tensor<8xui8>, tensor<2xi1>) -> tensor<8xui8>
  return %0 : tensor<8xui8>
}

// Written whole and transposed: no trace of the old value.
// CHECK-LABEL: @all_written
// CHECK-NEXT: tpu.transpose %arg1 [1, 0]
// CHECK-NEXT: return
func.func @all_written(%x: tensor<2x3xf32>, %y: tensor<3x2xf32>) -> tensor<2x3xf32> {
  %0 = tpu.aten "tpu::update"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 3, 2>, array<i64: 1, 3>, 0]
      : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// A matrix in a bucket that begins anywhere: one run of its elements.
// CHECK-LABEL: @in_bucket
// CHECK: %[[FLAT:.*]] = tpu.reshape %arg1 : (tensor<3x4xf32>) -> tensor<12xf32>
// CHECK: tpu.update_slice %[[FLAT]] into %arg0 at [5] by [1] : tensor<12xf32> into tensor<30xf32>
// CHECK: tpu.slice %arg0 [7] to [19] by [1] : (tensor<30xf32>) -> tensor<12xf32>
func.func @in_bucket(%x: tensor<30xf32>, %y: tensor<3x4xf32>) -> (tensor<30xf32>, tensor<3x4xf32>) {
  %0 = tpu.aten "tpu::update"(%x, %y) [#tpu.tensor<0>, #tpu.tensor<1>, array<i64: 3, 4>, array<i64: 4, 1>, 5]
      : (tensor<30xf32>, tensor<3x4xf32>) -> tensor<30xf32>
  %1 = tpu.aten "tpu::view"(%x) [#tpu.tensor<0>, array<i64: 3, 4>, array<i64: 4, 1>, 7, f32]
      : (tensor<30xf32>) -> tensor<3x4xf32>
  return %0, %1 : tensor<30xf32>, tensor<3x4xf32>
}
