// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// CHECK-LABEL: module @conv
// CHECK: "stablehlo.convolution"(%arg0, %arg1) {dimension_numbers = #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>, window_strides = array<i64: 2, 2>, padding = dense<{{\[\[}}1, 1], [1, 1]]> : tensor<2x2xi64>, lhs_dilation = array<i64: 1, 1>, rhs_dilation = array<i64: 1, 1>, feature_group_count = 1 : i64, batch_group_count = 1 : i64, precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]} : (tensor<2x4x8x8xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x4x4xf32>
func.func @conv(%x: tensor<2x4x8x8xf32>, %w: tensor<6x4x3x3xf32>) -> tensor<2x6x4x4xf32> {
  %0 = tpu.conv %x, %w strides [2, 2] padding [1, 1] [1, 1] dilation [1, 1] x [1, 1] groups 1 x 1
      : (tensor<2x4x8x8xf32>, tensor<6x4x3x3xf32>) -> tensor<2x6x4x4xf32>
  return %0 : tensor<2x6x4x4xf32>
}

// The gradient of a grouped convolution's weight: batch groups.
// CHECK-LABEL: module @weight
// CHECK: batch_group_count = 2 : i64
func.func @weight(%x: tensor<4x2x8xf32>, %dy: tensor<6x2x8xf32>) -> tensor<2x6x3xf32> {
  %0 = tpu.conv %x, %dy strides [1] padding [1] [1] dilation [1] x [1] groups 1 x 2
      : (tensor<4x2x8xf32>, tensor<6x2x8xf32>) -> tensor<2x6x3xf32>
  return %0 : tensor<2x6x3xf32>
}

// The same with batch and channels the other way round: as activations and gradients lie.
// CHECK-LABEL: module @swapped
// CHECK: dimension_numbers = #stablehlo.conv<[f, b, 0]x[i, o, 0]->[f, b, 0]>
// CHECK-SAME: batch_group_count = 2 : i64
func.func @swapped(%x: tensor<2x4x8xf32>, %dy: tensor<2x6x8xf32>) -> tensor<6x2x3xf32> {
  %0 = tpu.conv %x, %dy strides [1] padding [1] [1] dilation [1] x [1] groups 1 x 2 swapped
      : (tensor<2x4x8xf32>, tensor<2x6x8xf32>) -> tensor<6x2x3xf32>
  return %0 : tensor<6x2x3xf32>
}
