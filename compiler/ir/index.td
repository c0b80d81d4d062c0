// Positions that are data: gathers, scatters, random bits, and the recorded ATen call.
#ifndef TPU_IR_INDEX
#define TPU_IR_INDEX

include "compiler/ir/base.td"
include "compiler/ir/attributes.td"

def Tpu_TakeOp : Tpu_InferredOp<"take"> {
  let summary = "slices of the operand along `dim` at `indices`";
  let description = [{
    The result's dims are the operand's with `dim` replaced by the dims of `indices` (any rank, 0 included).
    C1. 0 <= dim < rank of x.
    An index outside [0, size of dim) is an error of the launch; negative indices are wrapped by the lowering.
  }];
  let arguments = (ins Tpu_Tensor:$x, Tpu_Index:$indices, I64Attr:$dim);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x `at` $indices `along` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def Tpu_TakeAlongOp : Tpu_InferredOp<"take_along"> {
  let summary = "result[.., i, ..] = x[.., indices[.., i, ..], ..] along `dim` (torch.gather)";
  let description = [{
    The result has the dims of `indices`.
    C1. Equal ranks; 0 <= dim < rank.
    C2. In every other dim `indices` is no larger than x.
    An index outside [0, size of dim) is an error of the launch.
  }];
  let arguments = (ins Tpu_Tensor:$x, Tpu_Index:$indices, I64Attr:$dim);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x `at` $indices `along` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

class Tpu_ScatterBase<string mnemonic> : Tpu_Op<mnemonic, [AllTypesMatch<["base", "result"]>]> {
  let arguments = (ins Tpu_ScatterKindAttr:$kind, Tpu_Tensor:$base, Tpu_Index:$indices, Tpu_Tensor:$updates,
                   I64Attr:$dim);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat =
      "$kind $updates `into` $base `at` $indices `along` $dim attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasCanonicalizer = 1;
}

def Tpu_ScatterOp : Tpu_ScatterBase<"scatter"> {
  let summary = "base with updates combined in where take_along would read them";
  let description = [{
    result[.., indices[.., i, ..], ..] is combined with updates[.., i, ..], in row-major order of `indices` (so of
    several sets the last one stays and float sums are repeatable).
    C1. base, indices and updates have one rank; 0 <= dim < rank; base and updates one element type.
    C2. updates has the dims of indices; in every dim but `dim` indices is no larger than base.
    An index outside [0, size of dim) is an error of the launch.
  }];
}

def Tpu_ScatterRowsOp : Tpu_ScatterBase<"scatter_rows"> {
  let summary = "base with updates' slices combined in where take would read them";
  let description = [{
    `indices` has rank 1; slice i of updates along `dim` is combined into slice indices[i] of base, in order.
    C1. indices has rank 1; base and updates one rank and element type; 0 <= dim < rank.
    C2. updates has as many slices along `dim` as there are indices; its other dims are base's.
    An index outside [0, size of dim) is an error of the launch.
  }];
}

def Tpu_SumTakenOp : Tpu_Op<"sum_taken"> {
  let summary = "rows of the operand, taken and summed where positions that are data say";
  let description = [{
    result[r] is the sum of weights[i] * x[from[i]] over all i whose to[i] is r, in order (so float sums are
    repeatable); without weights of x[from[i]]. Where to[i] is no row of the result, i is left out.
    C1. x and result have rank 2 and one width; from, to and weights rank 1 and one size.
    C2. result has x's element type, or f32 where that is a half type; weights have the result's.
    sorted: what is in `to` does not decrease.
    An index of `from` outside [0, rows of x) is an error of the launch; of one that is left out it may be.
  }];
  let arguments = (ins Tpu_FloatTensor:$x, Tpu_Index:$from, Tpu_Index:$to, Optional<Tpu_FloatTensor>:$weights,
                   UnitAttr:$sorted);
  let results = (outs Tpu_FloatTensor:$result);
  let assemblyFormat = [{
    $x `at` $from (`times` $weights^)? `to` (`sorted` $sorted^)? $to attr-dict `:` functional-type(operands, results)
  }];
  let hasVerifier = 1;
}

def Tpu_RandomBitsOp : Tpu_Op<"random_bits"> {
  let summary = "uniform random bits from Philox4x32-10";
  let description = [{
    Element i (row-major) is word i % 4 of the block whose 128-bit counter is offset + i / 4 (upper words 0) under the
    64-bit key `seed`.
    C1. seed and offset have rank 0.
  }];
  let arguments = (ins Tpu_Index:$seed, Tpu_Index:$offset);
  let results = (outs StaticShapeTensorOf<[I32]>:$result);
  let hasVerifier = 1;
}

def Tpu_AtenOp : Tpu_Op<"aten"> {
  let summary = "a recorded ATen call that is not lowered (yet)";
  let description = [{
    `name` is the overload ("aten::add.Tensor"), `arguments` its schema arguments in order: #tpu.tensor, #tpu.tensors,
    #tpu.scalar, #tpu.scalars (which name operands) or a plain attribute (unit for None, a type for a dtype). `node` is
    its number in the fragment, `promoted` the element type its arithmetic is done in, `precision` that of its products.
    C1. Argument references cover the operands exactly, in order; operands left over are trailing ones (the seed and
        offset of random operators).
    C2. Scalars have rank 0.
  }];
  let arguments = (ins Variadic<Tpu_Tensor>:$operands, StrAttr:$name, ArrayAttr:$arguments,
                   OptionalAttr<TypeAttr>:$promoted, DefaultValuedAttr<I64Attr, "0">:$node,
                   Tpu_HighestByDefault:$precision);
  let results = (outs Variadic<Tpu_Tensor>:$results);
  let assemblyFormat = [{
    $name `(` $operands `)` $arguments (`in` $promoted^)? attr-dict `:` functional-type($operands, results)
  }];
  let hasVerifier = 1;
}

#endif
