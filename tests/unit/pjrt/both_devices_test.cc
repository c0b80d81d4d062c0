// Every function of the IR tests gives the same on the embedded device and through PJRT (the CPU plugin): one text, two
// compilers, two devices.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "compiler/host/host_backend.h"
#include "compiler/host/host_compiler.h"
#include "compiler/ir/types.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "runtime/host/host_device.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu {
namespace {

using Bytes = std::vector<char>;

Device& HostDevice() {
  static Device* device = host::MakeHostDevice(0, 0, host::MakeObjectLoader().release()).release();
  return *device;
}
Device& PluginDevice() {
  static Device* device = [] {
    auto devices = pjrt::MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .devices = 1});
    if (!devices.ok()) throw std::runtime_error(devices.status().ToString());
    return devices->front().release();
  }();
  return *device;
}

// Indices are 0 or 1, numbers between 0 and 1: in the domain of all that the tests do. Integers that others may be
// divided by are 1 or 2: division by zero is an error of one device only.
Bytes RandomValue(const TensorType& type, bool divisors, std::mt19937& random) {
  Bytes bytes(type.bytes());
  const auto each = [&](auto make) {
    using T = decltype(make());
    for (int64_t i = 0; i < type.elements(); ++i) {
      const T value = make();
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  std::uniform_real_distribution<double> unit(0.1, 0.9);
  switch (type.dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const float value = static_cast<float>(unit(random));
        std::memcpy(bytes.data() + i, &value, 4);
      }
      break;
    case DType::kFloat64:
      each([&] { return unit(random); });
      break;
    case DType::kBFloat16:
      each([&] { return static_cast<uint16_t>(0x3f00 + random() % 0x70); });
      break;
    case DType::kFloat16:
      each([&] { return static_cast<uint16_t>(0x3800 + random() % 0x300); });
      break;
    default:
      const uint32_t least = divisors && type.dtype != DType::kBool ? 1 : 0;
      for (size_t i = 0; i < bytes.size(); i += SizeOf(type.dtype)) bytes[i] = static_cast<char>(least + random() % 2);
  }
  return bytes;
}

double NumberAt(const TensorType& type, const Bytes& bytes, int64_t i) {
  const char* at = bytes.data() + i * SizeOf(type.dtype);
  const auto as = [&](auto zero) {
    std::memcpy(&zero, at, sizeof zero);
    return zero;
  };
  if (type.dtype == DType::kFloat32) return as(float{});
  if (type.dtype == DType::kFloat64) return as(double{});
  if (type.dtype == DType::kBFloat16) {
    const uint32_t bits = static_cast<uint32_t>(as(uint16_t{})) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, at, std::min<size_t>(8, SizeOf(type.dtype)));
  return static_cast<double>(bits);
}

absl::StatusOr<std::vector<Bytes>> Run(Device& device, const Program& program, const std::vector<Bytes>& inputs) {
  auto executable = device.Load(program);
  if (!executable.ok()) return executable.status();
  std::vector<Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto buffer = device.MakeValue(program.inputs[i], inputs[i].data());
    if (!buffer.ok()) return buffer.status();
    arguments.push_back({.buffer = *buffer});
  }
  std::vector<BufferRef> outputs(program.outputs.size());
  if (auto s = (*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr); !s.ok()) return s;
  std::vector<Bytes> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.emplace_back(program.outputs[i].bytes());
    if (auto s = device.CopyToHost(outputs[i], results.back().data(), results.back().size()); !s.ok()) return s;
  }
  return results;
}

void Compare(const TensorType& type, const Bytes& a, const Bytes& b) {
  const bool half = type.dtype == DType::kBFloat16 || type.dtype == DType::kFloat16;
  for (int64_t i = 0; i < type.elements(); ++i) {
    const double x = NumberAt(type, a, i), y = NumberAt(type, b, i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) continue;
    ASSERT_NEAR(x, y, (half ? 1e-2 : 2e-6) * std::max(1.0, std::abs(x)))
        << "element " << i << " of " << type.ToString();
  }
}

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
