#include "compiler/host/host_backend.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "compiler/aten/registry.h"
#include "compiler/host/host_compiler.h"
#include "compiler/import/import.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/xxhash.h"
#include "mlir/IR/MLIRContext.h"

namespace tpu::host {
namespace {

// The bytes of the library that holds this compiler: another build may compile the same fragment to other code.
std::string HashOfThisLibrary() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&HashOfThisLibrary), &info) == 0 || info.dli_fname == nullptr) return "unknown";
  auto file = llvm::MemoryBuffer::getFile(info.dli_fname, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file) return "unknown";
  return absl::StrCat(absl::Hex(llvm::xxh3_64bits((*file)->getBuffer())));
}

class HostBackend : public CompilerBackend {
 public:
  absl::StatusOr<Program> Compile(const Fragment& fragment) override {
    mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
    auto module = ImportFragment(context, fragment);
    auto program = CompileModule(*module, fragment.StableKey());
    if (!program.ok()) return program;
    program->inputs.clear();
    for (const OperandType& input : fragment.inputs) program->inputs.push_back(input.type);
    return program;
  }
  bool CanLower(const Call& call) const override { return aten::CanLower(call); }
  bool IsBoundary(const Call& call) const override { return aten::IsBoundary(call.op); }
  bool StaticScalars(const std::string& op) const override { return aten::StaticScalars(op); }
  std::string Fingerprint() const override {
    static const std::string fingerprint = absl::StrCat("host-", HashOfThisLibrary());
    return fingerprint;
  }
};

}  // namespace

std::unique_ptr<CompilerBackend> MakeHostBackend() { return std::make_unique<HostBackend>(); }

}  // namespace tpu::host
