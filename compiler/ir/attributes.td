// Arguments of tpu.aten that are operands rather than values.
#ifndef TPU_IR_ATTRIBUTES
#define TPU_IR_ATTRIBUTES

include "compiler/ir/base.td"

class Tpu_Argument<string name, string mnemonic_> : AttrDef<Tpu_Dialect, name> {
  let mnemonic = mnemonic_;
}
def Tpu_TensorArg : Tpu_Argument<"TensorArg", "tensor"> {
  let summary = "operand number `first`";
  let parameters = (ins "int64_t":$first);
  let assemblyFormat = "`<` $first `>`";
}
def Tpu_ScalarArg : Tpu_Argument<"ScalarArg", "scalar"> {
  let summary = "operand number `first`, a number";
  let parameters = (ins "int64_t":$first);
  let assemblyFormat = "`<` $first `>`";
}
def Tpu_TensorListArg : Tpu_Argument<"TensorListArg", "tensors"> {
  let summary = "`count` list elements from operand `first` on; those whose position is in `absent` are None";
  let parameters = (ins "int64_t":$first, "int64_t":$count, OptionalArrayRefParameter<"int64_t">:$absent);
  let assemblyFormat = "`<` $first `,` $count (`,` `absent` `[` $absent^ `]`)? `>`";
}
def Tpu_ScalarListArg : Tpu_Argument<"ScalarListArg", "scalars"> {
  let summary = "`count` numbers from operand `first` on";
  let parameters = (ins "int64_t":$first, "int64_t":$count);
  let assemblyFormat = "`<` $first `,` $count `>`";
}

#endif
