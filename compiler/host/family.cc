#include "compiler/host/family.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/host/pipeline.h"
#include "compiler/host/plan_builder.h"
#include "compiler/host/special_kernels.h"
#include "compiler/ir/windows.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/run_passes.h"
#include "llvm/ADT/DenseMap.h"
#include "mlir/Pass/PassManager.h"
#include "runtime/host/plan_family.h"

namespace tpu::host {
namespace {

using mlir::Operation;

// What becomes a generated kernel, in order.
std::vector<Operation*> KernelsOf(mlir::func::FuncOp function) {
  std::vector<Operation*> kernels;
  for (Operation& op : function.getBody().front()) {
    if (mlir::isa<ir::FusionOp>(op) || IsSpecialOp(&op)) kernels.push_back(&op);
  }
  return kernels;
}

std::string LoopsOf(const LoopNest& nest) {
  return absl::StrJoin(nest.loops, " x ", [](std::string* out, const Loop& loop) { absl::StrAppend(out, loop.size); });
}

// How each size writes the kernel. Loops whose lengths differ are marked, for code that leaves them open.
absl::StatusOr<std::vector<KernelWriter>> WritersOf(llvm::ArrayRef<Operation*> at_size) {
  std::vector<KernelWriter> writers;
  std::vector<LoopNest> nests;
  for (Operation* op : at_size) {
    if (op->getName() != at_size.front()->getName()) {
      return absl::FailedPreconditionError(
          absl::StrCat(at_size.front()->getName().getStringRef().str(), " and ", op->getName().getStringRef().str()));
    }
    if (IsSpecialOp(op)) {
      writers.push_back(SpecialWriter(op, Tuning()));
      continue;
    }
    auto nest = NestOf(mlir::cast<ir::FusionOp>(op));
    if (!nest) return absl::FailedPreconditionError("no loop nest at one of the sizes");
    nests.push_back(*std::move(nest));
    if (nests.back().loops.size() != nests.front().loops.size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("loops of ", LoopsOf(nests.front()), " and of ", LoopsOf(nests.back())));
    }
  }
  if (nests.empty()) return writers;
  for (size_t loop = 0; loop < nests.front().loops.size(); ++loop) {
    bool same = true;
    int64_t most = 0;
    for (const LoopNest& nest : nests) {
      same &= nest.loops[loop].size == nests.front().loops[loop].size;
      most = std::max(most, nest.loops[loop].size);
    }
    for (LoopNest& nest : nests) {
      if (!same) nest.loops[loop].most = most;
    }
  }
  for (LoopNest& nest : nests) writers.push_back(NestWriter(std::move(nest), Tuning()));
  return writers;
}

}  // namespace

absl::StatusOr<Program> CompileFamily(absl::Span<const mlir::ModuleOp> modules, absl::Span<const SizePoint> points,
                                      bool places, const std::string& name, const std::atomic<bool>& cancelled) {
  std::vector<mlir::func::FuncOp> functions;
  for (mlir::ModuleOp module : modules) functions.push_back(*module.getOps<mlir::func::FuncOp>().begin());
  // What is fused is decided at the largest size, where it matters most.
  mlir::Attribute fused;
  for (size_t i = modules.size(); i-- > 0;) {
    mlir::ModuleOp module = modules[i];
    const SizePoint sizes = places ? SizePoint() : points[i];
    functions[i]->setAttr(kOpenSizes, mlir::Builder(module.getContext()).getDenseI64ArrayAttr(sizes));
    ir::KeepWindowsOf(functions[i]);
    if (fused) functions[i]->setAttr(kFusedLike, fused);
    mlir::PassManager passes(module.getContext());
    BuildHostPipeline(passes);
    if (absl::Status s = RunPasses(passes, module, absl::StrCat(name, "-", absl::StrJoin(points[i], "-"))); !s.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("at size ", absl::StrJoin(points[i], " by "), ": ", s.message()));
    }
    fused = functions[i]->getAttr(kFusedLike);
  }
  if (absl::Status status = ir::CheckWindows(functions, points); !status.ok()) return status;
  std::vector<std::vector<Operation*>> kernels;  // by size
  for (size_t i = 0; i < functions.size(); ++i) {
    kernels.push_back(KernelsOf(functions[i]));
    if (kernels.back().size() != kernels.front().size()) {
      return absl::FailedPreconditionError(absl::StrCat(kernels.front().size(), " kernels at size ",
                                                        absl::StrJoin(points[0], " by "), ", ", kernels.back().size(),
                                                        " at size ", absl::StrJoin(points[i], " by ")));
    }
  }
  llvm::DenseMap<Operation*, CompiledKernel> compiled;
  for (size_t k = 0; k < kernels.front().size(); ++k) {
    if (cancelled) return absl::CancelledError();
    std::vector<Operation*> at_size;
    at_size.reserve(kernels.size());
    for (const auto& of_size : kernels) at_size.push_back(of_size[k]);
    auto writers = WritersOf(at_size);
    auto family = writers.ok() ? CompileKernelFamily(*writers) : writers.status();
    if (!family.ok()) {
      return absl::Status(family.status().code(), absl::StrCat("kernel ", k, ": ", family.status().message()));
    }
    for (size_t i = 0; i < at_size.size(); ++i) compiled[at_size[i]] = std::move((*family)[i]);
  }
  auto plans = BuildOpenPlans(functions, [&](Operation* op, const KernelWriter&) { return compiled.lookup(op); });
  if (!plans.ok()) return plans.status();
  auto family = PlanFamily::Join(*std::move(plans), points);
  if (!family.ok()) return family.status();
  Program program;
  program.format = "host-family";
  program.bytes = family->Serialize();
  return program;
}

}  // namespace tpu::host
