#include "runtime/host/host_device.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/host/allocator.h"
#include "runtime/host/conv.h"
#include "runtime/host/copy.h"
#include "runtime/host/executable.h"
#include "runtime/host/gemm.h"
#include "runtime/host/panel_gemm.h"
#include "runtime/host/parallel.h"
#include "runtime/machine.h"

namespace tpu::host {
namespace {

absl::Status CheckFormat(const Program& program, const char* format) {
  if (program.format == format) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the embedded device loads programs of format '", format, "', not '", program.format, "'"));
}

class HostDevice final : public Device {
 public:
  HostDevice(int index, int64_t memory_bytes, CodeLoader* loader)
      : index_(index),
        loader_(loader),
        allocator_(absl::StrCat("tpu:", index), memory_bytes > 0 ? memory_bytes : UsableMemory()) {}

  int index() const override { return index_; }
  bool host_addressable() const override { return true; }

  std::string Describe() const override {
    return absl::StrFormat("tpu:%d: embedded device on %s, %d threads, %.1f GiB", index_, CpuInfo("model name"),
                           NumThreads(), static_cast<double>(memory_stats().limit_bytes) / (1 << 30));
  }

  std::string Target() const override {
    const std::string& level = UsableInstructions().level;
    static const std::string target =
        absl::StrCat("host:", CpuInfo("model name"), ":", level.empty() ? CpuInfo("flags") : level);
    return target;
  }

  absl::StatusOr<BufferRef> Allocate(size_t bytes) override {
    absl::StatusOr<Allocator::Allocation> memory = allocator_.Allocate(bytes);
    if (!memory.ok()) return memory.status();
    return MakeRef<Buffer>(memory->data, bytes,
                           [allocator = &allocator_, handle = memory->handle] { allocator->Free(handle); });
  }

  absl::StatusOr<BufferRef> MakeValue(const TensorType& type, const void* source) override {
    absl::StatusOr<BufferRef> buffer = Allocate(type.bytes());
    if (buffer.ok() && source != nullptr) CopyBytes((*buffer)->data(), source, type.bytes());
    return buffer;
  }

  absl::Status CopyToHost(const BufferRef& source, void* destination, size_t bytes) override {
    if (!source) return absl::InvalidArgumentError("copy: no device buffer");
    if (bytes > source->bytes()) {
      return absl::InvalidArgumentError(
          absl::StrCat("copy of ", bytes, " bytes, the device buffer has ", source->bytes()));
    }
    CopyBytes(destination, source->data(), bytes);
    return absl::OkStatus();
  }

  bool Multiply(const MatrixProduct& p) override {
    if (!PanelsFirst()) return false;
    GemmStep step;
    step.trans_a = p.trans_a;
    step.trans_b = p.trans_b;
    step.m = p.m;
    step.n = p.n;
    step.k = p.k;
    step.lda = p.lda;
    step.ldb = p.ldb;
    step.ldc = p.n;
    step.batch = {p.batch};
    step.stride_a = {p.stride_a};
    step.stride_b = {p.stride_b};
    step.stride_c = {p.m * p.n};
    RunGemm(step, p.a, p.b, p.c);
    return true;
  }

  bool Convolve(const Convolution& convolution, const void* a, const void* b, float* c) override {
    if (!CanConvolve(convolution)) return false;
    if (c != nullptr) RunConv(convolution, a, b, c);
    return true;
  }

  bool Settle() override { return allocator_.Settle(); }

  absl::StatusOr<std::unique_ptr<Executable>> Load(const Program& program) override {
    if (absl::Status status = CheckFormat(program, "host"); !status.ok()) return status;
    absl::StatusOr<Plan> plan = Plan::Parse(program.bytes);
    if (!plan.ok()) return plan.status();
    if (plan->num_inputs != program.inputs.size() || plan->outputs.size() != program.outputs.size()) {
      return absl::InvalidArgumentError(absl::StrCat("host plan: ", plan->num_inputs, " inputs and ",
                                                     plan->outputs.size(), " outputs, its program's signature has ",
                                                     program.inputs.size(), " and ", program.outputs.size()));
    }
    return LoadPlan(this, *std::move(plan), loader_);
  }

  absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadFamily(const Program& program) override {
    if (absl::Status status = CheckFormat(program, "host-family"); !status.ok()) return status;
    absl::StatusOr<PlanFamily> family = PlanFamily::Parse(program.bytes);
    if (!family.ok()) return family.status();
    return LoadPlanFamily(this, *std::move(family), loader_);
  }

  MemoryStats memory_stats() const override { return allocator_.stats(); }
  void ResetPeakMemoryStats() override { allocator_.ResetPeak(); }
  void AllowMemory(int64_t bytes) override { allocator_.Allow(bytes); }
  void EmptyCache() override { allocator_.EmptyCache(); }

 private:
  const int index_;
  CodeLoader* const loader_;
  Allocator allocator_;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(int index, int64_t memory_bytes, CodeLoader* loader) {
  return std::make_unique<HostDevice>(index, memory_bytes, loader);
}

}  // namespace tpu::host
