// RUN: tpu-opt %s --split-input-file --verify-diagnostics
// The numbered constraints of the dialect: each message cites the one that is broken.

func.func @reshape(%x: tensor<2x3xf32>) -> tensor<5xf32> {
  // expected-error @+1 {{C1: operand and result must have as many elements}}
  %0 = tpu.reshape %x : (tensor<2x3xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----
func.func @iota() -> tensor<4xi64> {
  // expected-error @+1 {{C1: dim 1 must be in [0, 1)}}
  %0 = tpu.iota 1 : tensor<4xi64>
  return %0 : tensor<4xi64>
}

// -----
func.func @broadcast(%x: tensor<2xf32>) -> tensor<3x4xf32> {
  // expected-error @+1 {{C2: operand dim 0 must be 1 or equal result dim 1}}
  %0 = tpu.broadcast %x [1] : (tensor<2xf32>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}

// -----
func.func @transpose(%x: tensor<2x3xf32>) -> tensor<3x2xf32> {
  // expected-error @+2 {{C1: permutation must name every dim once}}
  // expected-error @+1 {{failed to infer returned types}}
  %0 = tpu.transpose %x [0, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// -----
func.func @slice(%x: tensor<4xf32>) -> tensor<5xf32> {
  // expected-error @+2 {{C2: 0 <= start <= limit <= size and stride >= 1 must hold in each dim}}
  // expected-error @+1 {{failed to infer returned types}}
  %0 = tpu.slice %x [0] to [5] by [1] : (tensor<4xf32>) -> tensor<5xf32>
  return %0 : tensor<5xf32>
}

// -----
func.func @update_slice(%base: tensor<4xf32>, %src: tensor<3xf32>) -> tensor<4xf32> {
  // expected-error @+1 {{C2: the window must lie inside base in dim 0}}
  %0 = tpu.update_slice %src into %base at [2] by [1] : tensor<3xf32> into tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
func.func @bitcast(%x: tensor<3xi32>) -> tensor<2xi64> {
  // expected-error @+1 {{C1: dims must be equal, the last one in bytes}}
  %0 = tpu.bitcast %x : (tensor<3xi32>) -> tensor<2xi64>
  return %0 : tensor<2xi64>
}

// -----
func.func @reduce(%x: tensor<3xf32>) -> tensor<f32> {
  // expected-error @+1 {{C2: all and any are of i1}}
  %0 = tpu.reduce any %x [0] : (tensor<3xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// -----
func.func @dot(%a: tensor<2x3xf32>, %b: tensor<4x5xf32>) -> tensor<2x5xf32> {
  // expected-error @+1 {{C1: paired dims must have equal sizes}}
  %0 = tpu.dot %a, %b batch [] x [] contract [1] x [0] : (tensor<2x3xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}

// -----
func.func @dot_type(%a: tensor<2x3xf32>, %b: tensor<3x5xf32>) -> tensor<2x5xbf16> {
  // expected-error @+1 {{C3: operands must have one element type, the result that or a wider one}}
  %0 = tpu.dot %a, %b batch [] x [] contract [1] x [0] : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xbf16>
  return %0 : tensor<2x5xbf16>
}

// -----
func.func @dot_triangle(%a: tensor<2x3x4xf32>, %b: tensor<4x5xf32>) -> tensor<2x3x5xf32> {
  // expected-error @+1 {{C5: a triangle needs one free dim of each operand and one contracted dim}}
  %0 = tpu.dot %a, %b batch [] x [] contract [2] x [0] {triangle = #tpu<triangle lhs_lower>} : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
  return %0 : tensor<2x3x5xf32>
}

// -----
func.func @scan(%x: tensor<3xi1>) -> tensor<3xi1> {
  // expected-error @+1 {{C2: kind must be sum, prod, max or min}}
  %0 = tpu.scan any %x along 0 : tensor<3xi1>
  return %0 : tensor<3xi1>
}

// -----
func.func @cholesky(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  // expected-error @+1 {{C1: matrices must be square}}
  %0 = tpu.cholesky %x : tensor<2x4xf32>
  return %0 : tensor<2x4xf32>
}

// -----
func.func @triangular_solve(%a: tensor<2x4x4xf32>, %b: tensor<4x3xf32>) -> tensor<4x3xf32> {
  // expected-error @+1 {{C1: matrices must be square, and of as many rows as what they are solved for}}
  %0 = tpu.triangular_solve %a, %b : (tensor<2x4x4xf32>, tensor<4x3xf32>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----
func.func @triangular_solve_element(%a: tensor<4x4xbf16>, %b: tensor<4x3xbf16>) -> tensor<4x3xbf16> {
  // expected-error @+1 {{C2: elements must be of f32 or f64}}
  %0 = tpu.triangular_solve %a, %b : (tensor<4x4xbf16>, tensor<4x3xbf16>) -> tensor<4x3xbf16>
  return %0 : tensor<4x3xbf16>
}

// -----
func.func @fft_size(%x: tensor<2x4xcomplex<f32>>) -> tensor<2x6xf32> {
  // expected-error @+2 {{C1: lengths must be the operand's sizes, or what halves of them come from}}
  // expected-error @+1 {{failed to infer returned types}}
  %0 = tpu.fft to_real %x [8] : (tensor<2x4xcomplex<f32>>) -> tensor<2x6xf32>
  return %0 : tensor<2x6xf32>
}

// -----
func.func @fft_element(%x: tensor<4xf32>) -> tensor<4xcomplex<f32>> {
  // expected-error @+2 {{C2: the operand must be of real or of complex numbers}}
  // expected-error @+1 {{failed to infer returned types}}
  %0 = tpu.fft forward %x [4] : (tensor<4xf32>) -> tensor<4xcomplex<f32>>
  return %0 : tensor<4xcomplex<f32>>
}

// -----
func.func @take_along(%x: tensor<3x2xf32>, %i: tensor<4x3xi64>) -> tensor<4x3xf32> {
  // expected-error @+1 {{C2: indices must be no larger than the operand in dim 1}}
  %0 = tpu.take_along %x at %i along 0 : (tensor<3x2xf32>, tensor<4x3xi64>) -> tensor<4x3xf32>
  return %0 : tensor<4x3xf32>
}

// -----
func.func @scatter_rows(%x: tensor<3x2xf32>, %i: tensor<4xi64>, %u: tensor<5x2xf32>) -> tensor<3x2xf32> {
  // expected-error @+1 {{C2: updates do not fit indices and base in dim 0}}
  %0 = tpu.scatter_rows add %u into %x at %i along 0
      : (tensor<3x2xf32>, tensor<4xi64>, tensor<5x2xf32>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// -----
func.func @sum_taken(%x: tensor<3x2xf32>, %i: tensor<4xi64>, %to: tensor<5xi64>) -> tensor<3x2xf32> {
  // expected-error @+1 {{C1: x and result must be rows of one width, from, to and weights lists of one size}}
  %0 = tpu.sum_taken %x at %i to %to : (tensor<3x2xf32>, tensor<4xi64>, tensor<5xi64>) -> tensor<3x2xf32>
  return %0 : tensor<3x2xf32>
}

// -----
func.func @sum_taken_of_halves(%x: tensor<3x2xf16>, %i: tensor<4xi64>) -> tensor<3x2xf64> {
  // expected-error @+1 {{C2: the result's elements must be x's, or f32 for a half type, and the weights' the result's}}
  %0 = tpu.sum_taken %x at %i to %i : (tensor<3x2xf16>, tensor<4xi64>, tensor<4xi64>) -> tensor<3x2xf64>
  return %0 : tensor<3x2xf64>
}

// -----
func.func @aten(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{C1: argument #tpu.tensor<1> does not name the next operands}}
  %0 = tpu.aten "aten::neg"(%x) [#tpu.tensor<1>] : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----
func.func @aten_scalar(%x: tensor<3xf32>) -> tensor<3xf32> {
  // expected-error @+1 {{C2: scalar operand 0 must have rank 0}}
  %0 = tpu.aten "aten::neg"(%x) [#tpu.scalar<0>] : (tensor<3xf32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}

// -----
func.func @conv(%x: tensor<2x4x8xf32>, %w: tensor<6x3x3xf32>) -> tensor<2x6x6xf32> {
  // expected-error @+1 {{C2: channels and groups must fit together}}
  %0 = tpu.conv %x, %w strides [1] padding [0] [0] dilation [1] x [1] groups 1 x 1
      : (tensor<2x4x8xf32>, tensor<6x3x3xf32>) -> tensor<2x6x6xf32>
  return %0 : tensor<2x6x6xf32>
}

// -----
func.func @swapped_conv(%x: tensor<4x2x8xf32>, %w: tensor<3x6x3xf32>) -> tensor<6x2x6xf32> {
  // expected-error @+1 {{C2: channels and groups must fit together}}
  %0 = tpu.conv %x, %w strides [1] padding [0] [0] dilation [1] x [1] groups 1 x 1 swapped
      : (tensor<4x2x8xf32>, tensor<3x6x3xf32>) -> tensor<6x2x6xf32>
  return %0 : tensor<6x2x6xf32>
}

// -----
func.func @swapped_conv_result(%x: tensor<4x2x8xf32>, %w: tensor<4x6x3xf32>) -> tensor<2x6x6xf32> {
  // expected-error @+1 {{C4: result dims must follow from the operands and the window}}
  %0 = tpu.conv %x, %w strides [1] padding [0] [0] dilation [1] x [1] groups 1 x 1 swapped
      : (tensor<4x2x8xf32>, tensor<4x6x3xf32>) -> tensor<2x6x6xf32>
  return %0 : tensor<2x6x6xf32>
}
