#include "compiler/host/object_code.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/host/host_backend.h"
#include "llvm/Analysis/CGSCCPassManager.h"
#include "llvm/Analysis/LoopAnalysisManager.h"
#include "llvm/Analysis/TargetTransformInfo.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/PassManager.h"
#include "llvm/IR/Verifier.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/CommandLine.h"
#include "llvm/Support/SmallVectorMemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "llvm/Transforms/InstCombine/InstCombine.h"
#include "llvm/Transforms/Scalar/EarlyCSE.h"
#include "llvm/Transforms/Scalar/LICM.h"
#include "llvm/Transforms/Scalar/LoopPassManager.h"
#include "llvm/Transforms/Scalar/LoopRotation.h"
#include "llvm/Transforms/Scalar/SROA.h"
#include "llvm/Transforms/Scalar/SimplifyCFG.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

struct HostCpu {
  std::string triple, name, features;
  int vector_bits = 128;
};

// Switches a pass of the code generator off for the process. LLVM has no other way to.
void Disable(llvm::StringRef option) {
  auto& options = llvm::cl::getRegisteredOptions();
  auto it = options.find(option);
  if (it != options.end()) static_cast<llvm::cl::opt<bool>*>(it->second)->setValue(true);
}

const HostCpu& Host() {
  static const HostCpu host = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    // A fifth of the time of generating code, for nothing: kernels step by one index, which fits x86's addresses, and
    // cores reorder instructions themselves.
    Disable("disable-lsr");
    Disable("disable-post-ra");
    HostCpu cpu;
    cpu.triple = llvm::sys::getProcessTriple();
    const Instructions& usable = UsableInstructions();
    cpu.vector_bits = usable.avx512 ? 512 : usable.avx2 ? 256 : 128;
    cpu.name = usable.level;
    if (!cpu.name.empty()) return cpu;
    cpu.name = llvm::sys::getHostCPUName().str();
    std::vector<std::string> names;
    for (const auto& feature : llvm::sys::getHostCPUFeatures()) {
      names.push_back((feature.second ? "+" : "-") + feature.first().str());
    }
    std::sort(names.begin(), names.end());
    cpu.features = absl::StrJoin(names, ",");
    return cpu;
  }();
  return host;
}

absl::StatusOr<std::unique_ptr<llvm::TargetMachine>> MakeTargetMachine() {
  const HostCpu& cpu = Host();
  llvm::Triple triple(cpu.triple);
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (target == nullptr) return absl::InternalError(error);
  llvm::TargetOptions options;
  // Only where vector_math asks: a product and a sum are rounded each, fused into one kernel or not.
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  std::unique_ptr<llvm::TargetMachine> machine(
      target->createTargetMachine(triple, cpu.name, cpu.features, options, llvm::Reloc::PIC_, llvm::CodeModel::Small,
                                  llvm::CodeGenOptLevel::Default, /*JIT=*/true));
  if (machine == nullptr) return absl::InternalError("no code generator for this CPU");
  return machine;
}

}  // namespace

int VectorBits() { return Host().vector_bits; }

std::string CodeTarget() { return absl::StrCat(Host().triple, ":", Host().name, ":", Host().features); }

absl::StatusOr<std::string> EmitObject(llvm::Module& module) {
  // A machine knows the CPU once it has compiled for it (0.5 ms); several threads may not use one.
  thread_local const auto machine = MakeTargetMachine();
  if (!machine.ok()) return machine.status();
  llvm::TargetMachine& target = **machine;
  module.setDataLayout(target.createDataLayout());
  module.setTargetTriple(target.getTargetTriple());
  for (llvm::Function& function : module) {
    if (function.isDeclaration()) continue;
    function.addFnAttr("target-cpu", target.getTargetCPU());
    function.addFnAttr("target-features", target.getTargetFeatureString());
    if (VectorBits() == 512) function.addFnAttr("prefer-vector-width", "512");
  }
  std::string problems;
  llvm::raw_string_ostream problem_stream(problems);
  if (llvm::verifyModule(module, &problem_stream)) {
    return absl::InternalError(absl::StrCat("kernel is not valid LLVM IR: ", problems));
  }

  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager sccs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&target);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(sccs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, sccs, modules);

  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));  // loop counters and accumulators into registers
  passes.addPass(llvm::EarlyCSEPass(/*UseMemorySSA=*/true));     // equal address arithmetic and constants
  passes.addPass(llvm::InstCombinePass());                       // conversions and selects of neighbouring operations
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(
      llvm::LICMPass(llvm::LICMOptions()), /*UseMemorySSA=*/true));  // what is the same for a whole row leaves its loop
  passes.addPass(llvm::SimplifyCFGPass());
  llvm::ModulePassManager pipeline;
  pipeline.addPass(llvm::createModuleToFunctionPassAdaptor(std::move(passes)));
  pipeline.run(module, modules);

  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager emit;
  if (target.addPassesToEmitFile(emit, stream, nullptr, llvm::CodeGenFileType::ObjectFile, /*DisableVerify=*/true)) {
    return absl::InternalError("this CPU's code generator can't emit objects");
  }
  emit.run(module);
  return std::string(object.begin(), object.end());
}

}  // namespace tpu::host
