// RUN: tpu-opt %s --split-input-file --fuse | FileCheck %s

// One row kernel: both reductions and what follows them.
// CHECK-LABEL: @softmax
// CHECK: tpu.fusion "row"(%arg0)
// CHECK-NOT: tpu.fusion
func.func @softmax(%x: tensor<33x100xf32>) -> tensor<33x100xf32> {
  %0 = tpu.reduce max %x [1] : (tensor<33x100xf32>) -> tensor<33xf32>
  %1 = tpu.broadcast %0 [0] : (tensor<33xf32>) -> tensor<33x100xf32>
  %2 = tpu.sub %x, %1 : tensor<33x100xf32>
  %3 = tpu.exp %2 : tensor<33x100xf32>
  %4 = tpu.reduce sum %3 [1] : (tensor<33x100xf32>) -> tensor<33xf32>
  %5 = tpu.broadcast %4 [0] : (tensor<33xf32>) -> tensor<33x100xf32>
  %6 = tpu.div %3, %5 : tensor<33x100xf32>
  return %6 : tensor<33x100xf32>
}

// -----
// A product reads its transposed operand in place; what follows it is one kernel, views inside.
// CHECK-LABEL: @linear
// CHECK: %[[T:.*]] = tpu.transpose %arg1
// CHECK: %[[D:.*]] = tpu.dot %arg0, %[[T]]
// CHECK: tpu.fusion "loop"(%[[D]], %arg2)
// CHECK: tpu.broadcast
// CHECK: tpu.tanh
// CHECK: tpu.yield
func.func @linear(%x: tensor<64x32xf32>, %w: tensor<48x32xf32>, %b: tensor<48xf32>) -> tensor<64x48xf32> {
  %t = tpu.transpose %w [1, 0] : (tensor<48x32xf32>) -> tensor<32x48xf32>
  %0 = tpu.dot %x, %t batch [] x [] contract [1] x [0] : (tensor<64x32xf32>, tensor<32x48xf32>) -> tensor<64x48xf32>
  %1 = tpu.broadcast %b [1] : (tensor<48xf32>) -> tensor<64x48xf32>
  %2 = tpu.add %0, %1 : tensor<64x48xf32>
  %3 = tpu.tanh %2 : tensor<64x48xf32>
  return %3 : tensor<64x48xf32>
}

// -----
// No group may leave and come back: the call stands between.
// CHECK-LABEL: @call_between
// CHECK: tpu.fusion
// CHECK: tpu.aten "aten::foo"
// CHECK: tpu.fusion
func.func @call_between(%x: tensor<8xf32>) -> tensor<8xf32> {
  %0 = tpu.exp %x : tensor<8xf32>
  %1 = tpu.aten "aten::foo"(%0) [#tpu.tensor<0>] in f32 : (tensor<8xf32>) -> tensor<8xf32>
  %2 = tpu.add %0, %1 : tensor<8xf32>
  return %2 : tensor<8xf32>
}

// -----
// CHECK-LABEL: @column
// CHECK: tpu.fusion "column"
func.func @column(%x: tensor<100x64xf32>) -> tensor<64xf32> {
  %0 = tpu.mul %x, %x : tensor<100x64xf32>
  %1 = tpu.reduce sum %0 [0] : (tensor<100x64xf32>) -> tensor<64xf32>
  return %1 : tensor<64xf32>
}

// -----
// A view that is written for the caller is also what the product reads through: both read what the kernel writes.
// CHECK-LABEL: @view_written_and_read
// CHECK: %[[F:.*]]:2 = tpu.fusion
// CHECK: %[[T:.*]] = tpu.transpose %[[F]]#0
// CHECK: %[[D:.*]] = tpu.dot %arg1, %[[T]]
// CHECK: return %[[F]]#1, %[[D]]
func.func @view_written_and_read(%x: tensor<32x48xf32>, %y: tensor<8x48xf32>) -> (tensor<48x32xf32>, tensor<8x32xf32>) {
  %0 = tpu.exp %x : tensor<32x48xf32>
  %t = tpu.transpose %0 [1, 0] : (tensor<32x48xf32>) -> tensor<48x32xf32>
  %d = tpu.dot %y, %t batch [] x [] contract [1] x [0] : (tensor<8x48xf32>, tensor<48x32xf32>) -> tensor<8x32xf32>
  return %t, %d : tensor<48x32xf32>, tensor<8x32xf32>
}

// -----
// Reductions of nothing are constants: the identity of what combines the elements.
// CHECK-LABEL: @of_nothing
// CHECK-NOT: tpu.reduce
// CHECK-DAG: tpu.constant dense<0.000000e+00> : tensor<3xf32>
// CHECK-DAG: tpu.constant dense<0xFF800000> : tensor<3xf32>
// CHECK-DAG: tpu.constant dense<1> : tensor<3xi32>
// CHECK-DAG: tpu.constant dense<true> : tensor<3xi1>
func.func @of_nothing(%x: tensor<3x0xf32>, %y: tensor<3x0xi32>, %z: tensor<3x0xi1>)
    -> (tensor<3xf32>, tensor<3xf32>, tensor<3xi32>, tensor<3xi1>) {
  %0 = tpu.reduce sum %x [1] : (tensor<3x0xf32>) -> tensor<3xf32>
  %1 = tpu.reduce max %x [1] : (tensor<3x0xf32>) -> tensor<3xf32>
  %2 = tpu.reduce prod %y [1] : (tensor<3x0xi32>) -> tensor<3xi32>
  %3 = tpu.reduce all %z [1] : (tensor<3x0xi1>) -> tensor<3xi1>
  return %0, %1, %2, %3 : tensor<3xf32>, tensor<3xf32>, tensor<3xi32>, tensor<3xi1>
}

// -----
// The differences of pairs are summed where they are made, and not kept for the sake of a kernel less.
// CHECK-LABEL: @sums_of_pairs
// CHECK: %[[N:.*]] = tpu.fusion "row"(%arg0) : (tensor<100x64xf32>) -> tensor<100x100xf32>
// CHECK: tpu.fusion "column"(%arg0, %[[N]]) : {{.*}} -> tensor<100x64xf32>
func.func @sums_of_pairs(%a: tensor<100x64xf32>) -> (tensor<100x100xf32>, tensor<100x64xf32>) {
  %x = tpu.broadcast %a [0, 2] : (tensor<100x64xf32>) -> tensor<100x100x64xf32>
  %y = tpu.broadcast %a [1, 2] : (tensor<100x64xf32>) -> tensor<100x100x64xf32>
  %0 = tpu.sub %x, %y : tensor<100x100x64xf32>
  %1 = tpu.mul %0, %0 : tensor<100x100x64xf32>
  %2 = tpu.reduce sum %1 [2] : (tensor<100x100x64xf32>) -> tensor<100x100xf32>
  %3 = tpu.sub %y, %x : tensor<100x100x64xf32>
  %4 = tpu.broadcast %2 [0, 1] : (tensor<100x100xf32>) -> tensor<100x100x64xf32>
  %5 = tpu.mul %3, %4 : tensor<100x100x64xf32>
  %6 = tpu.reduce sum %5 [1] : (tensor<100x100x64xf32>) -> tensor<100x64xf32>
  return %2, %6 : tensor<100x100xf32>, tensor<100x64xf32>
}
