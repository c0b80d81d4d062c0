// The embedded device, with plans written by hand.
#include "runtime/host/host_device.h"
#include "runtime/host/plan.h"
#include "tests/conformance/registry.h"
#include "tests/support/function_loader.h"

namespace tpu::conformance {
namespace {

using host::OutputSpec;
using host::Plan;
using host::Slot;
using host::Step;

void Add(void** p, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(p[0]);
  const float* y = static_cast<const float*>(p[1]);
  for (int64_t i = begin; i < end; ++i) static_cast<float*>(p[2])[i] = x[i] + y[i];
}

// pointers: source, index, the source's length, result, error.
void Take(void** p, int64_t begin, int64_t end) {
  const int64_t length = *static_cast<const int64_t*>(p[2]);
  for (int64_t i = begin; i < end; ++i) {
    int64_t at = static_cast<const int64_t*>(p[1])[i];
    if (at < 0 || at >= length) {
      *static_cast<int64_t*>(p[4]) = 1;
      at = 0;
    }
    static_cast<float*>(p[3])[i] = static_cast<const float*>(p[0])[at];
  }
}

TensorType Floats(int64_t n) { return {DType::kFloat32, {n}}; }

uint64_t Bytes(int64_t n, uint64_t each = 4) { return static_cast<uint64_t>(n) * each; }

Program Finish(const Plan& plan, std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
  return {.format = "host", .bytes = plan.Serialize(), .inputs = std::move(inputs), .outputs = std::move(outputs)};
}

Program AddProgram(int64_t n) {
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {{Slot::Kind::kInput, 0, 0, Bytes(n)},
                {Slot::Kind::kInput, 1, 0, Bytes(n)},
                {Slot::Kind::kOutput, 0, 0, Bytes(n)}};
  plan.kernels = {{"conformance add", "add"}};
  plan.steps = {{.label = "add", .slots = {0, 1, 2}, .num_inputs = 2, .kernel = {.rows = n, .grain = 4096}}};
  plan.outputs = {{.may_overwrite = 1, .bytes = Bytes(n)}};
  return Finish(plan, {Floats(n), Floats(n)}, {Floats(n)});
}

Program TakeProgram(int64_t n, int64_t m) {
  Plan plan;
  plan.num_inputs = 2;
  plan.constants.assign(reinterpret_cast<const char*>(&n), sizeof(n));
  plan.slots = {{Slot::Kind::kInput, 0, 0, Bytes(n)},
                {Slot::Kind::kInput, 1, 0, Bytes(m, 8)},
                {Slot::Kind::kOutput, 0, 0, Bytes(m)},
                {Slot::Kind::kConstant, 0, 0, 8}};
  plan.kernels = {{"conformance take", "take"}};
  plan.steps = {{.label = "take", .slots = {0, 1, 3, 2}, .num_inputs = 3, .kernel = {.rows = m, .grain = 4096}}};
  plan.outputs = {{.bytes = Bytes(m)}};
  return Finish(plan, {Floats(n), {DType::kInt64, {m}}}, {Floats(m)});
}

Program IdentityProgram(int64_t n) {
  Plan plan;
  plan.num_inputs = 1;
  plan.outputs = {{.kind = OutputSpec::Kind::kInput, .source = 0, .bytes = Bytes(n)},
                  {.kind = OutputSpec::Kind::kOutput, .source = 0, .bytes = Bytes(n)}};
  return Finish(plan, {Floats(n)}, {Floats(n), Floats(n)});
}

Program CallProgram(int64_t n) {
  Plan plan;
  plan.num_inputs = 1;
  plan.slots = {{Slot::Kind::kInput, 0, 0, Bytes(n)}, {Slot::Kind::kOutput, 0, 0, Bytes(n)}};
  plan.steps = {{.kind = Step::Kind::kCall, .label = "node", .slots = {0, 1}, .num_inputs = 1, .call = {3}}};
  plan.outputs = {{.bytes = Bytes(n)}};
  return Finish(plan, {Floats(n)}, {Floats(n)});
}

std::unique_ptr<Device> MakeDevice(int64_t memory_bytes) {
  static auto* loader = new host::FunctionLoader({{"add", Add}, {"take", Take}});
  return host::MakeHostDevice(0, memory_bytes, loader);
}

[[maybe_unused]] const bool registered = Register({.name = "host",
                                                   .make = MakeDevice,
                                                   .add = AddProgram,
                                                   .take = TakeProgram,
                                                   .identity = IdentityProgram,
                                                   .call = CallProgram});

}  // namespace
}  // namespace tpu::conformance
