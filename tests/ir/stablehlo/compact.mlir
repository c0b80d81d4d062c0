// RUN: tpu-opt --emit-stablehlo %s | FileCheck %s

// Results whose sizes depend on data are made at their largest; behind them comes how much there is.
// CHECK-LABEL: module @nonzero
// CHECK: -> (tensor<12x2xi64>, tensor<1xi64>
// CHECK: "stablehlo.reduce_window"
// CHECK: "stablehlo.scatter"
// CHECK: (tensor<13x2xi64>, tensor<12xi64>, tensor<12x2xi64>) -> tensor<13x2xi64>
func.func @nonzero(%x: tensor<3x4xf32>) -> (tensor<12x2xi64>, tensor<1xi64>) {
  %0:2 = tpu.aten "aten::nonzero"(%x) [#tpu.tensor<0>] in f32
      : (tensor<3x4xf32>) -> (tensor<12x2xi64>, tensor<1xi64>)
  return %0#0, %0#1 : tensor<12x2xi64>, tensor<1xi64>
}

// Where the size is given, what is behind the last is filled.
// CHECK-LABEL: module @nonzero_static
// CHECK: -> (tensor<5x2xi64>
// CHECK: "stablehlo.select"
func.func @nonzero_static(%x: tensor<3x4xf32>) -> tensor<5x2xi64> {
  %0 = tpu.aten "aten::nonzero_static"(%x) [#tpu.tensor<0>, 5, -1] in f32 : (tensor<3x4xf32>) -> tensor<5x2xi64>
  return %0 : tensor<5x2xi64>
}

// CHECK-LABEL: module @masked_select
// CHECK: -> (tensor<12xf32>, tensor<1xi64>
// CHECK: "stablehlo.scatter"
func.func @masked_select(%x: tensor<3x4xf32>, %m: tensor<4xi1>) -> (tensor<12xf32>, tensor<1xi64>) {
  %0:2 = tpu.aten "aten::masked_select"(%x, %m) [#tpu.tensor<0>, #tpu.tensor<1>] in f32
      : (tensor<3x4xf32>, tensor<4xi1>) -> (tensor<12xf32>, tensor<1xi64>)
  return %0#0, %0#1 : tensor<12xf32>, tensor<1xi64>
}

// Sorted; the first of each run of equals, each element's run, and the runs' lengths.
// CHECK-LABEL: module @unique
// CHECK: -> (tensor<12xi64>, tensor<2x6xi64>, tensor<12xi64>, tensor<3xi64>
// CHECK: "stablehlo.sort"
func.func @unique(%x: tensor<2x6xi64>) -> (tensor<12xi64>, tensor<2x6xi64>, tensor<12xi64>, tensor<3xi64>) {
  %0:4 = tpu.aten "aten::_unique2"(%x) [#tpu.tensor<0>, true, true, true] in i64
      : (tensor<2x6xi64>) -> (tensor<12xi64>, tensor<2x6xi64>, tensor<12xi64>, tensor<3xi64>)
  return %0#0, %0#1, %0#2, %0#3 : tensor<12xi64>, tensor<2x6xi64>, tensor<12xi64>, tensor<3xi64>
}
