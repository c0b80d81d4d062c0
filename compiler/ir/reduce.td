// Many elements to one: reductions, products, scans, windows, sorting.
#ifndef TPU_IR_REDUCE
#define TPU_IR_REDUCE

include "compiler/ir/base.td"

def Tpu_ReduceOp : Tpu_InferredOp<"reduce"> {
  let summary = "combines the elements along `dims`, which disappear";
  let description = [{
    sum, prod, max and min; all and any are of i1. An empty reduction gives the identity (sum 0, prod 1, max the lowest
    value, min the highest, all true, any false). max and min propagate NaN. The order of combination is free: sums and
    products of floats are exact up to a reordering, never below the operand's precision.
    C1. `dims` strictly increasing, each < rank.
    C2. all, any: element type i1.
  }];
  let arguments = (ins Tpu_ReduceKindAttr:$kind, Tpu_Arithmetic:$x, DenseI64ArrayAttr:$dims);
  let results = (outs Tpu_Arithmetic:$result);
  let assemblyFormat = "$kind $x $dims attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Tpu_ArgReduceOp : Tpu_InferredOp<"arg_reduce"> {
  let summary = "index along `dim` of the first extremum; the first NaN wins over every number";
  let description = [{ C1. 0 <= dim < rank; that dim is not 0. }];
  let arguments = (ins Tpu_ExtremumKindAttr:$kind, Tpu_Number:$x, I64Attr:$dim);
  let results = (outs Tpu_Index:$result);
  let assemblyFormat = "$kind $x `along` $dim attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
}

def Tpu_DotOp : Tpu_Op<"dot"> {
  let summary = "contraction of two operands: batch dims, lhs free dims, rhs free dims";
  let description = [{
    result[b.., l.., r..] = sum over the contracted dims of lhs * rhs, products and sums in at least f32 for f16 and
    bf16 operands, rounded once into the result's element type. Free dims stay in operand order.
    C1. lhs_batch and rhs_batch, and lhs_contract and rhs_contract, have pairwise equal lengths and equal sizes.
    C2. Every dim is named at most once for its operand and is < its rank.
    C3. Operands have one element type; the result's is that or wider of its kind.
    C4. Result dims: batch, lhs free, rhs free.
    C5. triangle is none unless there is one lhs free, one rhs free and one contracted dim.

    triangle says what a device need not compute. result_lower: elements whose rhs free position is greater than their
    lhs free position may be anything, NaN too. lhs_lower, lhs_upper: lhs is zero where the contracted position is
    greater, or less, than the free position.

    again: computed anew, whatever has computed the same before: the result is too large to keep.

    precision says what a device may round f32 operands to: nothing, two or three parts of bf16 (high), or bf16 (medium).
  }];
  let arguments = (ins Tpu_Arithmetic:$lhs, Tpu_Arithmetic:$rhs, DenseI64ArrayAttr:$lhs_batch,
                   DenseI64ArrayAttr:$rhs_batch, DenseI64ArrayAttr:$lhs_contract, DenseI64ArrayAttr:$rhs_contract,
                   DefaultValuedAttr<Tpu_TriangleAttr, "::tpu::ir::Triangle::none">:$triangle,
                   Tpu_HighestByDefault:$precision, UnitAttr:$again);
  let results = (outs Tpu_Arithmetic:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs `batch` $lhs_batch `x` $rhs_batch `contract` $lhs_contract `x` $rhs_contract attr-dict `:`
    functional-type(operands, results)
  }];
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

def Tpu_ConvOp : Tpu_Op<"conv"> {
  let summary = "sliding products of the operand [N, C, s..] and the weight [O, I, k..]: [N', O, r..]";
  let description = [{
    result[n, o, r..] = sum over i, k.. of lhs[n, c(o) + i, (r * strides + k * dilation - low)..] * rhs[o, i, k..], where
    lhs is spread first: base_dilation - 1 zeros between its elements, zeros outside. Products and sums as dot's.
    With feature groups g, c(o) = I * (o / (O / g)); with batch groups b, the batch is b parts, o uses part o / (O / b)
    and N' = N / b. swapped: the first two dims of operands and result stand the other way round.
    C1. Operands and result have one rank, at least 2; strides, low, high, base_dilation and dilation one entry for each
        spatial dim. low and high may be negative: elements are left out.
    C2. C = I * feature_groups; O and N are multiples of the groups; not both kinds of groups are above 1.
    C3. Operands have one element type; the result's is that or wider of its kind.
    C4. Result dims: N', O, and (low + (size - 1) * base_dilation + 1 + high - (k - 1) * dilation - 1) / strides + 1.
  }];
  let arguments = (ins Tpu_FloatTensor:$lhs, Tpu_FloatTensor:$rhs, DenseI64ArrayAttr:$strides,
                   DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high, DenseI64ArrayAttr:$base_dilation,
                   DenseI64ArrayAttr:$dilation, I64Attr:$feature_groups, I64Attr:$batch_groups, UnitAttr:$swapped);
  let results = (outs Tpu_FloatTensor:$result);
  let assemblyFormat = [{
    $lhs `,` $rhs `strides` $strides `padding` $low $high `dilation` $base_dilation `x` $dilation
    `groups` $feature_groups `x` $batch_groups (`swapped` $swapped^)? attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Tpu_FftOp : Tpu_InferredOp<"fft"> {
  let summary = "discrete Fourier transform over the last dims";
  let description = [{
    forward: of complex numbers; inverse: its inverse (divided by the number of elements). from_real: forward's of real
    numbers, of whose last dim only the first half and one more (size / 2 + 1). to_real: its inverse.
    The embedded device calls a library instead.
    C1. `lengths`: of one to three dims, the sizes of the operand's last dims, but of to_real's last one, whose half and
        one more the operand has; at least 1.
    C2. from_real's operand is of f32 or f64, others are complex.
  }];
  let arguments = (ins Tpu_FftKindAttr:$kind, Tpu_Arithmetic:$x, DenseI64ArrayAttr:$lengths);
  let results = (outs Tpu_Arithmetic:$result);
  let assemblyFormat = "$kind $x $lengths attr-dict `:` functional-type($x, results)";
}

def Tpu_CholeskyOp : Tpu_Op<"cholesky", [SameOperandsAndResultType]> {
  let summary = "lower triangular factor L of matrices that are L times its adjoint";
  let description = [{
    Of the last two dims. What lies above the diagonal isn't read, and may be anything in the result. NaN, from where a
    matrix is found not to be positive definite on or throughout. The embedded device calls a library instead.
    C1. The last two dims are equal.
    C2. Elements are of f32 or f64, or complex numbers of them.
  }];
  let arguments = (ins Tpu_Arithmetic:$x);
  let results = (outs Tpu_Arithmetic:$result);
  let assemblyFormat = "$x attr-dict `:` type($x)";
  let hasVerifier = 1;
}

def Tpu_TriangularSolveOp : Tpu_Op<"triangular_solve"> {
  let summary = "x of which a x = b, a being lower or upper triangular";
  let description = [{
    Of the last two dims. The rest of a isn't read, nor is its diagonal if it is all ones (unit_diagonal). The embedded
    device calls a library instead.
    C1. a is [batch.., n, n], b and the result [batch.., n, k].
    C2. Elements are of f32 or f64, or complex numbers of them.
  }];
  let arguments = (ins Tpu_Arithmetic:$a, Tpu_Arithmetic:$b, UnitAttr:$upper, UnitAttr:$unit_diagonal);
  let results = (outs Tpu_Arithmetic:$result);
  let assemblyFormat = [{
    $a `,` $b (`upper` $upper^)? (`unit` $unit_diagonal^)? attr-dict `:` functional-type(operands, $result)
  }];
  let hasVerifier = 1;
}

def Tpu_ScanOp : Tpu_Op<"scan", [SameOperandsAndResultType]> {
  let summary = "inclusive running combination along `dim`";
  let description = [{
    C1. 0 <= dim < rank.
    C2. kind is sum, prod, max or min.
  }];
  let arguments = (ins Tpu_ReduceKindAttr:$kind, Tpu_Number:$x, I64Attr:$dim);
  let results = (outs Tpu_Number:$result);
  let assemblyFormat = "$kind $x `along` $dim attr-dict `:` type($x)";
  let hasVerifier = 1;
}

class Tpu_Window<string mnemonic, dag head, dag results_> : Tpu_InferredOp<mnemonic> {
  let arguments = !con(head, (ins DenseI64ArrayAttr:$window, DenseI64ArrayAttr:$strides,
                              DenseI64ArrayAttr:$dilation, DenseI64ArrayAttr:$padding_low,
                              DenseI64ArrayAttr:$padding_high));
  let results = results_;
  let assemblyFormat = [{
    $kind $x `window` $window `strides` $strides `dilation` $dilation `padding` $padding_low $padding_high attr-dict `:`
    functional-type($x, results)
  }];
  let hasVerifier = 1;
}

def Tpu_WindowReduceOp
    : Tpu_Window<"window_reduce", (ins Tpu_ReduceKindAttr:$kind, Tpu_Number:$x), (outs Tpu_Number:$result)> {
  let summary = "combines the elements of windows over the last dims";
  let description = [{
    The window covers the last `window.size()` dims; positions in the padding count as the identity of `kind`. Result
    dim: (low + size + high - dilation * (window - 1) - 1) / strides + 1. max and min propagate NaN.
    C1. window, strides, dilation, padding_low and padding_high have equal lengths, at most the rank.
    C2. window, strides, dilation >= 1; paddings >= 0; the dilated window fits in the padded operand.
    C3. kind is sum, prod, max or min.
  }];
}

def Tpu_WindowArgReduceOp
    : Tpu_Window<"window_arg_reduce", (ins Tpu_ExtremumKindAttr:$kind, Tpu_Number:$x), (outs Tpu_Index:$result)> {
  let summary = "where in the operand each window has its extremum";
  let description = [{
    Like window_reduce, giving the row-major index, within the operand's windowed dims, of the window's first extremum;
    a later NaN wins over every number before it. A window that lies in the padding altogether gives its first position
    inside the operand, or 0.
    C1., C2. as of window_reduce.
  }];
}

def Tpu_SortOp : Tpu_InferredOp<"sort"> {
  let summary = "the operand sorted along `dim`, and where each element came from";
  let description = [{
    NaN counts as the largest. Equal elements keep their order (always stable, descending too).
    C1. 0 <= dim < rank.
  }];
  let arguments = (ins Tpu_Number:$x, I64Attr:$dim, BoolAttr:$descending);
  let results = (outs Tpu_Number:$values, Tpu_Index:$indices);
  let assemblyFormat = "$x `along` $dim `descending` $descending attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
}

#endif
