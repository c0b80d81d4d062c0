// RUN: tpu-opt --emit-exchanges 2 | FileCheck %s

// The shape is kept flat while it travels.
// CHECK-LABEL: module @all_reduce_sum_f32 attributes {mhlo.num_replicas = 2 : i32}
// CHECK: %[[X:.*]] = "stablehlo.reshape"(%arg0) : (tensor<100x10xf32>) -> tensor<1000xf32>
// CHECK: "stablehlo.all_reduce"(%[[X]]) ({
// CHECK: "stablehlo.add"
// CHECK: {replica_groups = dense<{{\[}}[0, 1]]> : tensor<1x2xi64>} : (tensor<1000xf32>) -> tensor<1000xf32>

// XLA's own minimum between devices loses NaN: gathered, and folded in the order of the ranks.
// CHECK-LABEL: module @all_reduce_min_f32
// CHECK: "stablehlo.all_gather"
// CHECK: "stablehlo.minimum"

// The scale comes after the elements.
// CHECK-LABEL: module @all_reduce_premul_sum_f32
// CHECK-SAME: {
// CHECK: @main(%arg0: tensor<100x10xf32>, %arg1: tensor<f32>)
// CHECK: "stablehlo.multiply"
// CHECK: "stablehlo.all_reduce"

// CHECK-LABEL: module @reduce_scatter_sum_f32
// CHECK: "stablehlo.reduce_scatter"
// CHECK: scatter_dimension = 0

// CHECK-LABEL: module @all_gather_f32
// CHECK: "stablehlo.all_gather"(%{{.*}}) {all_gather_dim = 0 : i64,
// CHECK-LABEL: module @all_to_all_f32
// CHECK: "stablehlo.all_to_all"

// Everybody but the root brings zeros: the bits are added.
// CHECK-LABEL: module @broadcast_f32_move
// CHECK: "stablehlo.bitcast_convert"(%arg0) : (tensor<1000xf32>) -> tensor<1000xui32>
// CHECK: "stablehlo.all_reduce"
// CHECK-LABEL: module @send_f32_move
// CHECK: "stablehlo.collective_permute"(%arg0) {source_target_pairs = dense<{{\[}}[0, 1]]> : tensor<1x2xi64>}
// CHECK-LABEL: module @scatter_f32_pack attributes {mhlo.num_replicas = 1 : i32}
// CHECK: "stablehlo.constant"() {value = dense<0.000000e+00> : tensor<2000xf32>}

// Sums of 16-bit floats are sums of f32, rounded once; a mean before that.
// CHECK-LABEL: module @all_reduce_avg_bf16
// CHECK: "stablehlo.convert"({{.*}}) : (tensor<1000xbf16>) -> tensor<1000xf32>
// CHECK: "stablehlo.all_reduce"
// CHECK: "stablehlo.divide"
// CHECK: "stablehlo.convert"({{.*}}) : (tensor<1000xf32>) -> tensor<1000xbf16>

// CHECK-LABEL: module @all_reduce_min_i32
// CHECK: "stablehlo.all_reduce"
// CHECK-LABEL: module @all_reduce_bxor_i32
// CHECK: "stablehlo.all_gather"
// CHECK: "stablehlo.xor"
