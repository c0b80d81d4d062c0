// Host memory that PyTorch counts as pinned for tpu: what pin_memory() returns and DataLoader fills.
//
// The embedded device reads host memory as it is, so nothing is locked; blocks are page-aligned, known by address
// (is_pinned), kept for reuse, and not reused while a stream they were recorded on still has to pass that point.
#include "dispatcher/pinned.h"

#include <c10/util/Exception.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dispatcher/streams.h"

namespace tpu {
namespace {

constexpr size_t kAlignment = 4096;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  std::vector<std::pair<Stream*, uint64_t>> uses;  // points in streams that read it

  bool idle() const {
    for (const auto& [stream, sequence] : uses) {
      if (!stream->Done(sequence)) return false;
    }
    return true;
  }
};

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    Block* block = Take(std::bit_ceil(std::max(bytes, kAlignment)));
    return {block->data, block, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }

  bool record_event(void* pointer, void*, c10::Stream torch_stream) override {
    Stream& stream = FromTorch(torch_stream);
    std::lock_guard<std::mutex> lock(mutex_);
    Block* block = Find(pointer);
    if (block != nullptr) block->uses.emplace_back(&stream, stream.enqueued());
    return block != nullptr;
  }
  bool Contains(const void* pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    return Find(pointer) != nullptr;
  }
  void empty_cache() override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(free_, [this](const auto& entry) {
      Block* block = entry.second;
      if (!block->idle()) return false;
      stats_.allocated_bytes.decrease(block->bytes);
      stats_.allocations.decrease(1);
      ++stats_.num_host_free;
      std::free(block->data);
      blocks_.erase(block->data);
      return true;
    });
  }

  at::HostStats get_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    return stats_;
  }
  void reset_accumulated_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : Stats()) stat->reset_accumulated();
    stats_.num_host_alloc = stats_.num_host_free = 0;
  }
  void reset_peak_stats() override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto* stat : Stats()) stat->reset_peak();
  }

 private:
  static void Free(void* context);

  std::vector<c10::CachingAllocator::Stat*> Stats() {
    return {&stats_.active_requests, &stats_.active_bytes, &stats_.allocations, &stats_.allocated_bytes};
  }

  Block* Take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    Block* block = nullptr;
    for (auto [entry, end] = free_.equal_range(bytes); entry != end; ++entry) {
      if (!entry->second->idle()) continue;
      block = entry->second;
      free_.erase(entry);
      break;
    }
    if (block == nullptr) {
      void* data = std::aligned_alloc(kAlignment, bytes);
      TORCH_CHECK_WITH(OutOfMemoryError, data != nullptr, "can't allocate ", bytes, " bytes of pinned host memory");
      auto made = std::make_unique<Block>(Block{.data = data, .bytes = bytes, .uses = {}});
      block = made.get();
      blocks_[data] = std::move(made);
      stats_.allocations.increase(1);
      stats_.allocated_bytes.increase(bytes);
      ++stats_.num_host_alloc;
    }
    block->uses.clear();
    stats_.active_requests.increase(1);
    stats_.active_bytes.increase(bytes);
    return block;
  }

  void Return(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.active_requests.decrease(1);
    stats_.active_bytes.decrease(block->bytes);
    free_.emplace(block->bytes, block);
  }

  // The block that holds this address, in use or kept. The caller holds mutex_.
  Block* Find(const void* pointer) {
    auto after = blocks_.upper_bound(const_cast<void*>(pointer));
    if (after == blocks_.begin()) return nullptr;
    Block* block = std::prev(after)->second.get();
    return static_cast<const char*>(pointer) < static_cast<char*>(block->data) + block->bytes ? block : nullptr;
  }

  std::mutex mutex_;
  std::map<void*, std::unique_ptr<Block>> blocks_;  // by address
  std::multimap<size_t, Block*> free_;              // by size
  at::HostStats stats_;
};

// Never destroyed: tensors may outlive static destructors.
PinnedAllocator& Instance() {
  static auto* instance = new PinnedAllocator;
  return *instance;
}

void PinnedAllocator::Free(void* context) { Instance().Return(static_cast<Block*>(context)); }

const bool registered = [] {
  at::setHostAllocator(c10::kPrivateUse1, &Instance());
  return true;
}();

}  // namespace

at::HostAllocator& PinnedHostAllocator() { return Instance(); }
bool IsPinned(const void* pointer) { return Instance().Contains(pointer); }

}  // namespace tpu
