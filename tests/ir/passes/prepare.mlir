// RUN: tpu-opt %s --split-input-file --share-softmax --prepare-dots --split-reductions --decompose-windows | FileCheck %s

// A matrix that lies turned stays as it is.
// CHECK-LABEL: @dot
// CHECK-NOT: tpu.transpose
// CHECK: tpu.dot %arg0, %arg1 batch [] x [] contract [0] x [0] {triangle = #tpu<triangle lhs_upper>}
func.func @dot(%a: tensor<7x5xf32>, %b: tensor<7x6xf32>) -> tensor<5x6xf32> {
  %0 = tpu.dot %a, %b batch [] x [] contract [0] x [0] {triangle = #tpu<triangle lhs_upper>} : (tensor<7x5xf32>, tensor<7x6xf32>) -> tensor<5x6xf32>
  return %0 : tensor<5x6xf32>
}

// -----
// A linear layer's backward reads one view both ways: it is written once.
// CHECK-LABEL: @read_both_ways
// CHECK: %[[V:.*]] = tpu.reshape {{.*}} -> tensor<12x6xf32>
// CHECK: tpu.dot %[[V]], %arg1 batch [] x [] contract [1] x [0]
// CHECK: tpu.dot %[[V]], %arg2 batch [] x [] contract [0] x [0]
func.func @read_both_ways(%x: tensor<3x12x2xf32>, %w: tensor<6x5xf32>, %y: tensor<12x4xf32>)
    -> (tensor<12x5xf32>, tensor<6x4xf32>) {
  %0 = tpu.transpose %x [1, 0, 2] : (tensor<3x12x2xf32>) -> tensor<12x3x2xf32>
  %1 = tpu.reshape %0 : (tensor<12x3x2xf32>) -> tensor<12x6xf32>
  %2 = tpu.dot %1, %w batch [] x [] contract [1] x [0] : (tensor<12x6xf32>, tensor<6x5xf32>) -> tensor<12x5xf32>
  %3 = tpu.dot %1, %y batch [] x [] contract [0] x [0] : (tensor<12x6xf32>, tensor<12x4xf32>) -> tensor<6x4xf32>
  return %2, %3 : tensor<12x5xf32>, tensor<6x4xf32>
}

// -----
// Integers have no matrix library.
// CHECK-LABEL: @integer_dot
// CHECK-NOT: tpu.dot
// CHECK: tpu.reduce sum
func.func @integer_dot(%a: tensor<5x7xi64>, %b: tensor<7x6xi64>) -> tensor<5x6xi64> {
  %0 = tpu.dot %a, %b batch [] x [] contract [1] x [0] : (tensor<5x7xi64>, tensor<7x6xi64>) -> tensor<5x6xi64>
  return %0 : tensor<5x6xi64>
}

// -----
// A right side that lies turned stays as it is: the sum runs along its rows.
// CHECK-LABEL: @turned_integer_dot
// CHECK-NOT: tpu.transpose
// CHECK: tpu.reduce sum {{.*}} [2]
func.func @turned_integer_dot(%a: tensor<5x7xi64>, %b: tensor<9x7xi64>) -> tensor<5x9xi64> {
  %0 = tpu.dot %a, %b batch [] x [] contract [1] x [1] : (tensor<5x7xi64>, tensor<9x7xi64>) -> tensor<5x9xi64>
  return %0 : tensor<5x9xi64>
}

// -----
// Small matrices and a vector each are summed along the matrix, as it lies, and with what makes and reads them.
// CHECK-LABEL: @vectors
// CHECK-NOT: tpu.dot
// CHECK: tpu.reduce sum {{.*}} [3] : (tensor<3x1x9x7xf32>)
// CHECK: tpu.reduce sum {{.*}} [2] : (tensor<3x1x7x9xf32>)
func.func @vectors(%a: tensor<3x9x7xf32>, %b: tensor<3x7x1xf32>, %c: tensor<3x1x7xf32>, %d: tensor<3x7x9xf32>)
    -> (tensor<3x9x1xf32>, tensor<3x1x9xf32>) {
  %0 = tpu.dot %a, %b batch [0] x [0] contract [2] x [1] : (tensor<3x9x7xf32>, tensor<3x7x1xf32>) -> tensor<3x9x1xf32>
  %1 = tpu.dot %c, %d batch [0] x [0] contract [2] x [1] : (tensor<3x1x7xf32>, tensor<3x7x9xf32>) -> tensor<3x1x9xf32>
  return %0, %1 : tensor<3x9x1xf32>, tensor<3x1x9xf32>
}

// -----
// So are small products of a batch, larger ones where whole vectors lie along the right side.
// CHECK-LABEL: @many_small
// CHECK-NOT: tpu.dot
// CHECK: tpu.reduce sum {{.*}} [3] : (tensor<90x3x3x3xf32>)
// CHECK: tpu.reduce sum {{.*}} [2] : (tensor<90x16x16x16xf32>)
// CHECK: tpu.dot {{.*}} : (tensor<90x16x16xf32>, tensor<90x16x16xf32>)
// CHECK: tpu.dot {{.*}} : (tensor<90x9x9xf32>, tensor<90x9x9xf32>)
// CHECK: tpu.dot {{.*}} : (tensor<3x3xf32>, tensor<3x3xf32>)
func.func @many_small(%a: tensor<90x3x3xf32>, %b: tensor<90x16x16xf32>, %c: tensor<90x9x9xf32>, %d: tensor<3x3xf32>)
    -> (tensor<90x3x3xf32>, tensor<90x16x16xf32>, tensor<90x16x16xf32>, tensor<90x9x9xf32>, tensor<3x3xf32>) {
  %0 = tpu.dot %a, %a batch [0] x [0] contract [2] x [1] : (tensor<90x3x3xf32>, tensor<90x3x3xf32>) -> tensor<90x3x3xf32>
  %1 = tpu.dot %b, %b batch [0] x [0] contract [2] x [1] : (tensor<90x16x16xf32>, tensor<90x16x16xf32>) -> tensor<90x16x16xf32>
  %2 = tpu.dot %b, %b batch [0] x [0] contract [2] x [2] : (tensor<90x16x16xf32>, tensor<90x16x16xf32>) -> tensor<90x16x16xf32>
  %3 = tpu.dot %c, %c batch [0] x [0] contract [2] x [1] : (tensor<90x9x9xf32>, tensor<90x9x9xf32>) -> tensor<90x9x9xf32>
  %4 = tpu.dot %d, %d batch [] x [] contract [1] x [0] : (tensor<3x3xf32>, tensor<3x3xf32>) -> tensor<3x3xf32>
  return %0, %1, %2, %3, %4 : tensor<90x3x3xf32>, tensor<90x16x16xf32>, tensor<90x16x16xf32>, tensor<90x9x9xf32>, tensor<3x3xf32>
}

// -----
// There is nothing to sum in an outer product, rounded once.
// CHECK-LABEL: @outer
// CHECK-NOT: tpu.dot
// CHECK-NOT: tpu.reduce
// CHECK: tpu.mul {{.*}} : tensor<9000x1x700xf32>
func.func @outer(%a: tensor<9000x1xbf16>, %b: tensor<1x700xbf16>) -> tensor<9000x700xbf16> {
  %0 = tpu.dot %a, %b batch [] x [] contract [1] x [0] : (tensor<9000x1xbf16>, tensor<1x700xbf16>) -> tensor<9000x700xbf16>
  return %0 : tensor<9000x700xbf16>
}

// -----
// One row and weights that are widened first: the sum reads them as they lie, a byte each.
// CHECK-LABEL: @quantized
// CHECK-NOT: tpu.dot
// CHECK: tpu.convert %arg1 : (tensor<900x70xi8>) -> tensor<900x70xf32>
// CHECK: tpu.reduce sum {{.*}} [2]
func.func @quantized(%a: tensor<1x70xbf16>, %w: tensor<900x70xi8>) -> tensor<1x900xbf16> {
  %0 = tpu.convert %w : (tensor<900x70xi8>) -> tensor<900x70xbf16>
  %1 = tpu.dot %a, %0 batch [] x [] contract [1] x [1] : (tensor<1x70xbf16>, tensor<900x70xbf16>) -> tensor<1x900xbf16>
  return %1 : tensor<1x900xbf16>
}

// -----
// CHECK-LABEL: @float8
// CHECK-NOT: tpu.dot
// CHECK: tpu.reduce sum {{.*}} [2]
func.func @float8(%a: tensor<1x70xf32>, %w: tensor<900x70x!tpu.opaque<"f8E4M3FN">>) -> tensor<1x900xf32> {
  %0 = tpu.convert %w : (tensor<900x70x!tpu.opaque<"f8E4M3FN">>) -> tensor<900x70xf32>
  %1 = tpu.dot %a, %0 batch [] x [] contract [1] x [1] : (tensor<1x70xf32>, tensor<900x70xf32>) -> tensor<1x900xf32>
  return %1 : tensor<1x900xf32>
}

// -----
// The same where they are scaled, too, and lie turned.
// CHECK-LABEL: @scaled
// CHECK-NOT: tpu.dot
// CHECK: tpu.reduce sum {{.*}} [2]
func.func @scaled(%a: tensor<2x7xf32>, %w: tensor<9x7xi8>, %s: tensor<7x9xf32>) -> tensor<2x9xf32> {
  %0 = tpu.transpose %w [1, 0] : (tensor<9x7xi8>) -> tensor<7x9xi8>
  %1 = tpu.convert %0 : (tensor<7x9xi8>) -> tensor<7x9xf32>
  %2 = tpu.mul %1, %s : tensor<7x9xf32>
  %3 = tpu.dot %a, %2 batch [] x [] contract [1] x [0] : (tensor<2x7xf32>, tensor<7x9xf32>) -> tensor<2x9xf32>
  return %3 : tensor<2x9xf32>
}

// -----
// Many rows, or weights that somebody else reads widened: a product.
// CHECK-LABEL: @widened_once
// CHECK-COUNT-2: tpu.dot
func.func @widened_once(%a: tensor<5x7xf32>, %b: tensor<1x70xf32>, %w: tensor<9x7xi8>, %v: tensor<300x70xi8>)
    -> (tensor<5x9xf32>, tensor<1x300xf32>, tensor<300x70xf32>) {
  %0 = tpu.convert %w : (tensor<9x7xi8>) -> tensor<9x7xf32>
  %1 = tpu.dot %a, %0 batch [] x [] contract [1] x [1] : (tensor<5x7xf32>, tensor<9x7xf32>) -> tensor<5x9xf32>
  %2 = tpu.convert %v : (tensor<300x70xi8>) -> tensor<300x70xf32>
  %3 = tpu.dot %b, %2 batch [] x [] contract [1] x [1] : (tensor<1x70xf32>, tensor<300x70xf32>) -> tensor<1x300xf32>
  return %1, %3, %2 : tensor<5x9xf32>, tensor<1x300xf32>, tensor<300x70xf32>
}

// -----
// CHECK-LABEL: @long_sum
// CHECK: tpu.reduce sum {{.*}} [2]
// CHECK: tpu.reduce sum {{.*}} [1]
func.func @long_sum(%x: tensor<1048576xf32>) -> tensor<f32> {
  %0 = tpu.reduce sum %x [0] : (tensor<1048576xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----
// CHECK-LABEL: @pool
// CHECK-COUNT-3: tpu.max
// CHECK-NOT: tpu.window_reduce
func.func @pool(%x: tensor<1x4x4xf32>) -> tensor<1x2x2xf32> {
  %0 = tpu.window_reduce max %x window [2, 2] strides [2, 2] dilation [1, 1] padding [0, 0] [0, 0]
      : (tensor<1x4x4xf32>) -> tensor<1x2x2xf32>
  return %0 : tensor<1x2x2xf32>
}

// -----
// exp(x - logsumexp(x)) is the softmax that is there.
// CHECK-LABEL: @rebuilt_softmax
// CHECK: tpu.exp
// CHECK-NOT: tpu.exp
// CHECK: %[[W:.*]] = tpu.mul
// CHECK-NOT: tpu.log
// CHECK: return %[[W]], %[[W]]
func.func @rebuilt_softmax(%x: tensor<40x50xf32>) -> (tensor<40x50xf32>, tensor<40x50xf32>) {
  %zero = tpu.constant dense<0.0> : tensor<40x1xf32>
  %one = tpu.constant dense<1.0> : tensor<40x1xf32>
  %low = tpu.constant dense<0xFF800000> : tensor<40x1xf32>
  %0 = tpu.reduce max %x [1] : (tensor<40x50xf32>) -> tensor<40xf32>
  %1 = tpu.reshape %0 : (tensor<40xf32>) -> tensor<40x1xf32>
  %2 = tpu.compare eq %1, %low : tensor<40x1xf32>
  %shift = tpu.select %2, %zero, %1 : tensor<40x1xi1>, tensor<40x1xf32>
  %3 = tpu.broadcast %shift [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %4 = tpu.sub %x, %3 : tensor<40x50xf32>
  %e = tpu.exp %4 : tensor<40x50xf32>
  %5 = tpu.reduce sum %e [1] : (tensor<40x50xf32>) -> tensor<40xf32>
  %sum = tpu.reshape %5 : (tensor<40xf32>) -> tensor<40x1xf32>
  %6 = tpu.div %one, %sum : tensor<40x1xf32>
  %7 = tpu.compare eq %sum, %zero : tensor<40x1xf32>
  %8 = tpu.select %7, %zero, %6 : tensor<40x1xi1>, tensor<40x1xf32>
  %9 = tpu.broadcast %8 [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %weights = tpu.mul %e, %9 : tensor<40x50xf32>
  %10 = tpu.log %sum : tensor<40x1xf32>
  %lse = tpu.add %10, %shift : tensor<40x1xf32>
  %11 = tpu.compare eq %lse, %low : tensor<40x1xf32>
  %12 = tpu.select %11, %zero, %lse : tensor<40x1xi1>, tensor<40x1xf32>
  %13 = tpu.broadcast %12 [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %14 = tpu.sub %x, %13 : tensor<40x50xf32>
  %again = tpu.exp %14 : tensor<40x50xf32>
  return %weights, %again : tensor<40x50xf32>, tensor<40x50xf32>
}

// -----
// Of other scores it is computed.
// CHECK-LABEL: @other_scores
// CHECK: tpu.exp
// CHECK: tpu.exp
func.func @other_scores(%x: tensor<40x50xf32>, %y: tensor<40x50xf32>) -> (tensor<40x50xf32>, tensor<40x50xf32>) {
  %zero = tpu.constant dense<0.0> : tensor<40x1xf32>
  %one = tpu.constant dense<1.0> : tensor<40x1xf32>
  %low = tpu.constant dense<0xFF800000> : tensor<40x1xf32>
  %0 = tpu.reduce max %x [1] : (tensor<40x50xf32>) -> tensor<40xf32>
  %1 = tpu.reshape %0 : (tensor<40xf32>) -> tensor<40x1xf32>
  %2 = tpu.compare eq %1, %low : tensor<40x1xf32>
  %shift = tpu.select %2, %zero, %1 : tensor<40x1xi1>, tensor<40x1xf32>
  %3 = tpu.broadcast %shift [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %4 = tpu.sub %x, %3 : tensor<40x50xf32>
  %e = tpu.exp %4 : tensor<40x50xf32>
  %5 = tpu.reduce sum %e [1] : (tensor<40x50xf32>) -> tensor<40xf32>
  %sum = tpu.reshape %5 : (tensor<40xf32>) -> tensor<40x1xf32>
  %6 = tpu.div %one, %sum : tensor<40x1xf32>
  %7 = tpu.compare eq %sum, %zero : tensor<40x1xf32>
  %8 = tpu.select %7, %zero, %6 : tensor<40x1xi1>, tensor<40x1xf32>
  %9 = tpu.broadcast %8 [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %weights = tpu.mul %e, %9 : tensor<40x50xf32>
  %10 = tpu.log %sum : tensor<40x1xf32>
  %lse = tpu.add %10, %shift : tensor<40x1xf32>
  %11 = tpu.compare eq %lse, %low : tensor<40x1xf32>
  %12 = tpu.select %11, %zero, %lse : tensor<40x1xi1>, tensor<40x1xf32>
  %13 = tpu.broadcast %12 [0, 1] : (tensor<40x1xf32>) -> tensor<40x50xf32>
  %14 = tpu.sub %y, %13 : tensor<40x50xf32>
  %again = tpu.exp %14 : tensor<40x50xf32>
  return %weights, %again : tensor<40x50xf32>, tensor<40x50xf32>
}

// -----
// Keys that repeat for the heads of a group are read where they lie.
// CHECK-LABEL: @repeated
// CHECK: %[[KEYS:.*]] = tpu.broadcast %{{.*}} -> tensor<2x3x4x50x16xf32>
// CHECK: %[[QUERIES:.*]] = tpu.reshape %arg0 : (tensor<2x12x40x16xf32>) -> tensor<2x3x4x40x16xf32>
// CHECK: tpu.dot %[[QUERIES]], %[[KEYS]] batch [0, 1, 2] x [0, 1, 2] contract [4] x [4]
func.func @repeated(%q: tensor<2x12x40x16xf32>, %k: tensor<2x3x50x16xf32>) -> tensor<2x12x40x50xf32> {
  %0 = tpu.reshape %k : (tensor<2x3x50x16xf32>) -> tensor<2x3x1x50x16xf32>
  %1 = tpu.broadcast %0 [0, 1, 2, 3, 4] : (tensor<2x3x1x50x16xf32>) -> tensor<2x3x4x50x16xf32>
  %2 = tpu.reshape %1 : (tensor<2x3x4x50x16xf32>) -> tensor<2x12x50x16xf32>
  %3 = tpu.dot %q, %2 batch [0, 1] x [0, 1] contract [3] x [3] : (tensor<2x12x40x16xf32>, tensor<2x12x50x16xf32>) -> tensor<2x12x40x50xf32>
  return %3 : tensor<2x12x40x50xf32>
}

// -----
// What repeats as a whole does not lie by groups.
// CHECK-LABEL: @tiled
// CHECK: tpu.dot %arg0, %{{.*}} batch [0, 1] x [0, 1] contract [3] x [3]
func.func @tiled(%q: tensor<2x12x40x16xf32>, %k: tensor<2x3x50x16xf32>) -> tensor<2x12x40x50xf32> {
  %0 = tpu.broadcast %k [0, 2, 3, 4] : (tensor<2x3x50x16xf32>) -> tensor<2x4x3x50x16xf32>
  %1 = tpu.reshape %0 : (tensor<2x4x3x50x16xf32>) -> tensor<2x12x50x16xf32>
  %2 = tpu.dot %q, %1 batch [0, 1] x [0, 1] contract [3] x [3] : (tensor<2x12x40x16xf32>, tensor<2x12x50x16xf32>) -> tensor<2x12x40x50xf32>
  return %2 : tensor<2x12x40x50xf32>
}

// -----
// Of a few columns many rows are summed side by side, and what is left of them apart.
// CHECK-LABEL: @few_columns
// CHECK: tpu.reduce sum {{.*}} [2] : (tensor<1x16x65x288xf32>)
// CHECK: tpu.reduce sum {{.*}} [1] : (tensor<1x1536x3xf64>)
// CHECK: tpu.reduce sum {{.*}} [1] : (tensor<1x160x3xf32>)
func.func @few_columns(%a: tensor<100000x3xf32>) -> tensor<3xf32> {
  %0 = tpu.reduce sum %a [0] : (tensor<100000x3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
