// The order of the host compiler's passes, and why each stands where it does.
#include "compiler/host/pipeline.h"

#include "compiler/host/conv.h"
#include "compiler/passes/lower_aten.h"
#include "compiler/passes/passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

namespace tpu::host {

void BuildHostPipeline(mlir::OpPassManager& passes, const Tuning& tuning) {
  mlir::OpPassManager& function = passes.nest<mlir::func::FuncOp>();
  // Calls become primitives first: everything below sees only the dialect's own ops and the calls that stay calls.
  // Library calls that tuning does otherwise are among them, too.
  const bool convolutions = tuning.convolutions != 0;
  function.addPass(CreateLowerAtenPass(/*host_kernels=*/true, convolutions ? IsHostConvolution : aten::Accepts()));
  // Pooling in simpler primitives, before the clean-up that its many slices want.
  function.addPass(CreateDecomposeWindowsPass());
  // Folds casts, views and constants that lowerings leave behind, so that CSE compares what is really computed.
  function.addPass(mlir::createCanonicalizerPass());
  // Equal primitives of different calls (means, broadcasts, masks) once, before fusion would put them in two kernels.
  function.addPass(mlir::createCSEPass());
  // The weights of attention once for forward and backward; after CSE, which finds that their scores are the same.
  function.addPass(CreateShareSoftmaxPass());
  // Products in the one form that the matrix library takes; after CSE, which compares the simpler forms.
  function.addPass(CreatePrepareDotsPass());
  // Conversions of float8 as arithmetic on bits; after products were looked at, which read such weights byte by byte.
  function.addPass(CreateExpandFloat8Pass());
  // Reductions to few results become two, so that every core has a part; before fusion, which then sees both halves.
  function.addPass(CreateSplitReductionsPass());
  // Concatenations of more operands than a kernel can hold, in parts; before fusion, which makes each a kernel.
  function.addPass(CreateSplitConcatsPass());
  // Says which updates write a part of a large value where it lies; before fusion, to which they are the end of a
  // kernel.
  function.addPass(CreatePlaceUpdatesPass());
  // Last: groups what one kernel can compute; host emission takes one step for each group.
  function.addPass(CreateFusePass(tuning));
}

void RegisterHostPasses() {
  mlir::registerPass([] { return CreateLowerAtenPass(); });
  mlir::registerPass([] { return CreateDecomposeWindowsPass(); });
  mlir::registerPass([] { return CreateExpandFloat8Pass(); });
  mlir::registerPass([] { return CreateExpandMathPass(); });
  mlir::registerPass([] { return CreateShareSoftmaxPass(); });
  mlir::registerPass([] { return CreatePrepareDotsPass(); });
  mlir::registerPass([] { return CreateSplitConcatsPass(); });
  mlir::registerPass([] { return CreateSplitReductionsPass(); });
  mlir::registerPass([] { return CreatePlaceUpdatesPass(); });
  mlir::registerPass([] { return CreateFusePass(); });
  mlir::registerCanonicalizerPass();
  mlir::registerCSEPass();
}

}  // namespace tpu::host
