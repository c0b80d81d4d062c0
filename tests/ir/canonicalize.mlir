// RUN: tpu-opt %s --canonicalize | FileCheck %s

// CHECK-LABEL: @reshape_of_reshape
// CHECK-NEXT: return %arg0
func.func @reshape_of_reshape(%x: tensor<2x6xf32>) -> tensor<2x6xf32> {
  %0 = tpu.reshape %x : (tensor<2x6xf32>) -> tensor<3x4xf32>
  %1 = tpu.reshape %0 : (tensor<3x4xf32>) -> tensor<2x6xf32>
  return %1 : tensor<2x6xf32>
}

// CHECK-LABEL: @transpose_of_transpose
// CHECK-NEXT: return %arg0
func.func @transpose_of_transpose(%x: tensor<2x6xf32>) -> tensor<2x6xf32> {
  %0 = tpu.transpose %x [1, 0] : (tensor<2x6xf32>) -> tensor<6x2xf32>
  %1 = tpu.transpose %0 [1, 0] : (tensor<6x2xf32>) -> tensor<2x6xf32>
  return %1 : tensor<2x6xf32>
}

// CHECK-LABEL: @slice_of_slice
// CHECK-NEXT: tpu.slice %arg0 [3] to [10] by [6]
// CHECK-NEXT: return
func.func @slice_of_slice(%x: tensor<12xf32>) -> tensor<2xf32> {
  %0 = tpu.slice %x [1] to [12] by [2] : (tensor<12xf32>) -> tensor<6xf32>
  %1 = tpu.slice %0 [1] to [5] by [3] : (tensor<6xf32>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}

// Of nothing, from where the first slice has no more elements.
// CHECK-LABEL: @slice_of_nothing
// CHECK-NEXT: tpu.slice %arg0 [0] to [0] by [5]
func.func @slice_of_nothing(%x: tensor<9xf32>) -> tensor<0xf32> {
  %0 = tpu.slice %x [0] to [9] by [5] : (tensor<9xf32>) -> tensor<2xf32>
  %1 = tpu.slice %0 [2] to [2] by [1] : (tensor<2xf32>) -> tensor<0xf32>
  return %1 : tensor<0xf32>
}

// A cast through a type that holds every value of the first; not one that rounds.
// CHECK-LABEL: @convert_of_convert
// CHECK: tpu.convert %arg0 : (tensor<2xbf16>) -> tensor<2xf16>
// CHECK: %[[ROUNDED:.*]] = tpu.convert %arg1 : (tensor<2xf32>) -> tensor<2xbf16>
// CHECK: tpu.convert %[[ROUNDED]] : (tensor<2xbf16>) -> tensor<2xf32>
func.func @convert_of_convert(%x: tensor<2xbf16>, %y: tensor<2xf32>) -> (tensor<2xf16>, tensor<2xf32>) {
  %0 = tpu.convert %x : (tensor<2xbf16>) -> tensor<2xf32>
  %1 = tpu.convert %0 : (tensor<2xf32>) -> tensor<2xf16>
  %2 = tpu.convert %y : (tensor<2xf32>) -> tensor<2xbf16>
  %3 = tpu.convert %2 : (tensor<2xbf16>) -> tensor<2xf32>
  return %1, %3 : tensor<2xf16>, tensor<2xf32>
}

// x * 1 is x; x + 0 is x for integers, not for floats (-0.0 + 0.0 is 0.0).
// CHECK-LABEL: @neutral
// CHECK: %[[SUM:.*]] = tpu.add %arg0
// CHECK: return %arg0, %[[SUM]], %arg1
func.func @neutral(%x: tensor<2xf32>, %i: tensor<2xi64>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xi64>) {
  %one = tpu.constant dense<1.0> : tensor<2xf32>
  %zero = tpu.constant dense<0.0> : tensor<2xf32>
  %izero = tpu.constant dense<0> : tensor<2xi64>
  %0 = tpu.mul %x, %one : tensor<2xf32>
  %1 = tpu.add %x, %zero : tensor<2xf32>
  %2 = tpu.add %i, %izero : tensor<2xi64>
  return %0, %1, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xi64>
}

// CHECK-LABEL: @splats
// CHECK-NEXT: tpu.constant dense<2.000000e+00> : tensor<3x4xf32>
// CHECK-NEXT: return
func.func @splats() -> tensor<3x4xf32> {
  %0 = tpu.constant dense<2> : tensor<i64>
  %1 = tpu.convert %0 : (tensor<i64>) -> tensor<f32>
  %2 = tpu.broadcast %1 [] : (tensor<f32>) -> tensor<4x3xf32>
  %3 = tpu.transpose %2 [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  return %3 : tensor<3x4xf32>
}

// CHECK-LABEL: @dot_of_transpose
// CHECK-NEXT: tpu.dot %arg0, %arg1 batch [] x [] contract [1] x [1] {triangle = #tpu<triangle lhs_lower>}
// CHECK-NEXT: return
func.func @dot_of_transpose(%a: tensor<2x3xf32>, %b: tensor<4x3xf32>) -> tensor<2x4xf32> {
  %0 = tpu.transpose %b [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %1 = tpu.dot %a, %0 batch [] x [] contract [1] x [0] {triangle = #tpu<triangle lhs_lower>} : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %1 : tensor<2x4xf32>
}

// The library writes the product as it is wanted.
// CHECK-LABEL: @dot_of_turned_cast
// CHECK-NEXT: tpu.convert %arg1 : (tensor<4x3xi8>) -> tensor<4x3xf32>
// CHECK-NEXT: tpu.dot %arg0, %{{.*}} batch [] x [] contract [1] x [1]
func.func @dot_of_turned_cast(%a: tensor<2x3xf32>, %b: tensor<4x3xi8>) -> tensor<2x4xf32> {
  %0 = tpu.transpose %b [1, 0] : (tensor<4x3xi8>) -> tensor<3x4xi8>
  %1 = tpu.convert %0 : (tensor<3x4xi8>) -> tensor<3x4xf32>
  %2 = tpu.dot %a, %1 batch [] x [] contract [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  return %2 : tensor<2x4xf32>
}

// Products of bf16 are exact in f32; one beside f32 is widened.
// CHECK-LABEL: @dot_of_widened
// CHECK: tpu.dot %arg0, %arg1 batch [] x [] contract [1] x [1] : (tensor<2x3xbf16>, tensor<4x3xbf16>) -> tensor<2x4xf32>
// CHECK-NEXT: tpu.dot {{.*}} : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
func.func @dot_of_widened(%a: tensor<2x3xbf16>, %b: tensor<4x3xbf16>) -> tensor<2x3xf32> {
  %0 = tpu.convert %a : (tensor<2x3xbf16>) -> tensor<2x3xf32>
  %1 = tpu.convert %b : (tensor<4x3xbf16>) -> tensor<4x3xf32>
  %2 = tpu.transpose %1 [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
  %3 = tpu.dot %0, %2 batch [] x [] contract [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
  %4 = tpu.dot %3, %1 batch [] x [] contract [1] x [0] : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  return %4 : tensor<2x3xf32>
}

// CHECK-LABEL: @transpose_of_dot
// CHECK-NEXT: tpu.dot %arg1, %arg0 batch [1] x [0] contract [2] x [2] : (tensor<5x7x3xf32>, tensor<7x2x3xf32>) -> tensor<7x5x2xf32>
// CHECK-NEXT: return
func.func @transpose_of_dot(%a: tensor<7x2x3xf32>, %b: tensor<5x7x3xf32>) -> tensor<7x5x2xf32> {
  %0 = tpu.dot %a, %b batch [0] x [1] contract [2] x [2] : (tensor<7x2x3xf32>, tensor<5x7x3xf32>) -> tensor<7x2x5xf32>
  %1 = tpu.transpose %0 [0, 2, 1] : (tensor<7x2x5xf32>) -> tensor<7x5x2xf32>
  return %1 : tensor<7x5x2xf32>
}

// What was just written, and what was left alone.
// CHECK-LABEL: @slice_of_update
// CHECK-DAG: %[[NEW:.*]] = tpu.slice %arg1 [1] to [3] by [1]
// CHECK-DAG: %[[OLD:.*]] = tpu.slice %arg0 [0] to [2] by [1]
// CHECK-DAG: %[[BOTH:.*]] = tpu.slice %{{.*}} [1] to [4] by [1]
// CHECK: return %[[NEW]], %[[OLD]], %[[BOTH]]
func.func @slice_of_update(%x: tensor<8xf32>, %y: tensor<4xf32>) -> (tensor<2xf32>, tensor<2xf32>, tensor<3xf32>) {
  %0 = tpu.update_slice %y into %x at [2] by [1] : tensor<4xf32> into tensor<8xf32>
  %1 = tpu.slice %0 [3] to [5] by [1] : (tensor<8xf32>) -> tensor<2xf32>
  %2 = tpu.slice %0 [0] to [2] by [1] : (tensor<8xf32>) -> tensor<2xf32>
  %3 = tpu.slice %0 [1] to [4] by [1] : (tensor<8xf32>) -> tensor<3xf32>
  return %1, %2, %3 : tensor<2xf32>, tensor<2xf32>, tensor<3xf32>
}

// CHECK-LABEL: @update_of_update
// CHECK-NEXT: tpu.update_slice %arg2 into %arg0 at [2] by [1]
// CHECK-NEXT: return
func.func @update_of_update(%x: tensor<8xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>) -> tensor<8xf32> {
  %0 = tpu.update_slice %y into %x at [2] by [1] : tensor<4xf32> into tensor<8xf32>
  %1 = tpu.update_slice %z into %0 at [2] by [1] : tensor<4xf32> into tensor<8xf32>
  return %1 : tensor<8xf32>
}

// CHECK-LABEL: @what_holds
// CHECK-NEXT: return %arg0
func.func @what_holds(%x: tensor<4xf32>) -> tensor<4xf32> {
  %true = tpu.constant dense<true> : tensor<4xi1>
  %0 = tpu.require %x, %true : tensor<4xf32>, tensor<4xi1>
  return %0 : tensor<4xf32>
}

// Indices that differ along one dim alone name slices; not where they cover less than the others, as in @part.
// CHECK-LABEL: @slices_by_repeated_indices
// CHECK: %[[I:.*]] = tpu.reshape %arg1
// CHECK: tpu.take %arg0 at %[[I]] along 0
// CHECK: tpu.scatter_rows add %arg2 into %arg0 at %{{.*}} along 0
func.func @slices_by_repeated_indices(%x: tensor<4x3xf32>, %i: tensor<2x1xi64>, %y: tensor<2x3xf32>) -> (tensor<2x3xf32>, tensor<4x3xf32>) {
  %0 = tpu.broadcast %i [0, 1] : (tensor<2x1xi64>) -> tensor<2x3xi64>
  %1 = tpu.take_along %x at %0 along 0 : (tensor<4x3xf32>, tensor<2x3xi64>) -> tensor<2x3xf32>
  %2 = tpu.scatter add %y into %x at %0 along 0 : (tensor<4x3xf32>, tensor<2x3xi64>, tensor<2x3xf32>) -> tensor<4x3xf32>
  return %1, %2 : tensor<2x3xf32>, tensor<4x3xf32>
}

// CHECK-LABEL: @part
// CHECK: tpu.take_along
// CHECK: tpu.take_along
func.func @part(%x: tensor<4x3xf32>, %i: tensor<2x1xi64>, %j: tensor<1x2xi64>) -> (tensor<2x2xf32>, tensor<4x2xf32>) {
  %0 = tpu.broadcast %i [0, 1] : (tensor<2x1xi64>) -> tensor<2x2xi64>
  %1 = tpu.take_along %x at %0 along 0 : (tensor<4x3xf32>, tensor<2x2xi64>) -> tensor<2x2xf32>
  %2 = tpu.broadcast %j [0, 1] : (tensor<1x2xi64>) -> tensor<4x2xi64>
  %3 = tpu.take_along %x at %2 along 0 : (tensor<4x3xf32>, tensor<4x2xi64>) -> tensor<4x2xf32>
  return %1, %3 : tensor<2x2xf32>, tensor<4x2xf32>
}

// Numbers of slices are counted once for each slice.
// CHECK-LABEL: @scatter_of_splats
// CHECK: %[[COUNT:.*]] = tpu.scatter_rows add {{.*}} along 0 : (tensor<4xi32>, tensor<2xi64>, tensor<2xi32>) -> tensor<4xi32>
// CHECK: tpu.broadcast %[[COUNT]] [1]
func.func @scatter_of_splats(%i: tensor<2xi64>) -> tensor<3x4xi32> {
  %0 = tpu.constant dense<0> : tensor<3x4xi32>
  %1 = tpu.constant dense<1> : tensor<3x2xi32>
  %2 = tpu.scatter_rows add %1 into %0 at %i along 1 : (tensor<3x4xi32>, tensor<2xi64>, tensor<3x2xi32>) -> tensor<3x4xi32>
  return %2 : tensor<3x4xi32>
}
