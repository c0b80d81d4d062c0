// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// CHECK-LABEL: module @moves
// CHECK: "stablehlo.transpose"(%arg0) {permutation = array<i64: 1, 0>}
// CHECK: "stablehlo.reshape"
// CHECK: "stablehlo.slice"({{.*}}) {start_indices = array<i64: 1>, limit_indices = array<i64: 9>, strides = array<i64: 2>}
// CHECK: "stablehlo.broadcast_in_dim"({{.*}}) {broadcast_dimensions = array<i64: 1>}
// CHECK: "stablehlo.reverse"({{.*}}) {dimensions = array<i64: 1>}
// CHECK: "stablehlo.pad"({{.*}}) {edge_padding_low = array<i64: 0, 1>, edge_padding_high = array<i64: 0, 0>, interior_padding = array<i64: 0, 1>} : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x8xf32>
// CHECK: "stablehlo.concatenate"({{.*}}) {dimension = 0 : i64}
func.func @moves(%x: tensor<3x4xf32>) -> tensor<4x8xf32> {
  %c = tpu.constant dense<0.0> : tensor<f32>
  %0 = tpu.transpose %x [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
  %1 = tpu.reshape %0 : (tensor<4x3xf32>) -> tensor<12xf32>
  %2 = tpu.broadcast %1 [1] : (tensor<12xf32>) -> tensor<2x12xf32>
  %3 = tpu.slice %2 [0, 1] to [2, 9] by [1, 2] : (tensor<2x12xf32>) -> tensor<2x4xf32>
  %4 = tpu.reverse %3 [1] : tensor<2x4xf32>
  %5 = tpu.pad %4, %c low [0, 1] high [0, 0] interior [0, 1] : (tensor<2x4xf32>, tensor<f32>) -> tensor<2x8xf32>
  %6 = tpu.concat %5, %5 along 0 : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<4x8xf32>
  return %6 : tensor<4x8xf32>
}

// A window without gaps is StableHLO's own; one with gaps is a selection.
// CHECK-LABEL: module @updates
// CHECK: %arg0: tensor<8xf32> {tf.aliasing_output = 0 : i32}
// CHECK: "stablehlo.dynamic_update_slice"(%arg0, %arg1
// CHECK: %[[MASK:.*]] = "stablehlo.pad"{{.*}} -> tensor<8xi1>
// CHECK: %[[NEW:.*]] = "stablehlo.pad"(%arg1{{.*}} -> tensor<8xf32>
// CHECK: "stablehlo.select"(%[[MASK]], %[[NEW]]
func.func @updates(%x: tensor<8xf32>, %y: tensor<3xf32>) -> tensor<8xf32> {
  %0 = tpu.update_slice %y into %x at [2] by [1] : tensor<3xf32> into tensor<8xf32>
  %1 = tpu.update_slice %y into %0 at [1] by [2] : tensor<3xf32> into tensor<8xf32>
  return %1 : tensor<8xf32>
}

// CHECK-LABEL: module @counting
// CHECK: "stablehlo.iota"() {iota_dimension = 1 : i64} : () -> tensor<2x3xf32>
func.func @counting(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
  %0 = tpu.iota 1 : tensor<2x3xf32>
  %1 = tpu.add %0, %x : tensor<2x3xf32>
  return %1 : tensor<2x3xf32>
}

// CHECK-LABEL: module @bytes
// CHECK: "stablehlo.bitcast_convert"(%arg0) : (tensor<6xf32>) -> tensor<6x2xi16>
// CHECK: "stablehlo.reshape"{{.*}} -> tensor<12xi16>
// CHECK: "stablehlo.bitcast_convert"{{.*}} : (tensor<6x2xi16>) -> tensor<6xi32>
func.func @bytes(%x: tensor<6xf32>) -> (tensor<12xi16>, tensor<6xi32>) {
  %0 = tpu.bitcast %x : (tensor<6xf32>) -> tensor<12xi16>
  %1 = tpu.abs %0 : tensor<12xi16>
  %2 = tpu.bitcast %1 : (tensor<12xi16>) -> tensor<6xi32>
  return %0, %2 : tensor<12xi16>, tensor<6xi32>
}

// An argument that is returned, and a value that is returned twice, are one result at most.
// CHECK-LABEL: module @returned
// CHECK: func.func public @main(%arg0: tensor<4xf32>) -> (tensor<4xf32>)
func.func @returned(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %0 = tpu.exp %x : tensor<4xf32>
  return %x, %0, %0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}
