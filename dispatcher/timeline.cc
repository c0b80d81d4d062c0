// torch.profiler's rows of tpu: what each stream did and when, as kineto's device activities.
//
// PyTorch passes the profiler on to kineto, which starts a session for each trace that ProfilerActivity.PrivateUse1
// is part of, and asks it for its activities when the trace is over.
#include "jit/timeline.h"

#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tpu {
namespace {

using libkineto::ActivityType;
using Activities = std::set<ActivityType>;

// Kineto puts a string between quotes as it is.
std::string Quotable(const std::string& text) { return absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}); }

class Session final : public libkineto::IActivityProfilerSession {
 public:
  void start() override { Timeline::Get().Start(); }
  void stop() override { spans_ = Timeline::Get().Stop(); }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(0, 0, "tpu");
    buffer_->gpuOpCount = static_cast<int>(spans_.size());
    int32_t id = 0;
    for (const Span& span : spans_) {
      buffer_->emplace_activity(buffer_->span, ActivityType::CONCURRENT_KERNEL, Quotable(span.name));
      libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
      activity.startTime = span.begin;
      activity.endTime = span.end;
      activity.device = span.device;
      activity.resource = span.stream;
      activity.threadId = span.stream;
      activity.id = ++id;
      for (const auto& [key, text] : span.details) activity.addMetadataQuoted(key, Quotable(text));
      activity.log(logger);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (spans_.empty()) return nullptr;
    const int device = spans_.front().device;
    return std::unique_ptr<libkineto::DeviceInfo>(
        new libkineto::DeviceInfo{device, libkineto::kExceedMaxPid + device, "tpu", absl::StrCat("tpu:", device)});
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::map<std::pair<int, int>, Span::Kind> rows;
    for (const Span& span : spans_) rows[{span.device, span.stream}] = span.kind;
    std::vector<libkineto::ResourceInfo> infos;
    for (const auto& [row, kind] : rows) {
      const char* const what = kind == Span::Kind::kCollective ? "collectives" : "fragments";
      infos.push_back({row.second, row.second, row.first, absl::StrCat("stream ", row.second, ": ", what)});
    }
    return infos;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

 private:
  std::vector<Span> spans_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const Activities& availableActivities() const override { return activities_; }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const Activities& wanted,
                                                                 const libkineto::Config&) override {
    if (wanted.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    return std::make_unique<Session>();
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const Activities& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "tpu";
  const Activities activities_ = {ActivityType::CONCURRENT_KERNEL};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace tpu
