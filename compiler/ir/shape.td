// Where elements lie: no arithmetic. Those with the trait ViewLike only rename positions and can be folded into the
// accesses of whatever reads them.
#ifndef TPU_IR_SHAPE
#define TPU_IR_SHAPE

include "compiler/ir/base.td"

def Tpu_ViewLike : NativeOpTrait<"ViewLike"> { let cppNamespace = "::tpu::ir"; }

def Tpu_ConstantOp : Tpu_InferredOp<"constant", [ConstantLike]> {
  let summary = "a splat or dense constant";
  let arguments = (ins ElementsAttr:$value);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "attr-dict $value";
  let hasFolder = 1;
}

def Tpu_IotaOp : Tpu_Op<"iota"> {
  let summary = "result[i0, i1, ...] = i_dim";
  let description = [{ C1. 0 <= dim < rank. }];
  let arguments = (ins I64Attr:$dim);
  let results = (outs Tpu_Number:$result);
  let assemblyFormat = "$dim attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def Tpu_ReshapeOp : Tpu_Op<"reshape", [SameOperandsAndResultElementType, Tpu_ViewLike]> {
  let summary = "the same elements in row-major order under other dims";
  let description = [{ C1. As many elements as the operand. }];
  let arguments = (ins Tpu_Tensor:$x);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Tpu_TransposeOp : Tpu_InferredOp<"transpose", [Tpu_ViewLike]> {
  let summary = "result dim i is operand dim permutation[i]";
  let description = [{ C1. `permutation` is a permutation of 0 .. rank-1. }];
  let arguments = (ins Tpu_Tensor:$x, DenseI64ArrayAttr:$permutation);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x $permutation attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Tpu_BroadcastOp : Tpu_Op<"broadcast", [SameOperandsAndResultElementType, Tpu_ViewLike]> {
  let summary = "operand dim i lies along result dim dims[i]; the others repeat";
  let description = [{
    C1. One entry of `dims` for each operand dim, strictly increasing, each < result rank.
    C2. Operand dim i is 1 or equals result dim dims[i].
  }];
  let arguments = (ins Tpu_Tensor:$x, DenseI64ArrayAttr:$dims);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x $dims attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Tpu_SliceOp : Tpu_InferredOp<"slice", [Tpu_ViewLike]> {
  let summary = "elements start, start + stride, ... below limit, in each dim";
  let description = [{
    C1. One start, limit and stride for each dim.
    C2. 0 <= start <= limit <= size; stride >= 1. Result dim: ceil((limit - start) / stride).
  }];
  let arguments = (ins Tpu_Tensor:$x, DenseI64ArrayAttr:$start, DenseI64ArrayAttr:$limit, DenseI64ArrayAttr:$stride);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x $start `to` $limit `by` $stride attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Tpu_ReverseOp : Tpu_Op<"reverse", [SameOperandsAndResultType, Tpu_ViewLike]> {
  let summary = "the dims in `dims` run backwards";
  let description = [{ C1. `dims` strictly increasing, each < rank. }];
  let arguments = (ins Tpu_Tensor:$x, DenseI64ArrayAttr:$dims);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x $dims attr-dict `:` type($x)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Tpu_PadOp : Tpu_InferredOp<"pad"> {
  let summary = "the operand with `value` before, after and between its elements";
  let description = [{
    C1. One low, high and interior for each dim; all >= 0 (cropping is `slice`).
    C2. `value` has rank 0 and the operand's element type.
    Result dim: low + size + max(size - 1, 0) * interior + high.
  }];
  let arguments = (ins Tpu_Tensor:$x, Tpu_Tensor:$value, DenseI64ArrayAttr:$low, DenseI64ArrayAttr:$high,
                   DenseI64ArrayAttr:$interior);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat =
      "$x `,` $value `low` $low `high` $high `interior` $interior attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Tpu_ConcatOp : Tpu_InferredOp<"concat"> {
  let summary = "operands one after the other along `dim`";
  let description = [{
    C1. At least one operand; 0 <= dim < rank.
    C2. Operands agree in element type, rank and every dim but `dim`.
  }];
  let arguments = (ins Variadic<Tpu_Tensor>:$inputs, I64Attr:$dim);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$inputs `along` $dim attr-dict `:` functional-type($inputs, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

def Tpu_UpdateSliceOp : Tpu_Op<"update_slice", [AllTypesMatch<["base", "result"]>]> {
  let summary = "base with the window that slice(start, .., stride) reads replaced by src";
  let description = [{
    C1. One start and stride for each dim; start >= 0, stride >= 1; src has base's rank and element type.
    C2. start + (src dim - 1) * stride < base dim, where src dim > 0.

    `in_place`: of the host compiler (host/place_updates.cc). The result lies where base lay, if base may be given up,
    and src is computed right into its place.
  }];
  let arguments = (ins Tpu_Tensor:$base, Tpu_Tensor:$src, DenseI64ArrayAttr:$start, DenseI64ArrayAttr:$stride,
                   UnitAttr:$in_place);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$src `into` $base `at` $start `by` $stride attr-dict `:` type($src) `into` type($base)";
  let hasVerifier = 1;
  let hasFolder = 1;
  let hasCanonicalizer = 1;
}

def Tpu_BitcastOp : Tpu_Op<"bitcast", [Tpu_ViewLike]> {
  let summary = "the same bytes as another element type";
  let description = [{
    C1. Equal dims where the element sizes are equal; else the last dim scales by the ratio of the sizes and the others
        are equal (a narrower operand's last dim is a multiple of the ratio). i1 counts as one byte.
  }];
  let arguments = (ins Tpu_Tensor:$x);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type($x, results)";
  let hasVerifier = 1;
  let hasFolder = 1;
}

#endif
