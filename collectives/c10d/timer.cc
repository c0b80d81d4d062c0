// DistributedDataParallel's timer of phases on this device. It is told when the host calls; the device does the work
// later, in fragments that don't end where phases do. So there are no times to tell: without a timer, DDP warns of that
// on every rank.
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace c10d {
namespace {

class TpuTimer final : public Timer {
 public:
  explicit TpuTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kPrivateUse1, TpuTimer)

}  // namespace
}  // namespace c10d
