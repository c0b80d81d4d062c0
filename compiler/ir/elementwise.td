// Element by element: the result's element i depends on the operands' elements i only. The trait Elementwise is what
// fusion asks for; Commutative is what CSE and folders ask for.
#ifndef TPU_IR_ELEMENTWISE
#define TPU_IR_ELEMENTWISE

include "compiler/ir/base.td"

class Tpu_Unary<string mnemonic, Type type, string text> : Tpu_Op<mnemonic, [SameOperandsAndResultType, Elementwise]> {
  let summary = text;
  let arguments = (ins type:$x);
  let results = (outs type:$result);
  let assemblyFormat = "$x attr-dict `:` type($x)";
}
class Tpu_FloatUnary<string mnemonic, string text> : Tpu_Unary<mnemonic, Tpu_FloatTensor, text>;

def Tpu_NegOp : Tpu_Unary<"neg", Tpu_Arithmetic, "-x; integers wrap"> { let hasFolder = 1; }
def Tpu_AbsOp : Tpu_Unary<"abs", Tpu_Number, "|x|; the most negative integer stays">;
def Tpu_SignOp : Tpu_Unary<"sign", Tpu_Number, "-1, 0 or 1; NaN gives 0, as torch.sign">;
def Tpu_NotOp : Tpu_Unary<"not", Tpu_Bits, "bitwise complement; of i1, logical not"> { let hasFolder = 1; }
def Tpu_ExpOp : Tpu_FloatUnary<"exp", "e to the x">;
def Tpu_Exp2Op : Tpu_FloatUnary<"exp2", "2 to the x">;
def Tpu_Expm1Op : Tpu_FloatUnary<"expm1", "exp(x) - 1 without cancellation">;
def Tpu_LogOp : Tpu_FloatUnary<"log", "natural logarithm">;
def Tpu_Log1pOp : Tpu_FloatUnary<"log1p", "log(1 + x) without cancellation">;
def Tpu_Log2Op : Tpu_FloatUnary<"log2", "logarithm to base 2">;
def Tpu_Log10Op : Tpu_FloatUnary<"log10", "logarithm to base 10">;
def Tpu_SqrtOp : Tpu_FloatUnary<"sqrt", "square root, correctly rounded">;
def Tpu_RsqrtOp : Tpu_FloatUnary<"rsqrt", "1 / sqrt(x), each step rounded">;
def Tpu_SinOp : Tpu_FloatUnary<"sin", "sine">;
def Tpu_CosOp : Tpu_FloatUnary<"cos", "cosine">;
def Tpu_TanOp : Tpu_FloatUnary<"tan", "tangent">;
def Tpu_AsinOp : Tpu_FloatUnary<"asin", "inverse sine">;
def Tpu_AcosOp : Tpu_FloatUnary<"acos", "inverse cosine">;
def Tpu_AtanOp : Tpu_FloatUnary<"atan", "inverse tangent">;
def Tpu_SinhOp : Tpu_FloatUnary<"sinh", "hyperbolic sine">;
def Tpu_CoshOp : Tpu_FloatUnary<"cosh", "hyperbolic cosine">;
def Tpu_TanhOp : Tpu_FloatUnary<"tanh", "hyperbolic tangent">;
def Tpu_AsinhOp : Tpu_FloatUnary<"asinh", "inverse hyperbolic sine">;
def Tpu_AcoshOp : Tpu_FloatUnary<"acosh", "inverse hyperbolic cosine">;
def Tpu_AtanhOp : Tpu_FloatUnary<"atanh", "inverse hyperbolic tangent">;
def Tpu_ErfOp : Tpu_FloatUnary<"erf", "error function">;
def Tpu_LogisticOp : Tpu_FloatUnary<"logistic", "1 / (1 + exp(-x))">;
def Tpu_FloorOp : Tpu_FloatUnary<"floor", "round down">;
def Tpu_CeilOp : Tpu_FloatUnary<"ceil", "round up">;
def Tpu_TruncOp : Tpu_FloatUnary<"trunc", "round towards zero">;
def Tpu_RoundEvenOp : Tpu_FloatUnary<"round_even", "round to nearest, ties to even">;

def Tpu_IsFiniteOp : Tpu_Op<"is_finite", [SameOperandsAndResultShape, Elementwise]> {
  let summary = "true where x is neither infinite nor NaN";
  let arguments = (ins Tpu_FloatTensor:$x);
  let results = (outs Tpu_Bool:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type($x, results)";
}

class Tpu_Part<string mnemonic, string text>
    : Tpu_InferredOp<mnemonic, [SameOperandsAndResultShape, Elementwise]> {
  let summary = text;
  let arguments = (ins Tpu_ComplexTensor:$x);
  let results = (outs Tpu_FloatTensor:$result);
  let assemblyFormat = "$x attr-dict `:` type($x)";
  let hasFolder = 1;
}
def Tpu_RealOp : Tpu_Part<"real", "the real part">;
def Tpu_ImaginaryOp : Tpu_Part<"imaginary", "the imaginary part">;
def Tpu_ComplexOp : Tpu_InferredOp<"complex", [SameTypeOperands, SameOperandsAndResultShape, Elementwise]> {
  let summary = "the complex number of these two parts";
  let arguments = (ins Tpu_PartTensor:$real, Tpu_PartTensor:$imaginary);
  let results = (outs Tpu_ComplexTensor:$result);
  let assemblyFormat = "$real `,` $imaginary attr-dict `:` type($real)";
  let hasFolder = 1;
}

class Tpu_Binary<string mnemonic, Type type, string text, list<Trait> traits = []>
    : Tpu_Op<mnemonic, !listconcat([SameOperandsAndResultType, Elementwise], traits)> {
  let summary = text;
  let arguments = (ins type:$lhs, type:$rhs);
  let results = (outs type:$result);
  let assemblyFormat = "$lhs `,` $rhs attr-dict `:` type($result)";
}

def Tpu_AddOp : Tpu_Binary<"add", Tpu_Arithmetic, "sum; integers wrap; of i1, or", [Commutative]> { let hasFolder = 1; }
def Tpu_SubOp : Tpu_Binary<"sub", Tpu_Arithmetic, "difference; integers wrap"> { let hasFolder = 1; }
def Tpu_MulOp : Tpu_Binary<"mul", Tpu_Arithmetic, "product; integers wrap; of i1, and", [Commutative]> {
  let hasFolder = 1;
}
def Tpu_DivOp : Tpu_Binary<"div", Tpu_Arithmetic, "quotient; of integers, truncated; by integer zero, 0"> {
  let hasFolder = 1;
}
def Tpu_RemOp : Tpu_Binary<"rem", Tpu_Number, "remainder with the sign of lhs (C's fmod and %); by integer zero, 0">;
def Tpu_PowOp : Tpu_Binary<"pow", StaticShapeTensorOf<[Tpu_Int, Tpu_Float]>,
                           "lhs to the rhs, as C's pow; of integers, wraps, and the rhs is not below 0">;
def Tpu_Atan2Op : Tpu_Binary<"atan2", Tpu_FloatTensor, "angle of the point (rhs, lhs), as C's atan2">;
def Tpu_MaxOp : Tpu_Binary<"max", Tpu_Number, "the larger; NaN if either is NaN", [Commutative]> { let hasFolder = 1; }
def Tpu_MinOp : Tpu_Binary<"min", Tpu_Number, "the smaller; NaN if either is NaN", [Commutative]> {
  let hasFolder = 1;
}
def Tpu_AndOp : Tpu_Binary<"and", Tpu_Bits, "bitwise and", [Commutative]> { let hasFolder = 1; }
def Tpu_OrOp : Tpu_Binary<"or", Tpu_Bits, "bitwise or", [Commutative]> { let hasFolder = 1; }
def Tpu_XorOp : Tpu_Binary<"xor", Tpu_Bits, "bitwise exclusive or", [Commutative]>;
def Tpu_ShlOp : Tpu_Binary<"shl", Tpu_IntTensor, "shift left; by less than 0 or by the width and more, 0">;
def Tpu_ShrOp
    : Tpu_Binary<"shr", Tpu_IntTensor,
                 "shift right, arithmetic for signed types, logical for unsigned; by less than 0 or by the width and "
                 "more, as by width - 1 for signed types, 0 for unsigned">;

def Tpu_CompareOp : Tpu_InferredOp<"compare", [SameTypeOperands, SameOperandsAndResultShape, Elementwise]> {
  let summary = "true where lhs stands to rhs as `kind` says; every order with NaN is false, ne true";
  let arguments = (ins Tpu_CompareKindAttr:$kind, Tpu_Arithmetic:$lhs, Tpu_Arithmetic:$rhs);
  let results = (outs Tpu_Bool:$result);
  let assemblyFormat = "$kind $lhs `,` $rhs attr-dict `:` type($lhs)";
  let hasFolder = 1;
}

def Tpu_SelectOp : Tpu_Op<"select", [Elementwise, AllTypesMatch<["on_true", "on_false", "result"]>]> {
  let summary = "on_true where pred, else on_false";
  let arguments = (ins Tpu_Bool:$pred, Tpu_Tensor:$on_true, Tpu_Tensor:$on_false);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$pred `,` $on_true `,` $on_false attr-dict `:` type($pred) `,` type($result)";
  let hasFolder = 1;
}

def Tpu_RequireOp : Tpu_Op<"require", [Elementwise, AllTypesMatch<["x", "result"]>]> {
  let summary = "x, which must be as `holds` says";
  let description = [{
    Where `holds` is false the launch fails on devices whose programs can; on others it is as if it were true.
  }];
  let arguments = (ins Tpu_Tensor:$x, Tpu_Bool:$holds);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x `,` $holds attr-dict `:` type($x) `,` type($holds)";
  let hasFolder = 1;
}

def Tpu_ConvertOp : Tpu_Op<"convert", [SameOperandsAndResultShape, Elementwise]> {
  let summary = "the value in another element type";
  let description = [{
    Float to integer truncates; to i1 is `x != 0`; from i1 gives 0 or 1; narrowing floats rounds to nearest even;
    narrowing integers keeps the low bits; complex to real drops the imaginary part. Of opaque elements float8 formats
    with a sign and a mantissa are converted, from and to real numbers, by way of f32 (pass expand-float8).
  }];
  let arguments = (ins Tpu_Tensor:$x);
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type($x, results)";
  let hasFolder = 1;
}

#endif
