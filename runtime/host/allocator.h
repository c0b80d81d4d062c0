// The embedded device's memory: a caching allocator on huge pages. Fresh pages cost more than most kernels, so memory
// once taken from the system is kept and handed out again. A fresh huge page costs less than the small ones that it
// stands for, except in virtual machines whose host takes large stretches back: there memory begins with small pages,
// and those that are used become huge ones in the background (Settle).
//
// Small blocks (<= 16 KiB) come from slabs of one size class each; large ones are cut, best fit first, from segments
// mapped in multiples of 2 MiB, and joined with their free neighbours when they come back. Used by HostDevice alone,
// and lives as long as any block. Thread safe: one short lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/device.h"

namespace tpu::host {

class Allocator {
 public:
  // How memory begins: with huge pages unless one is found to be slow, or with small ones.
  enum class Pages : uint8_t { kMeasured, kSmallFirst };
  // `name` begins the out-of-memory message: "tpu:0".
  Allocator(std::string name, int64_t limit_bytes, Pages pages = Pages::kMeasured);
  ~Allocator();  // every block must be back
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  struct Allocation {
    void* data = nullptr;
    uintptr_t handle = 0;  // what Free takes
  };
  // 64-byte aligned, uninitialised; bytes may be 0. ResourceExhausted, with the numbers, when live bytes would pass
  // what is allowed or the system has no more, each after dropping the cache.
  absl::StatusOr<Allocation> Allocate(size_t bytes);
  void Free(uintptr_t handle);

  MemoryStats stats() const;
  void ResetPeak();
  void Allow(int64_t bytes);
  void EmptyCache();
  // Makes some used memory a huge page, whatever lies in it meanwhile; false where none was found.
  bool Settle();

 private:
  struct Slab;
  struct Block;

  static constexpr size_t kLargestSmall = 16 << 10;
  static constexpr int kNumClasses = 32;
  static constexpr int kBinsPerDoubling = 8;
  static constexpr int kNumBins = 34 * kBinsPerDoubling;  // from 4 KiB up

  static int ClassOf(size_t bytes);
  static size_t BytesOfClass(int c);
  static int BinOf(size_t bytes);

  // All below: with mutex_ held.
  void* AllocateSmall(int c);
  void FreeSmall(void* data);
  Slab* TakeSlab(int c);
  void Discard(Slab* slab);  // an unused one, to empty_
  Block* AllocateLarge(size_t bytes);
  void FreeLarge(Block* block);
  Block* FindFree(size_t bytes);
  Block* MapSegment(size_t bytes);
  void Split(Block* block, size_t bytes);
  void Absorb(Block* block, Block* next);
  void Link(Block* block);
  void Unlink(Block* block);
  Block* NewBlock();
  void* Map(size_t bytes);
  void ChoosePages(char* data, size_t bytes);
  void Unmap(void* data, size_t bytes);
  void DropSegments(int64_t bytes);  // free ones, small ones first, until they are as much
  void DropCache();
  void Account(size_t bytes);

  const std::string name_;
  mutable std::mutex mutex_;
  MemoryStats stats_;
  int64_t most_allocated_ = 0;                // when a segment was mapped
  std::array<Slab*, kNumClasses> partial_{};  // slabs with a free block, by class
  Slab* empty_ = nullptr;                     // slabs of no class
  std::vector<void*> chunks_;                 // of 2 MiB, cut into slabs
  bool small_first_;
  std::vector<char*> small_pages_;       // stretches of 2 MiB that began so, in address order
  char* settled_ = nullptr;              // Settle goes on behind this
  std::array<Block*, kNumBins> bins_{};  // free large blocks by size
  std::array<uint64_t, (kNumBins + 63) / 64> nonempty_{};
  Block* spare_blocks_ = nullptr;  // descriptors to use again
};

}  // namespace tpu::host
