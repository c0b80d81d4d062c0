#include "dispatcher/allocator.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "dispatcher/streams.h"
#include "jit/engine.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

constexpr size_t kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// What a device had counted when its accumulated statistics were last reset.
struct Counts {
  int64_t allocs = 0, system_allocs = 0, ooms = 0;
};
std::mutex counts_mutex;
Counts& CountsOf(int device) {
  static auto* const counts = new std::map<int, Counts>();
  return (*counts)[device];
}

void Fill(c10::CachingAllocator::StatArray& stat, int64_t current, int64_t peak) {
  stat[kAll].current = current;
  stat[kAll].peak = peak;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = CurrentDevice();
    const c10::Device torch_device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, torch_device};
    BufferRef buffer = MakeValueOrRaise(device, {DType::kUInt8, {static_cast<int64_t>(bytes)}}, nullptr);
    TORCH_CHECK_NOT_IMPLEMENTED(Engine::Get().device(device).host_addressable(),
                                "tpu: the memory of this device has no addresses");
    buffer->AddRef();  // the DataPtr's
    return {buffer->data(), buffer.get(), &Free, torch_device};
  }
  // Null: raw_allocate is not offered, since a DataPtr's context differs from its data.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool initialized() override { return Engine::IsInitialized(); }
  void emptyCache(c10::MempoolId_t) override {
    if (!Engine::IsInitialized()) return;
    for (int device = 0; device < DeviceCount(); ++device) {
      Engine::Get().SynchronizeDevice(device);
      Engine::Get().device(device).EmptyCache();
    }
  }
  // Buffers are counted: one that a queued launch reads is not reused before that launch is done.
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const MemoryStats now = SettledMemoryStats(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    Fill(stats.allocated_bytes, now.allocated_bytes, now.peak_allocated_bytes);
    Fill(stats.active_bytes, now.allocated_bytes, now.peak_allocated_bytes);
    Fill(stats.requested_bytes, now.allocated_bytes, now.peak_allocated_bytes);
    Fill(stats.reserved_bytes, now.reserved_bytes, now.peak_reserved_bytes);
    stats.allocation[kAll].allocated = now.num_allocs;
    stats.num_device_alloc = now.num_system_allocs;
    stats.num_ooms = now.num_ooms;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const MemoryStats now = SettledMemoryStats(device);
    std::lock_guard<std::mutex> lock(counts_mutex);
    Counts& former = CountsOf(device);
    former.allocs += now.num_allocs;
    former.system_allocs += now.num_system_allocs;
    former.ooms += now.num_ooms;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    SettledMemoryStats(device);
    Engine::Get().device(device).ResetPeakMemoryStats();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const MemoryStats now = SettledMemoryStats(device);
    return {now.limit_bytes - now.allocated_bytes, now.limit_bytes};
  }

 private:
  static void Free(void* context) { static_cast<Buffer*>(context)->Release(); }
};

// Values made here are there before what was recorded earlier has given up what it reads and has room for what it
// makes: where half of the memory is taken and they have taken a sixteenth of it, their stream runs that first. By
// device: their bytes since.
constexpr int64_t kShareAhead = 16;
constexpr int64_t kLeastAhead = 1 << 20;  // before the device, a plugin perhaps, is asked
std::array<std::atomic<int64_t>, kMostDevices> ahead{};

void MakeNoMoreAhead(Stream& stream, int device, int64_t bytes) {
  const int64_t made = ahead[device] += bytes;
  if (made < kLeastAhead) return;
  const MemoryStats stats = Engine::Get().device(device).memory_stats();
  const bool room = stats.allocated_bytes + bytes <= stats.allowed_bytes / 2;
  if (room) ahead[device] = 0;
  if (room || made <= stats.allowed_bytes / kShareAhead || Stream::Running() != nullptr) return;
  Engine::Get().SynchronizeStream(stream);
  ahead[device] = bytes;
}

Allocator allocator;
REGISTER_ALLOCATOR(c10::kPrivateUse1, &allocator)

}  // namespace

c10::DeviceAllocator& TorchAllocator() { return allocator; }

BufferRef MakeValueOrRaise(int device, const TensorType& type, const void* source) {
  Stream& stream = CurrentStream(device);  // makes the devices, checks the number and the fork
  MakeNoMoreAhead(stream, device, static_cast<int64_t>(type.bytes()));
  Device& target = Engine::Get().device(device);
  absl::StatusOr<BufferRef> buffer = target.MakeValue(type, source);
  if (!buffer.ok()) {
    Engine::Get().SynchronizeDevice(device);
    target.EmptyCache();
    buffer = target.MakeValue(type, source);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, buffer.ok(), "tpu:", device,
                   " is out of memory: ", std::string(buffer.status().message()));
  return *std::move(buffer);
}

void AllowMemory(int device, double fraction) {
  CurrentStream(device);
  const auto limit = static_cast<double>(Engine::Get().device(device).memory_stats().limit_bytes);
  Engine::Get().AllowMemory(device, static_cast<int64_t>(fraction * limit));
}

MemoryStats SettledMemoryStats(int device) {
  CurrentStream(device);
  Engine::Get().SynchronizeDevice(device);
  MemoryStats stats = Engine::Get().device(device).memory_stats();
  std::lock_guard<std::mutex> lock(counts_mutex);
  const Counts& former = CountsOf(device);
  stats.num_allocs -= former.allocs;
  stats.num_system_allocs -= former.system_allocs;
  stats.num_ooms -= former.ooms;
  return stats;
}

}  // namespace tpu
