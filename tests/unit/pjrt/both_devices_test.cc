// Every function of the IR tests gives the same on the embedded device and through PJRT (the CPU plugin): one text, two
// compilers, two devices.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "compiler/host/host_compiler.h"
#include "compiler/ir/types.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "tests/unit/pjrt/two_devices.h"

namespace tpu {
namespace {

// False where one of the two has no way to say it: a call without a lowering, a primitive of one device only.
bool RunsOnBoth(mlir::func::FuncOp function) {
  bool both = true;
  function.walk([&](mlir::Operation* op) { both &= !mlir::isa<ir::ConvOp, ir::FusionOp>(op); });
  return both;
}

int CheckFunction(mlir::func::FuncOp function, const std::string& where) {
  mlir::MLIRContext& context = *function.getContext();
  const auto alone = [&] {
    mlir::OwningOpRef<mlir::ModuleOp> module = mlir::ModuleOp::create(mlir::UnknownLoc::get(&context));
    module->push_back(function.clone());
    return module;
  };
  auto host_module = alone(), plugin_module = alone();
  auto for_host = host::CompileModule(*host_module, "test");
  auto for_plugin = stablehlo::CompileModule(*plugin_module, "test");
  // A call that stays one, or a form that only the other device's lowerings use.
  if (absl::IsUnimplemented(for_plugin.status()) || absl::IsUnimplemented(for_host.status())) return 0;
  bool hosts_own_kernel = false;
  host_module->walk([&](ir::AtenOp) { hosts_own_kernel = true; });
  if (hosts_own_kernel) return 0;
  EXPECT_TRUE(for_host.ok()) << where << for_host.status();
  EXPECT_TRUE(for_plugin.ok()) << where << for_plugin.status();
  if (!for_host.ok() || !for_plugin.ok()) return 0;
  std::mt19937 random(7);
  std::vector<Bytes> inputs;
  bool divides = false;
  host_module->walk([&](mlir::Operation* op) { divides |= mlir::isa<ir::DivOp, ir::RemOp>(op); });
  for (const TensorType& type : for_host->inputs) inputs.push_back(RandomValue(type, divides, random));
  auto on_host = Run(HostDevice(), *for_host, inputs);
  auto on_plugin = Run(PluginDevice(), *for_plugin, inputs);
  EXPECT_TRUE(on_host.ok()) << where << on_host.status();
  EXPECT_TRUE(on_plugin.ok()) << where << on_plugin.status();
  if (!on_host.ok() || !on_plugin.ok()) return 0;
  for (size_t i = 0; i < on_host->size(); ++i) {
    SCOPED_TRACE(where);
    Compare(for_host->outputs[i], (*on_host)[i], (*on_plugin)[i]);
  }
  return 1;
}

int CheckText(const std::string& text, const std::string& where) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  EXPECT_TRUE(module) << where;
  int checked = 0;
  for (mlir::func::FuncOp f : module->getOps<mlir::func::FuncOp>()) {
    if (RunsOnBoth(f)) checked += CheckFunction(f, where + " @" + f.getName().str() + ": ");
  }
  return checked;
}

TEST(BothDevices, GiveTheSame) {
  int checked = 0;
  for (const char* folder : {"lower", "stablehlo"}) {
    for (const auto& file : std::filesystem::directory_iterator(std::string(IR_TESTS) + "/" + folder)) {
      std::ifstream in(file.path());
      std::string text((std::istreambuf_iterator<char>(in)), {});
      const std::string separator = "// -----";
      for (size_t at = 0; at != std::string::npos;) {
        const size_t end = text.find(separator, at);
        checked += CheckText(text.substr(at, end - at), file.path().filename().string());
        at = end == std::string::npos ? end : end + separator.size();
      }
    }
  }
  EXPECT_GT(checked, 40);
}

}  // namespace
}  // namespace tpu
