#include "compiler/passes/run_passes.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/Pass.h"
#include "mlir/Pass/PassInstrumentation.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

// Writes the function after every pass to DIR/NAME.NN.PASS.mlir.
class DumpStages : public mlir::PassInstrumentation {
 public:
  DumpStages(std::string directory, std::string name) : directory_(std::move(directory)), name_(std::move(name)) {}
  void runAfterPass(mlir::Pass* pass, mlir::Operation* op) override {
    if (pass->getArgument().empty()) return;
    std::string text;
    llvm::raw_string_ostream stream(text);
    op->print(stream);
    std::ofstream(
        absl::StrCat(directory_, "/", name_, ".", number_ / 10, number_ % 10, ".", pass->getArgument().str(), ".mlir"))
        << text << "\n";
    ++number_;
  }

 private:
  const std::string directory_, name_;
  int number_ = 0;
};

}  // namespace

absl::Status RunPasses(mlir::PassManager& passes, mlir::ModuleOp module, const std::string& name) {
  if (const std::string& dump = Flags::Get().dump; !dump.empty()) {
    ::mkdir(dump.c_str(), 0777);
    passes.addInstrumentation(std::make_unique<DumpStages>(dump, name));
  }
  std::string problems;
  mlir::ScopedDiagnosticHandler handler(module.getContext(), [&](mlir::Diagnostic& diagnostic) {
    absl::StrAppend(&problems, diagnostic.str(), "; ");
    return mlir::success();
  });
  if (mlir::failed(passes.run(module))) return absl::InternalError(absl::StrCat("compiling: ", problems));
  return absl::OkStatus();
}

void DumpStage(const std::string& name, const std::string& stage, const std::string& text) {
  if (const std::string& dump = Flags::Get().dump; !dump.empty()) {
    std::ofstream(absl::StrCat(dump, "/", name, ".", stage)) << text;
  }
}

}  // namespace tpu
