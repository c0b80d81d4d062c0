// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// An index out of range is told by the module's last result.
// CHECK-LABEL: module @take
// CHECK: -> (tensor<5x8xf32>, tensor<i1>)
// CHECK: comparison_direction LT
// CHECK: comparison_direction GE
// CHECK: "stablehlo.gather"(%arg0, %arg1) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 8>, indices_are_sorted = false}
func.func @take(%x: tensor<4x8xf32>, %i: tensor<5xi64>) -> tensor<5x8xf32> {
  %0 = tpu.take %x at %i along 0 : (tensor<4x8xf32>, tensor<5xi64>) -> tensor<5x8xf32>
  return %0 : tensor<5x8xf32>
}

// CHECK-LABEL: module @take_along
// CHECK: "stablehlo.slice"(%arg0) {start_indices = array<i64: 0, 0>, limit_indices = array<i64: 2, 8>
// CHECK: "stablehlo.gather"({{.*}}) {dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [1], operand_batching_dims = [0], start_indices_batching_dims = [0], start_index_map = [1], index_vector_dim = 2>, slice_sizes = array<i64: 1, 1>
func.func @take_along(%x: tensor<4x8xf32>, %i: tensor<2x3xi64>) -> tensor<2x3xf32> {
  %0 = tpu.take_along %x at %i along 1 : (tensor<4x8xf32>, tensor<2x3xi64>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32>
}

// CHECK-LABEL: module @scatter
// CHECK: "stablehlo.scatter"
// CHECK: "stablehlo.add"
// CHECK: {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, indices_are_sorted = false, unique_indices = false}
// CHECK: "stablehlo.dynamic_update_slice"(%arg0
func.func @scatter(%x: tensor<4x8xf32>, %i: tensor<2x3xi64>, %u: tensor<2x3xf32>) -> tensor<4x8xf32> {
  %0 = tpu.scatter add %u into %x at %i along 1 : (tensor<4x8xf32>, tensor<2x3xi64>, tensor<2x3xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// CHECK-LABEL: module @rows
// CHECK: "stablehlo.scatter"
// CHECK: update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1
func.func @rows(%x: tensor<4x8xf32>, %i: tensor<3xi64>, %u: tensor<3x8xf32>) -> tensor<4x8xf32> {
  %0 = tpu.scatter_rows set %u into %x at %i along 0
      : (tensor<4x8xf32>, tensor<3xi64>, tensor<3x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}

// Rows of a half type are summed in f32; what goes to no row is left out, as StableHLO does.
// CHECK-LABEL: module @taken
// CHECK: %[[ROWS:.*]] = "stablehlo.gather"(%arg0, %arg1)
// CHECK: %[[WIDE:.*]] = "stablehlo.convert"(%[[ROWS]]) : (tensor<3x8xbf16>) -> tensor<3x8xf32>
// CHECK: %[[WEIGHED:.*]] = "stablehlo.multiply"(%[[WIDE]]
// CHECK: "stablehlo.scatter"({{.*}}, %arg2, %[[WEIGHED]])
// CHECK: update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false
func.func @taken(%x: tensor<4x8xbf16>, %i: tensor<3xi64>, %to: tensor<3xi64>, %w: tensor<3xf32>) -> tensor<2x8xf32> {
  %0 = tpu.sum_taken %x at %i times %w to %to
      : (tensor<4x8xbf16>, tensor<3xi64>, tensor<3xi64>, tensor<3xf32>) -> tensor<2x8xf32>
  return %0 : tensor<2x8xf32>
}

// CHECK-LABEL: module @taken_in_order
// CHECK: indices_are_sorted = true
func.func @taken_in_order(%x: tensor<4x8xf32>, %i: tensor<4xi64>) -> tensor<3x8xf32> {
  %to = tpu.constant dense<[0, 0, 2, 5]> : tensor<4xi64>
  %0 = tpu.sum_taken %x at %i to sorted %to : (tensor<4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> tensor<3x8xf32>
  return %0 : tensor<3x8xf32>
}
