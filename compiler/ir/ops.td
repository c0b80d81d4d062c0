// Everything of the dialect, for the generator.
include "compiler/ir/elementwise.td"
include "compiler/ir/fusion.td"
include "compiler/ir/index.td"
include "compiler/ir/reduce.td"
include "compiler/ir/shape.td"
