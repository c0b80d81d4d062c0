// Loads kernel objects with JITLink: one ExecutionSession for the process, one JITDylib for each kernel, removed with
// the last reference. Kernels may call only the functions listed here, libm's scalars and the sort, and libmvec's.
#include <atomic>
#include <cmath>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/host/host_backend.h"
#include "compiler/host/special_kernels.h"
#include "compiler/host/vector_library.h"
#include "llvm/ADT/BitmaskEnum.h"
#include "llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h"
#include "llvm/ExecutionEngine/Orc/AbsoluteSymbols.h"
#include "llvm/ExecutionEngine/Orc/Core.h"
#include "llvm/ExecutionEngine/Orc/ObjectLinkingLayer.h"
#include "llvm/ExecutionEngine/Orc/SelfExecutorProcessControl.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Process.h"

namespace tpu::host {
namespace {

using llvm::orc::ExecutionSession;
using llvm::orc::JITDylib;
LLVM_ENABLE_BITMASK_ENUMS_IN_NAMESPACE();

absl::Status ToStatus(llvm::Error error, const char* doing) {
  return absl::InternalError(absl::StrCat(doing, ": ", llvm::toString(std::move(error))));
}

template <typename F>
llvm::orc::ExecutorSymbolDef Symbol(F* function) {
  return {llvm::orc::ExecutorAddr::fromPtr(function), llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
}

// libmvec's functions, as kernels ask for them.
class VectorFunctions : public llvm::orc::DefinitionGenerator {
 public:
  llvm::Error tryToGenerate(llvm::orc::LookupState&, llvm::orc::LookupKind, JITDylib& library,
                            llvm::orc::JITDylibLookupFlags, const llvm::orc::SymbolLookupSet& wanted) override {
    llvm::orc::SymbolMap found;
    for (const auto& [name, flags] : wanted) {
      void* address = (*name).starts_with("_ZGV") ? VectorFunctionAddress(std::string(*name)) : nullptr;
      if (address == nullptr) continue;
      found[name] = {llvm::orc::ExecutorAddr::fromPtr(address),
                     llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
    }
    return found.empty() ? llvm::Error::success() : library.define(llvm::orc::absoluteSymbols(std::move(found)));
  }
};

// Constants are mapped as the code is: kernels side by side are one mapping then, not two each, and Linux lets a
// process have so many (vm.max_map_count).
class OneKindOfMapping : public llvm::orc::ObjectLinkingLayer::Plugin {
 public:
  void modifyPassConfig(llvm::orc::MaterializationResponsibility&, llvm::jitlink::LinkGraph&,
                        llvm::jitlink::PassConfiguration& passes) override {
    using llvm::orc::MemProt;
    passes.PostPrunePasses.push_back([](llvm::jitlink::LinkGraph& graph) {
      for (llvm::jitlink::Section& section : graph.sections()) {
        if (section.getMemProt() == MemProt::Read) section.setMemProt(MemProt::Read | MemProt::Exec);
      }
      return llvm::Error::success();
    });
  }
  llvm::Error notifyFailed(llvm::orc::MaterializationResponsibility&) override { return llvm::Error::success(); }
  llvm::Error notifyRemovingResources(JITDylib&, llvm::orc::ResourceKey) override { return llvm::Error::success(); }
  void notifyTransferringResources(JITDylib&, llvm::orc::ResourceKey, llvm::orc::ResourceKey) override {}
};

// What conversions of f16 are where the processor has none; libgcc's, which compilers call by these names.
extern "C" float __extendhfsf2(_Float16);
extern "C" _Float16 __truncsfhf2(float);

class Session {
 public:
  static Session& Get() {
    static Session* session = new Session();  // lives as long as the process: kernels may outlive static destructors
    return *session;
  }

  ExecutionSession& execution() { return *execution_; }
  llvm::orc::ObjectLinkingLayer& layer() { return *layer_; }
  JITDylib& math() { return *math_; }
  const absl::Status& status() const { return status_; }

 private:
  Session() {
    auto control = llvm::orc::SelfExecutorProcessControl::Create();
    if (!control) {
      status_ = ToStatus(control.takeError(), "starting the object loader");
      return;
    }
    execution_ = std::make_unique<ExecutionSession>(std::move(*control));
    auto page = llvm::sys::Process::getPageSize();
    if (!page) {
      status_ = ToStatus(page.takeError(), "asking for the page size");
      return;
    }
    memory_ = std::make_unique<llvm::jitlink::InProcessMemoryManager>(*page);
    layer_ = std::make_unique<llvm::orc::ObjectLinkingLayer>(*execution_, *memory_);
    layer_->addPlugin(std::make_shared<OneKindOfMapping>());
    math_ = &execution_->createBareJITDylib("math");
    if (llvm::Error error = math_->define(llvm::orc::absoluteSymbols(MathSymbols()))) {
      status_ = ToStatus(std::move(error), "naming libm's functions");
    }
    math_->addGenerator(std::make_unique<VectorFunctions>());
  }

  llvm::orc::SymbolMap MathSymbols() {
    llvm::orc::SymbolMap symbols;
#define TPU_MATH1(name)                                                                  \
  symbols[execution_->intern(#name)] = Symbol(static_cast<double (*)(double)>(&::name)); \
  symbols[execution_->intern(#name "f")] = Symbol(static_cast<float (*)(float)>(&::name##f));
#define TPU_MATH2(name)                                                                          \
  symbols[execution_->intern(#name)] = Symbol(static_cast<double (*)(double, double)>(&::name)); \
  symbols[execution_->intern(#name "f")] = Symbol(static_cast<float (*)(float, float)>(&::name##f));
    TPU_MATH1(exp)
    TPU_MATH1(exp2)
    TPU_MATH1(expm1)
    TPU_MATH1(log)
    TPU_MATH1(log2)
    TPU_MATH1(log10)
    TPU_MATH1(log1p)
    TPU_MATH1(sin)
    TPU_MATH1(cos)
    TPU_MATH1(tan)
    TPU_MATH1(asin)
    TPU_MATH1(acos)
    TPU_MATH1(atan)
    TPU_MATH1(sinh)
    TPU_MATH1(cosh)
    TPU_MATH1(tanh)
    TPU_MATH1(asinh)
    TPU_MATH1(acosh)
    TPU_MATH1(atanh)
    TPU_MATH1(erf)
    TPU_MATH1(erfc)
    TPU_MATH1(lgamma)
    TPU_MATH1(tgamma)
    TPU_MATH1(cbrt)
    TPU_MATH1(floor)
    TPU_MATH1(ceil)
    TPU_MATH1(trunc)
    TPU_MATH1(roundeven)
    TPU_MATH2(pow)
    TPU_MATH2(atan2)
    TPU_MATH2(fmod)
#undef TPU_MATH1
#undef TPU_MATH2
    // What LLVM makes of a sine and a cosine of one number.
    symbols[execution_->intern("sincos")] = Symbol(&::sincos);
    symbols[execution_->intern("sincosf")] = Symbol(&::sincosf);
    symbols[execution_->intern("fma")] = Symbol(static_cast<double (*)(double, double, double)>(&::fma));
    symbols[execution_->intern("fmaf")] = Symbol(static_cast<float (*)(float, float, float)>(&::fmaf));
    symbols[execution_->intern("__extendhfsf2")] = Symbol(&__extendhfsf2);
    symbols[execution_->intern("__truncsfhf2")] = Symbol(&__truncsfhf2);
    symbols[execution_->intern("tpu_host_sort")] = Symbol(&::tpu_host_sort);
    symbols[execution_->intern("memcpy")] = Symbol(&::memcpy);
    symbols[execution_->intern("memset")] = Symbol(&::memset);
    return symbols;
  }

  absl::Status status_;
  std::unique_ptr<ExecutionSession> execution_;
  std::unique_ptr<llvm::jitlink::InProcessMemoryManager> memory_;
  std::unique_ptr<llvm::orc::ObjectLinkingLayer> layer_;
  JITDylib* math_ = nullptr;
};

class ObjectKernel : public LoadedKernel {
 public:
  ObjectKernel(JITDylib* library, KernelFunction function) : library_(library), function_(function) {}
  ~ObjectKernel() override { llvm::consumeError(Session::Get().execution().removeJITDylib(*library_)); }
  KernelFunction function() const override { return function_; }

 private:
  JITDylib* library_;
  KernelFunction function_;
};

class ObjectLoader : public CodeLoader {
 public:
  absl::StatusOr<std::shared_ptr<LoadedKernel>> Load(const std::string& object) override {
    Session& session = Session::Get();
    if (!session.status().ok()) return session.status();
    static std::atomic<uint64_t> counter{0};
    JITDylib& library = session.execution().createBareJITDylib(absl::StrCat("kernel", counter.fetch_add(1)));
    library.addToLinkOrder(session.math());
    if (llvm::Error error = session.layer().add(
            library, llvm::MemoryBuffer::getMemBufferCopy(llvm::StringRef(object.data(), object.size()), "kernel"))) {
      llvm::consumeError(session.execution().removeJITDylib(library));
      return ToStatus(std::move(error), "loading a kernel");
    }
    auto symbol = session.execution().lookup({&library}, "kernel");
    if (!symbol) {
      absl::Status status = ToStatus(symbol.takeError(), "linking a kernel");
      llvm::consumeError(session.execution().removeJITDylib(library));
      return status;
    }
    return std::make_shared<ObjectKernel>(&library, symbol->getAddress().toPtr<KernelFunction>());
  }
};

}  // namespace

std::unique_ptr<CodeLoader> MakeObjectLoader() { return std::make_unique<ObjectLoader>(); }

}  // namespace tpu::host
