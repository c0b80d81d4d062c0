#include "runtime/host/allocator.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "runtime/fork.h"
#include "runtime/machine.h"
#include "runtime/thread_time.h"

namespace tpu::host {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE (Linux 6.1), which older headers lack
constexpr size_t kPage = 4 << 10;
constexpr size_t kSlabBytes = 256 << 10;
constexpr size_t kSlabHeader = 128;
// Requests below this share segments of this size; larger ones get a segment of their own (and share what is left).
constexpr size_t kSegmentBytes = 32 << 20;
// What is reserved, against the most that was ever allocated, before segments that are free go to make room for
// another. What grows leaves segments that it fits no more: a tensor that rows are added to by and by, without this,
// the sum of all its sizes.
constexpr int64_t kMostReserved = 2, kReservedBesides = 2 * kSegmentBytes;
// A first touch of a huge page takes 0.1 ms; of the 512 small ones 0.7 ms; of a huge one whose memory a virtual
// machine's host has to bring 2.3 ms, where small ones are at hand.
constexpr int64_t kSlowPageNs = 600'000;
// Stretches that Settle looks at.
constexpr int kMostTries = 256;
// How many blocks of the request's own bin are looked at for the best fit.
constexpr int kBestFitLooks = 16;

// Has the host of a virtual machine bring the memory of a huge page, which the system hands out next.
void BringHugePage() {
  void* const mapped = mmap(nullptr, 2 * kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return;
  char* const page = static_cast<char*>(mapped) + kHugePage - reinterpret_cast<uintptr_t>(mapped) % kHugePage;
  madvise(page, kHugePage, MADV_HUGEPAGE);
  *static_cast<volatile char*>(page) = 0;
  munmap(mapped, 2 * kHugePage);
}

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

// At the start of its own memory, which is aligned to kSlabBytes: a block's slab is found by masking its address.
struct Allocator::Slab {
  Slab* next = nullptr;  // in partial_ or empty_
  Slab* prev = nullptr;
  void* free = nullptr;  // list through the blocks' first words
  uint32_t fresh = 0;    // blocks never handed out begin here
  uint32_t live = 0;
  uint32_t capacity = 0;
  int32_t size_class = -1;  // -1: empty_
};

// A stretch of a segment. Blocks of a segment form a list in address order.
struct Allocator::Block {
  char* data = nullptr;
  size_t bytes = 0;
  size_t mapped = 0;  // the segment's size, in its first block
  Block* before = nullptr;
  Block* after = nullptr;
  Block* next = nullptr;  // in its bin while free
  Block* prev = nullptr;
  bool free = false;
};

Allocator::Allocator(std::string name, int64_t limit_bytes, Pages pages)
    : name_(std::move(name)), small_first_(pages == Pages::kSmallFirst) {
  stats_.limit_bytes = stats_.allowed_bytes = limit_bytes;
}

Allocator::~Allocator() {
  DropCache();
  while (spare_blocks_ != nullptr) delete std::exchange(spare_blocks_, spare_blocks_->next);
}

// 16 classes of 64 bytes to 1 KiB, then four to each doubling.
int Allocator::ClassOf(size_t bytes) {
  if (bytes <= 1024) return bytes == 0 ? 0 : static_cast<int>((bytes - 1) / 64);
  const int log = std::bit_width(bytes - 1) - 1;  // 2^log < bytes <= 2^(log+1)
  return 16 + (log - 10) * 4 + static_cast<int>((bytes - 1 - (size_t{1} << log)) >> (log - 2));
}

size_t Allocator::BytesOfClass(int c) {
  if (c < 16) return static_cast<size_t>(c + 1) * 64;
  const int log = 10 + (c - 16) / 4;
  return (size_t{1} << log) + static_cast<size_t>((c - 16) % 4 + 1) * (size_t{1} << (log - 2));
}

// Bin b holds blocks of [lower bound of b, lower bound of b + 1).
int Allocator::BinOf(size_t bytes) {
  const int log = std::bit_width(bytes) - 1;
  if (log < 12) return 0;
  const int bin = (log - 12) * kBinsPerDoubling + static_cast<int>((bytes - (size_t{1} << log)) >> (log - 3));
  return std::min(bin, kNumBins - 1);
}

absl::StatusOr<Allocator::Allocation> Allocator::Allocate(size_t bytes) {
  const bool small = bytes <= kLargestSmall;
  const int c = small ? ClassOf(bytes) : 0;
  std::lock_guard lock(mutex_);
  const size_t limit = static_cast<size_t>(stats_.allowed_bytes);
  const size_t taken = small ? BytesOfClass(c) : bytes > limit ? bytes : RoundUp(bytes, kPage);
  if (taken > limit || static_cast<size_t>(stats_.allocated_bytes) > limit - taken) {
    ++stats_.num_ooms;
    return OutOfMemory(name_, bytes, stats_);
  }
  Allocation result;
  if (small) {
    result.data = AllocateSmall(c);
    result.handle = reinterpret_cast<uintptr_t>(result.data);
  } else if (Block* block = AllocateLarge(taken); block != nullptr) {
    result.data = block->data;
    result.handle = reinterpret_cast<uintptr_t>(block) | 1;
  }
  if (result.data == nullptr) {
    ++stats_.num_ooms;
    return OutOfMemory(name_, bytes, stats_);
  }
  ++stats_.num_allocs;
  Account(taken);
  return result;
}

void Allocator::Account(size_t bytes) {
  stats_.allocated_bytes += static_cast<int64_t>(bytes);
  stats_.peak_allocated_bytes = std::max(stats_.peak_allocated_bytes, stats_.allocated_bytes);
}

void Allocator::Free(uintptr_t handle) {
  if (InForkedChild()) return;  // a thread that is not there may hold the lock
  std::lock_guard lock(mutex_);
  if (handle & 1) {
    FreeLarge(reinterpret_cast<Block*>(handle & ~uintptr_t{1}));
  } else {
    FreeSmall(reinterpret_cast<void*>(handle));
  }
}

void* Allocator::AllocateSmall(int c) {
  Slab* slab = partial_[c];
  if (slab == nullptr && (slab = TakeSlab(c)) == nullptr) return nullptr;
  void* data = slab->free;
  if (data != nullptr) {
    slab->free = *static_cast<void**>(data);
  } else {
    data = reinterpret_cast<char*>(slab) + kSlabHeader + slab->fresh++ * BytesOfClass(c);
  }
  if (++slab->live == slab->capacity) {
    partial_[c] = slab->next;
    if (slab->next != nullptr) slab->next->prev = nullptr;
    slab->next = nullptr;
  }
  return data;
}

void Allocator::FreeSmall(void* data) {
  Slab* slab = reinterpret_cast<Slab*>(reinterpret_cast<uintptr_t>(data) & ~(kSlabBytes - 1));
  const int c = slab->size_class;
  stats_.allocated_bytes -= static_cast<int64_t>(BytesOfClass(c));
  *static_cast<void**>(data) = slab->free;
  slab->free = data;
  if (slab->live-- == slab->capacity) {
    slab->prev = nullptr;
    slab->next = partial_[c];
    if (slab->next != nullptr) slab->next->prev = slab;
    partial_[c] = slab;
  }
  // The last slab of a class stays with it, so that one block taken and returned costs no more than that.
  if (slab->live == 0 && (slab->prev != nullptr || slab->next != nullptr)) Discard(slab);
}

void Allocator::Discard(Slab* slab) {
  (slab->prev != nullptr ? slab->prev->next : partial_[slab->size_class]) = slab->next;
  if (slab->next != nullptr) slab->next->prev = slab->prev;
  *slab = Slab{};
  slab->next = empty_;
  empty_ = slab;
}

Allocator::Slab* Allocator::TakeSlab(int c) {
  if (empty_ == nullptr) {
    char* chunk = static_cast<char*>(Map(kHugePage));
    if (chunk == nullptr) return nullptr;
    chunks_.push_back(chunk);
    for (size_t at = kHugePage; at > 0; at -= kSlabBytes) {
      Slab* slab = new (chunk + at - kSlabBytes) Slab;
      slab->next = empty_;
      empty_ = slab;
    }
  }
  Slab* slab = empty_;
  empty_ = slab->next;
  *slab = Slab{};
  slab->size_class = c;
  slab->capacity = static_cast<uint32_t>((kSlabBytes - kSlabHeader) / BytesOfClass(c));
  partial_[c] = slab;
  return slab;
}

Allocator::Block* Allocator::AllocateLarge(size_t bytes) {
  Block* block = FindFree(bytes);
  if (block != nullptr) {
    Unlink(block);
  } else if ((block = MapSegment(bytes)) == nullptr) {
    return nullptr;
  }
  if (block->bytes > bytes) Split(block, bytes);
  return block;
}

void Allocator::FreeLarge(Block* block) {
  stats_.allocated_bytes -= static_cast<int64_t>(block->bytes);
  if (block->after != nullptr && block->after->free) {
    Unlink(block->after);
    Absorb(block, block->after);
  }
  if (block->before != nullptr && block->before->free) {
    Block* before = block->before;
    Unlink(before);
    Absorb(before, block);
    block = before;
  }
  Link(block);
}

// The best of the first blocks of the request's own bin, else any of the next bin that has one: all of those fit.
Allocator::Block* Allocator::FindFree(size_t bytes) {
  const int own = BinOf(bytes);
  Block* best = nullptr;
  int looks = kBestFitLooks;
  for (Block* b = bins_[own]; b != nullptr && looks > 0; b = b->next, --looks) {
    if (b->bytes == bytes) return b;
    if (b->bytes > bytes && (best == nullptr || b->bytes < best->bytes)) best = b;
  }
  if (best != nullptr || own + 1 >= kNumBins) return best;
  const int from = own + 1;
  uint64_t word = nonempty_[from / 64] & (~uint64_t{0} << (from % 64));
  for (size_t w = from / 64;; word = nonempty_[w]) {
    if (word != 0) return bins_[w * 64 + std::countr_zero(word)];
    if (++w == nonempty_.size()) return nullptr;
  }
}

Allocator::Block* Allocator::MapSegment(size_t bytes) {
  size_t mapped = bytes < kSegmentBytes / 4 ? kSegmentBytes : RoundUp(bytes, kHugePage);
  // A device smaller than a few segments takes only what it needs.
  if (stats_.reserved_bytes + static_cast<int64_t>(mapped) > stats_.allowed_bytes) mapped = RoundUp(bytes, kHugePage);
  most_allocated_ = std::max(most_allocated_, stats_.allocated_bytes + static_cast<int64_t>(bytes));
  const int64_t most = kMostReserved * most_allocated_ + kReservedBesides;
  DropSegments(stats_.reserved_bytes + static_cast<int64_t>(mapped) - most);
  char* data = static_cast<char*>(Map(mapped));
  if (data == nullptr) return nullptr;
  Block* block = NewBlock();
  block->data = data;
  block->bytes = block->mapped = mapped;
  return block;
}

void Allocator::Split(Block* block, size_t bytes) {
  Block* rest = NewBlock();
  rest->data = block->data + bytes;
  rest->bytes = block->bytes - bytes;
  rest->before = block;
  rest->after = block->after;
  if (rest->after != nullptr) rest->after->before = rest;
  block->after = rest;
  block->bytes = bytes;
  Link(rest);
}

void Allocator::Absorb(Block* block, Block* next) {
  block->bytes += next->bytes;
  block->after = next->after;
  if (block->after != nullptr) block->after->before = block;
  next->next = spare_blocks_;
  spare_blocks_ = next;
}

void Allocator::Link(Block* block) {
  const int bin = BinOf(block->bytes);
  block->free = true;
  block->prev = nullptr;
  block->next = bins_[bin];
  if (block->next != nullptr) block->next->prev = block;
  bins_[bin] = block;
  nonempty_[bin / 64] |= uint64_t{1} << (bin % 64);
}

void Allocator::Unlink(Block* block) {
  const int bin = BinOf(block->bytes);
  (block->prev != nullptr ? block->prev->next : bins_[bin]) = block->next;
  if (block->next != nullptr) block->next->prev = block->prev;
  if (bins_[bin] == nullptr) nonempty_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
  block->free = false;
}

Allocator::Block* Allocator::NewBlock() {
  if (spare_blocks_ == nullptr) return new Block;
  Block* block = std::exchange(spare_blocks_, spare_blocks_->next);
  *block = Block{};
  return block;
}

// Aligned to 2 MiB. The cache is dropped when it stands in the way.
void* Allocator::Map(size_t bytes) {
  if (stats_.reserved_bytes + static_cast<int64_t>(bytes) > stats_.allowed_bytes) DropCache();
  const size_t wide = bytes + kHugePage;
  void* mapped = MAP_FAILED;
  for (int attempt = 0; attempt < 2 && mapped == MAP_FAILED; ++attempt) {
    if (attempt == 1) DropCache();
    mapped = mmap(nullptr, wide, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (mapped == MAP_FAILED) return nullptr;
  char* begin = static_cast<char*>(mapped);
  char* data = reinterpret_cast<char*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (data > begin) munmap(begin, static_cast<size_t>(data - begin));
  if (begin + wide > data + bytes) munmap(data + bytes, static_cast<size_t>(begin + wide - (data + bytes)));
  ChoosePages(data, bytes);
  ++stats_.num_system_allocs;
  stats_.reserved_bytes += static_cast<int64_t>(bytes);
  stats_.peak_reserved_bytes = std::max(stats_.peak_reserved_bytes, stats_.reserved_bytes);
  return data;
}

// The first page is touched to see what it costs: in this thread's time, which others don't prolong.
void Allocator::ChoosePages(char* data, size_t bytes) {
  size_t huge = 0;  // bytes at the beginning
  if (!small_first_ && bytes > kHugePage && madvise(nullptr, 0, kCollapse) == 0) {
    const int64_t start = ThreadNanoseconds();
    madvise(data, kHugePage, MADV_HUGEPAGE);
    *static_cast<volatile char*>(data) = 0;
    small_first_ = ThreadNanoseconds() - start > kSlowPageNs;
    huge = kHugePage;
  }
  if (!small_first_) huge = bytes;
  madvise(data, huge, MADV_HUGEPAGE);
  madvise(data + huge, bytes - huge, MADV_NOHUGEPAGE);
  std::vector<char*> stretches;
  for (size_t at = huge; at < bytes; at += kHugePage) stretches.push_back(data + at);
  small_pages_.insert(std::lower_bound(small_pages_.begin(), small_pages_.end(), data), stretches.begin(),
                      stretches.end());
}

bool Allocator::Settle() {
  std::unique_lock lock(mutex_);
  for (int tries = 0; tries < kMostTries && !small_pages_.empty(); ++tries) {
    auto next = std::upper_bound(small_pages_.begin(), small_pages_.end(), settled_);
    if (next == small_pages_.end()) next = small_pages_.begin();
    char* const stretch = settled_ = *next;
    unsigned char used[kHugePage / kPage] = {};
    mincore(stretch, kHugePage, used);
    if (std::none_of(std::begin(used), std::end(used), [](unsigned char page) { return page & 1; })) continue;
    lock.unlock();    // it may be unmapped meanwhile, or be another's, and keeps what is in it
    BringHugePage();  // before the collapse, which holds up first touches
    madvise(stretch, kHugePage, MADV_HUGEPAGE);
    if (madvise(stretch, kHugePage, kCollapse) != 0) return false;  // no huge page is free: another time
    lock.lock();
    next = std::lower_bound(small_pages_.begin(), small_pages_.end(), stretch);
    if (next != small_pages_.end() && *next == stretch) small_pages_.erase(next);
    return true;
  }
  return false;
}

void Allocator::Unmap(void* data, size_t bytes) {
  munmap(data, bytes);
  char* const begin = static_cast<char*>(data);
  small_pages_.erase(std::lower_bound(small_pages_.begin(), small_pages_.end(), begin),
                     std::lower_bound(small_pages_.begin(), small_pages_.end(), begin + bytes));
  stats_.reserved_bytes -= static_cast<int64_t>(bytes);
}

void Allocator::DropSegments(int64_t bytes) {
  for (Block*& bin : bins_) {
    for (Block* block = bin; block != nullptr && bytes > 0;) {
      Block* next = block->next;
      if (block->mapped != 0 && block->mapped == block->bytes) {
        bytes -= static_cast<int64_t>(block->mapped);
        Unlink(block);
        Unmap(block->data, block->mapped);
        block->next = spare_blocks_;
        spare_blocks_ = block;
      }
      block = next;
    }
  }
}

void Allocator::DropCache() {
  DropSegments(stats_.reserved_bytes);
  // The last slab of a class may lie empty in its list; then chunks with no slab in use go.
  for (Slab*& head : partial_) {
    for (Slab* slab = head; slab != nullptr;) {
      Slab* next = slab->next;
      if (slab->live == 0) Discard(slab);
      slab = next;
    }
  }
  auto unused = [](void* chunk) {
    for (size_t at = 0; at < kHugePage; at += kSlabBytes) {
      if (reinterpret_cast<Slab*>(static_cast<char*>(chunk) + at)->size_class >= 0) return false;
    }
    return true;
  };
  auto first_unused = std::partition(chunks_.begin(), chunks_.end(), [&](void* c) { return !unused(c); });
  if (first_unused == chunks_.end()) return;
  Slab* kept = nullptr;
  for (Slab* slab = empty_; slab != nullptr;) {
    Slab* next = slab->next;
    void* chunk = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slab) & ~(kHugePage - 1));
    if (std::find(first_unused, chunks_.end(), chunk) == chunks_.end()) {
      slab->next = kept;
      kept = slab;
    }
    slab = next;
  }
  empty_ = kept;
  for (auto it = first_unused; it != chunks_.end(); ++it) Unmap(*it, kHugePage);
  chunks_.erase(first_unused, chunks_.end());
}

MemoryStats Allocator::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void Allocator::ResetPeak() {
  std::lock_guard lock(mutex_);
  stats_.peak_allocated_bytes = stats_.allocated_bytes;
  stats_.peak_reserved_bytes = stats_.reserved_bytes;
}

void Allocator::Allow(int64_t bytes) {
  std::lock_guard lock(mutex_);
  stats_.allowed_bytes = std::clamp<int64_t>(bytes, 0, stats_.limit_bytes);
}

void Allocator::EmptyCache() {
  std::lock_guard lock(mutex_);
  DropCache();
}

}  // namespace tpu::host
