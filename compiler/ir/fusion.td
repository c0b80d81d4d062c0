// What one generated kernel computes, and the end of its body.
#ifndef TPU_IR_FUSION
#define TPU_IR_FUSION

include "compiler/ir/base.td"

def Tpu_FusionOp : Tpu_Op<"fusion", [IsolatedFromAbove, SingleBlock]> {
  let summary = "primitives that one kernel computes";
  let description = [{
    The body computes the results from the operands; it is one loop nest (compiler/host/loop_nest.h). `kind` tells
    people which: "loop" (no reduction), "row" (innermost dims reduced) or "column" (outer dims reduced).
    C1. The body's arguments have the operands' types and its yield the results' types.
  }];
  let arguments = (ins Variadic<Tpu_Tensor>:$operands, StrAttr:$kind);
  let results = (outs Variadic<Tpu_Tensor>:$results);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$kind `(` $operands `)` attr-dict `:` functional-type($operands, $results) $body";
}

def Tpu_YieldOp : Tpu_Op<"yield", [Terminator, ParentOneOf<["FusionOp"]>]> {
  let summary = "the results of a fusion";
  let arguments = (ins Variadic<Tpu_Tensor>:$values);
  let assemblyFormat = "($values^ `:` type($values))? attr-dict";
}

def Tpu_UndefinedOp : Tpu_Op<"undefined"> {
  let summary = "elements that nobody reads: the base of updates that replace all of them";
  let description = [{ Made by host/place_updates.cc. }];
  let results = (outs Tpu_Tensor:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

#endif
