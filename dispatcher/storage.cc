#include "dispatcher/storage.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <typeinfo>

#include "dispatcher/allocator.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"

namespace tpu {
namespace {

// Addresses that no memory has, round and round: x86-64 has none that are not canonical, and Arm, which may ignore the
// upper eight bits, none as long as the rest.
constexpr uintptr_t kFirstAddress = uintptr_t{1} << 60 | uintptr_t{1} << 54;
constexpr uintptr_t kAddresses = uintptr_t{1} << 48;
constexpr size_t kAlignment = 64;

void* NewAddress(size_t bytes) {
  static std::atomic<uintptr_t> next{0};
  const size_t size = std::max(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return reinterpret_cast<void*>(kFirstAddress + next.fetch_add(size, std::memory_order_relaxed) % kAddresses);
}

c10::DataPtr MakeDataPtr(size_t bytes, c10::DeviceIndex device) {
  return {bytes == 0 ? nullptr : NewAddress(bytes), c10::Device(c10::DeviceType::PrivateUse1, device)};
}

c10::Allocator* TheAllocator() {
  static c10::Allocator* const allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  return allocator;
}

c10::intrusive_ptr<c10::StorageImpl> Make(c10::StorageImpl::use_byte_size_t, c10::SymInt bytes, c10::DataPtr data,
                                          c10::Allocator*, bool) {
  // UntypedStorage.__getitem__ of a slice: another storage over a part of one's memory.
  TORCH_CHECK(!data.get_context(), "tpu: a storage's slice would share its memory; slice a tensor over it instead");
  const c10::DeviceIndex device = data ? data.device().index() : c10::DeviceIndex{-1};
  // Observers are told once it is used: Python must have the only reference to a storage that it makes.
  return c10::make_intrusive<TpuStorage>(static_cast<size_t>(bytes.expect_int()),
                                         device < 0 ? static_cast<c10::DeviceIndex>(CurrentDevice()) : device);
}

thread_local StorageObserver* observer = nullptr;

}  // namespace

TpuStorage::TpuStorage(size_t bytes, c10::DeviceIndex device)
    : c10::StorageImpl(use_byte_size_t(), static_cast<int64_t>(bytes), MakeDataPtr(bytes, device), TheAllocator(),
                       /*resizable=*/true) {}

c10::intrusive_ptr<TpuStorage> TpuStorage::Make(size_t bytes, c10::DeviceIndex device) {
  auto made = c10::make_intrusive<TpuStorage>(bytes, device);
  if (C10_UNLIKELY(observed()) && observer != nullptr) observer->OnMade(made);
  return made;
}

c10::intrusive_ptr<TpuStorage> TpuStorage::Make(ValueRef value, const Layout* layout, c10::DeviceIndex device) {
  auto made = Make(layout->bytes, device);
  made->Swap(value, layout);  // nobody else has it yet
  return made;
}

std::atomic<int> TpuStorage::observers_{0};

void TpuStorage::Observe(StorageObserver* next) {
  observers_.fetch_add((next != nullptr) - (observer != nullptr), std::memory_order_relaxed);
  observer = next;
}

void TpuStorage::TellOfRead() {
  if (observer != nullptr) observer->OnRead(*this);
}

void TpuStorage::TellOfWrite() {
  if (observer != nullptr) observer->OnWrite(*this);
}

void TpuStorage::TellOfMemory() {
  if (observer != nullptr) observer->OnMemory(*this);
}

TpuStorage& TpuStorage::Of(const c10::StorageImpl& storage) {
  TORCH_CHECK(typeid(storage) == typeid(TpuStorage),
              "tpu: this storage was made over foreign memory (from_blob), which the tpu device can't read");
  return static_cast<TpuStorage&>(const_cast<c10::StorageImpl&>(storage));
}

TpuStorage& TpuStorage::Of(const c10::TensorImpl& tensor) {
  return Of(*tensor.unsafe_storage().unsafeGetStorageImpl());
}

void TpuStorage::Resize(size_t bytes) {
  if (bytes == nbytes()) return;
  TORCH_CHECK(bytes <= std::numeric_limits<int64_t>::max(), "tpu: no storage has ", bytes, " bytes");
  const c10::DeviceIndex device = this->device().index();
  Content resized;
  const Layout* const layout = this->layout();
  if (C10_UNLIKELY(observed()) && observer != nullptr && layout != nullptr) observer->OnResize(*this, bytes);
  if (layout != nullptr && bytes > 0) {
    const c10::Storage other(Make(bytes, device));
    const size_t element = c10::elementSize(layout->scalar_type), kept = std::min(bytes, nbytes());
    const bool whole = bytes % element == 0 && nbytes() % element == 0;
    const Layout* const part = whole ? InternLayout(layout->scalar_type, {static_cast<int64_t>(kept / element)})
                                     : InternLayout(c10::ScalarType::Byte, {static_cast<int64_t>(kept)});
    const at::Tensor from = TensorOver(c10::Storage(c10::intrusive_ptr<TpuStorage>::reclaim_copy(this)), part);
    WriteValue(*TensorOver(other, part).unsafeGetTensorImpl(), ReadValue(*from.unsafeGetTensorImpl()));
    resized = Of(*other.unsafeGetStorageImpl()).content();
  }
  Set(std::move(resized.value), resized.layout);
  set_data_ptr_noswap(MakeDataPtr(bytes, device));
  set_nbytes(bytes);
}

void ResizeStorage(const c10::Storage& storage, size_t bytes) {
  TpuStorage::Of(*storage.unsafeGetStorageImpl()).Resize(bytes);
}

void RegisterStorage() { c10::SetStorageImplCreate(c10::DeviceType::PrivateUse1, &Make); }

}  // namespace tpu
