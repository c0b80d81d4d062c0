// Runs a module written as text on the host device: parse, compile, load, launch.
//
// Used by the host compiler's tests. One device for the process; single-threaded callers.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "compiler/host/host_backend.h"
#include "compiler/host/host_compiler.h"
#include "compiler/ir/dialect.h"
#include "gtest/gtest.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "runtime/device.h"
#include "runtime/host/host_device.h"
#include "runtime/host/plan.h"

namespace tpu::host {

using Bytes = std::vector<char>;

template <typename T>
Bytes Pack(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <typename T>
std::vector<T> Unpack(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

inline Device& TestDevice() {
  static Device* device = MakeHostDevice(0, 0, MakeObjectLoader().release()).release();
  return *device;
}

inline absl::StatusOr<Program> CompileText(const std::string& text, const Tuning& tuning = {}) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  if (!module) return absl::InvalidArgumentError("the test's module does not parse");
  return CompileModule(*module, "test", tuning);
}

// Outputs of a module `func.func @fragment(...)`, or the first error.
inline absl::StatusOr<std::vector<Bytes>> RunText(const std::string& text, const std::vector<Bytes>& inputs,
                                                  bool donate = false, const Tuning& tuning = {}) {
  auto program = CompileText(text, tuning);
  if (!program.ok()) return program.status();
  Device& device = TestDevice();
  auto executable = device.Load(*program);
  if (!executable.ok()) return executable.status();
  std::vector<Argument> arguments;
  for (const Bytes& input : inputs) {
    Argument argument;
    auto buffer = device.MakeValue({DType::kUInt8, {static_cast<int64_t>(input.size())}}, input.data());
    if (!buffer.ok()) return buffer.status();
    argument.buffer = *std::move(buffer);
    argument.donated = donate;
    arguments.push_back(std::move(argument));
  }
  std::vector<BufferRef> outputs(program->outputs.size());
  absl::Status status = (*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr);
  if (!status.ok()) return status;
  std::vector<Bytes> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Bytes bytes(program->outputs[i].bytes());
    if (absl::Status s = device.CopyToHost(outputs[i], bytes.data(), bytes.size()); !s.ok()) return s;
    results.push_back(std::move(bytes));
  }
  return results;
}

// The steps of the compiled plan.
inline std::vector<Step> StepsOf(const std::string& text) {
  auto program = CompileText(text);
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return {};
  auto plan = Plan::Parse(program->bytes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? plan->steps : std::vector<Step>();
}

template <typename T>
std::vector<T> RunFor(const std::string& text, const std::vector<Bytes>& inputs, size_t output = 0) {
  auto results = RunText(text, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  return results.ok() ? Unpack<T>((*results)[output]) : std::vector<T>();
}

inline std::vector<float> Ramp(int64_t n, float scale = 0.37f, float offset = -3.0f) {
  std::vector<float> v(n);
  uint32_t state = 12345;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<float>(state >> 8) / static_cast<float>(1 << 24) * 6.0f * (scale / 0.37f) + offset;
  }
  return v;
}

}  // namespace tpu::host
