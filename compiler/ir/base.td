// The dialect, its types and attributes, and the shapes that op definitions share.
#ifndef TPU_IR_BASE
#define TPU_IR_BASE

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinTypeInterfaces.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Tpu_Dialect : Dialect {
  let name = "tpu";
  let cppNamespace = "::tpu::ir";
  let summary = "Primitives that every ATen overload is expressed in";
  let description = [{
    Values are builtin ranked tensors of static shape, logical and row-major. A scalar input of a fragment is a tensor
    of rank 0. Element types: i1 (bool), signless i8..i64 (signed), ui8..ui64, f16, bf16, f32, f64, complex<f32|f64>
    (stored, moved, converted and taken apart: arithmetic is that of their parts) and !tpu.opaque<name> (stored and moved only).

    Constraints in the descriptions are numbered; verifier messages and tests cite the numbers.
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
  let hasConstantMaterializer = 1;
}

def Tpu_Opaque : TypeDef<Tpu_Dialect, "Opaque"> {
  let mnemonic = "opaque";
  let summary = "an element that is stored and moved and has no arithmetic";
  let description = [{ The name is its DType's: float8 formats are told apart by it. }];
  let parameters = (ins StringRefParameter<>:$name);
  let assemblyFormat = "`<` $name `>`";
}

def Tpu_Unsigned : AnyTypeOf<[UI8, UI16, UI32, UI64]>;
def Tpu_Int : AnyTypeOf<[I8, I16, I32, I64, Tpu_Unsigned]>;
def Tpu_Float : AnyTypeOf<[F16, BF16, F32, F64]>;
def Tpu_Complex : AnyTypeOf<[Complex<F32>, Complex<F64>]>;

def Tpu_Tensor : StaticShapeTensorOf<[I1, Tpu_Int, Tpu_Float, Tpu_Complex, Tpu_Opaque]>;
def Tpu_Arithmetic : StaticShapeTensorOf<[I1, Tpu_Int, Tpu_Float, Tpu_Complex]>;
def Tpu_Number : StaticShapeTensorOf<[I1, Tpu_Int, Tpu_Float]>;  // ordered
def Tpu_FloatTensor : StaticShapeTensorOf<[Tpu_Float]>;
def Tpu_ComplexTensor : StaticShapeTensorOf<[Tpu_Complex]>;
def Tpu_PartTensor : StaticShapeTensorOf<[F32, F64]>;
def Tpu_SignedOrFloat : StaticShapeTensorOf<[I8, I16, I32, I64, Tpu_Float, Tpu_Complex]>;
def Tpu_Bits : StaticShapeTensorOf<[I1, Tpu_Int]>;
def Tpu_IntTensor : StaticShapeTensorOf<[Tpu_Int]>;
def Tpu_Bool : StaticShapeTensorOf<[I1]>;
def Tpu_Index : StaticShapeTensorOf<[I64]>;

class Tpu_Enum<string name, string summary, list<string> cases>
    : I32EnumAttr<name, summary,
                  !foreach(i, !range(0, !size(cases)), I32EnumAttrCase<cases[i], i>)> {
  let cppNamespace = "::tpu::ir";
  let genSpecializedAttr = 0;
}
class Tpu_EnumAttr<I32EnumAttr info, string mnemonic> : EnumAttr<Tpu_Dialect, info, mnemonic>;

def Tpu_CompareKind : Tpu_Enum<"CompareKind", "an ordering predicate", ["eq", "ne", "lt", "le", "gt", "ge"]>;
def Tpu_ReduceKind
    : Tpu_Enum<"ReduceKind", "how elements are combined", ["sum", "prod", "max", "min", "all", "any"]>;
def Tpu_ExtremumKind : Tpu_Enum<"ExtremumKind", "which extremum", ["max", "min"]>;
def Tpu_ScatterKind : Tpu_Enum<"ScatterKind", "how an update meets the base", ["set", "add", "mul", "max", "min"]>;
def Tpu_Triangle
    : Tpu_Enum<"Triangle", "what is known of a product", ["none", "result_lower", "lhs_lower", "lhs_upper"]>;

def Tpu_Precision
    : Tpu_Enum<"Precision", "what f32 operands of a product may be rounded to", ["highest", "high", "medium"]>;

def Tpu_FftKind
    : Tpu_Enum<"FftKind", "between what a transform goes", ["forward", "inverse", "from_real", "to_real"]>;

def Tpu_CompareKindAttr : Tpu_EnumAttr<Tpu_CompareKind, "compare_kind">;
def Tpu_ReduceKindAttr : Tpu_EnumAttr<Tpu_ReduceKind, "reduce_kind">;
def Tpu_ExtremumKindAttr : Tpu_EnumAttr<Tpu_ExtremumKind, "extremum_kind">;
def Tpu_ScatterKindAttr : Tpu_EnumAttr<Tpu_ScatterKind, "scatter_kind">;
def Tpu_TriangleAttr : Tpu_EnumAttr<Tpu_Triangle, "triangle">;
def Tpu_FftKindAttr : Tpu_EnumAttr<Tpu_FftKind, "fft_kind">;
def Tpu_PrecisionAttr : Tpu_EnumAttr<Tpu_Precision, "precision">;
def Tpu_HighestByDefault : DefaultValuedAttr<Tpu_PrecisionAttr, "::tpu::ir::Precision::highest">;

class Tpu_Op<string mnemonic, list<Trait> traits = []> : Op<Tpu_Dialect, mnemonic, !listconcat([Pure], traits)> {
  let assemblyFormat = "operands attr-dict `:` functional-type(operands, results)";
}

// An op whose result types follow from operands and attributes (inferReturnTypes in infer.cc).
class Tpu_InferredOp<string mnemonic, list<Trait> traits = []>
    : Tpu_Op<mnemonic, !listconcat([InferTypeOpAdaptor], traits)>;

#endif
