// RUN: tpu-opt %s --split-input-file --place-updates | FileCheck %s

// Gradients into a bucket: each is written in its place.
// CHECK-LABEL: @bucket
// CHECK: %[[U:.*]] = tpu.update_slice %arg1 into %arg0 at [4096] by [1] {in_place}
// CHECK: tpu.update_slice {{.*}} into %[[U]] at [0] by [1] {in_place}
func.func @bucket(%bucket: tensor<65536xf32>, %a: tensor<1000xf32>, %b: tensor<8x9xf32>) -> tensor<65536xf32> {
  %0 = tpu.update_slice %a into %bucket at [4096] by [1] : tensor<1000xf32> into tensor<65536xf32>
  %flat = tpu.reshape %b : (tensor<8x9xf32>) -> tensor<72xf32>
  %1 = tpu.update_slice %flat into %0 at [0] by [1] : tensor<72xf32> into tensor<65536xf32>
  return %1 : tensor<65536xf32>
}

// -----
// Rows are consecutive elements; columns are not, and few enough to be copied one by one, or too many.
// CHECK-LABEL: @rows
// CHECK: tpu.update_slice %arg1 into %arg0 at [3, 0] by [1, 1] {in_place}
// CHECK: tpu.update_slice %arg3 into %arg0 at [0, 3] by [1, 1] :
// CHECK: tpu.update_slice %arg2 into %arg0 at [0, 3] by [1, 1] {in_place}
func.func @rows(%x: tensor<256x256xf32>, %row: tensor<2x256xf32>, %column: tensor<256x1xf32>, %many: tensor<256x64xf32>)
    -> (tensor<256x256xf32>, tensor<256x256xf32>, tensor<256x256xf32>) {
  %0 = tpu.update_slice %row into %x at [3, 0] by [1, 1] : tensor<2x256xf32> into tensor<256x256xf32>
  %1 = tpu.update_slice %column into %x at [0, 3] by [1, 1] : tensor<256x1xf32> into tensor<256x256xf32>
  %2 = tpu.update_slice %many into %x at [0, 3] by [1, 1] : tensor<256x64xf32> into tensor<256x256xf32>
  return %0, %1, %2 : tensor<256x256xf32>, tensor<256x256xf32>, tensor<256x256xf32>
}

// -----
// The gradients of a loop's slices, summed: each is added to its part, which the others leave alone.
// CHECK-LABEL: @slices
// CHECK-DAG: %[[A:.*]] = tpu.slice %arg0 [0, 7, 0] to [64, 8, 16]
// CHECK-DAG: %[[B:.*]] = tpu.slice %arg0 [0, 6, 0] to [64, 7, 16]
// CHECK-DAG: %[[ASUM:.*]] = tpu.add %[[A]], %arg1
// CHECK-DAG: %[[BSUM:.*]] = tpu.add %[[B]], %arg2
// CHECK: %[[U:.*]] = tpu.update_slice %[[ASUM]] into %arg0 at [0, 7, 0] by [1, 1, 1] {in_place}
// CHECK: %[[V:.*]] = tpu.update_slice %[[BSUM]] into %[[U]] at [0, 6, 0] by [1, 1, 1] {in_place}
// CHECK: return %[[V]]
func.func @slices(%sum: tensor<64x32x16xf32>, %a: tensor<64x1x16xf32>, %b: tensor<64x1x16xf32>) -> tensor<64x32x16xf32> {
  %zero = tpu.constant dense<0.0> : tensor<64x32x16xf32>
  %0 = tpu.update_slice %a into %zero at [0, 7, 0] by [1, 1, 1] : tensor<64x1x16xf32> into tensor<64x32x16xf32>
  %1 = tpu.add %sum, %0 : tensor<64x32x16xf32>
  %2 = tpu.update_slice %b into %zero at [0, 6, 0] by [1, 1, 1] : tensor<64x1x16xf32> into tensor<64x32x16xf32>
  %3 = tpu.add %2, %1 : tensor<64x32x16xf32>
  return %3 : tensor<64x32x16xf32>
}

// -----
// The same rounded; twice to one part, whose second sum reads the first.
// CHECK-LABEL: @rounded_slices
// CHECK: tpu.slice %arg0
// CHECK: %[[SUM:.*]] = tpu.convert {{.*}} -> tensor<64x1x16xbf16>
// CHECK: %[[U:.*]] = tpu.update_slice %[[SUM]] into %arg0 at [0, 7, 0]
// CHECK: tpu.slice %[[U]] [0, 7, 0] to [64, 8, 16]
func.func @rounded_slices(%sum: tensor<64x32x16xbf16>, %a: tensor<64x1x16xbf16>) -> tensor<64x32x16xbf16> {
  %zero = tpu.constant dense<0.0> : tensor<64x32x16xbf16>
  %part = tpu.update_slice %a into %zero at [0, 7, 0] by [1, 1, 1] : tensor<64x1x16xbf16> into tensor<64x32x16xbf16>
  %0 = tpu.convert %part : (tensor<64x32x16xbf16>) -> tensor<64x32x16xf32>
  %1 = tpu.convert %sum : (tensor<64x32x16xbf16>) -> tensor<64x32x16xf32>
  %2 = tpu.add %1, %0 : tensor<64x32x16xf32>
  %3 = tpu.convert %2 : (tensor<64x32x16xf32>) -> tensor<64x32x16xbf16>
  %again = tpu.update_slice %a into %zero at [0, 7, 0] by [1, 1, 1] : tensor<64x1x16xbf16> into tensor<64x32x16xbf16>
  %4 = tpu.convert %again : (tensor<64x32x16xbf16>) -> tensor<64x32x16xf32>
  %5 = tpu.convert %3 : (tensor<64x32x16xbf16>) -> tensor<64x32x16xf32>
  %6 = tpu.add %5, %4 : tensor<64x32x16xf32>
  %7 = tpu.convert %6 : (tensor<64x32x16xf32>) -> tensor<64x32x16xbf16>
  return %7 : tensor<64x32x16xbf16>
}

// -----
// Not a base that is computed here, or small, or mostly written; nor windows that meet, or what somebody reads between.
// CHECK-LABEL: @others
// CHECK-NOT: in_place
func.func @others(%x: tensor<65536xf32>, %small: tensor<100xf32>, %a: tensor<60xf32>, %b: tensor<60000xf32>)
    -> (tensor<65536xf32>, tensor<100xf32>, tensor<65536xf32>, tensor<65536xf32>, tensor<65536xf32>, tensor<65536xf32>) {
  %computed = tpu.exp %x : tensor<65536xf32>
  %0 = tpu.update_slice %a into %computed at [0] by [1] : tensor<60xf32> into tensor<65536xf32>
  %1 = tpu.update_slice %a into %small at [0] by [1] : tensor<60xf32> into tensor<100xf32>
  %2 = tpu.update_slice %b into %x at [0] by [1] : tensor<60000xf32> into tensor<65536xf32>
  %3 = tpu.update_slice %a into %x at [30] by [1] : tensor<60xf32> into tensor<65536xf32>
  %4 = tpu.update_slice %a into %3 at [80] by [1] : tensor<60xf32> into tensor<65536xf32>
  %5 = tpu.update_slice %a into %x at [300] by [1] : tensor<60xf32> into tensor<65536xf32>
  %6 = tpu.update_slice %a into %5 at [500] by [1] : tensor<60xf32> into tensor<65536xf32>
  %7 = tpu.neg %5 : tensor<65536xf32>
  return %0, %1, %2, %4, %6, %7 : tensor<65536xf32>, tensor<100xf32>, tensor<65536xf32>, tensor<65536xf32>,
      tensor<65536xf32>, tensor<65536xf32>
}

// -----
// The parts of a stack are computed where they lie in it.
// CHECK-LABEL: @stack
// CHECK: %[[U:.*]] = tpu.undefined : tensor<3x128x256xf32>
// CHECK: %[[FIRST:.*]] = tpu.update_slice %{{.*}} into %[[U]] at [0, 0, 0] by [1, 1, 1] {in_place}
// CHECK: tpu.update_slice %{{.*}} into %[[FIRST]] at [1, 0, 0] by [1, 1, 1] {in_place} : tensor<2x128x256xf32>
func.func @stack(%x: tensor<128x256xf32>, %y: tensor<2x128x256xf32>) -> tensor<3x32768xf32> {
  %a = tpu.exp %x : tensor<128x256xf32>
  %first = tpu.reshape %a : (tensor<128x256xf32>) -> tensor<1x128x256xf32>
  %others = tpu.neg %y : tensor<2x128x256xf32>
  %0 = tpu.concat %first, %others along 0 : (tensor<1x128x256xf32>, tensor<2x128x256xf32>) -> tensor<3x128x256xf32>
  %1 = tpu.reshape %0 : (tensor<3x128x256xf32>) -> tensor<3x32768xf32>
  return %1 : tensor<3x32768xf32>
}

// -----
// Not parts that are copied in any case, or lie in pieces; nor a concatenation that is read here only.
// CHECK-LABEL: @other_concats
// CHECK-NOT: tpu.undefined
func.func @other_concats(%x: tensor<128x256xf32>) -> (tensor<256x256xf32>, tensor<128x512xf32>, tensor<256x256xf32>) {
  %a = tpu.exp %x : tensor<128x256xf32>
  %0 = tpu.concat %x, %a along 0 : (tensor<128x256xf32>, tensor<128x256xf32>) -> tensor<256x256xf32>
  %1 = tpu.concat %a, %a along 1 : (tensor<128x256xf32>, tensor<128x256xf32>) -> tensor<128x512xf32>
  %2 = tpu.concat %a, %a along 0 : (tensor<128x256xf32>, tensor<128x256xf32>) -> tensor<256x256xf32>
  %3 = tpu.neg %2 : tensor<256x256xf32>
  return %0, %1, %3 : tensor<256x256xf32>, tensor<128x512xf32>, tensor<256x256xf32>
}
