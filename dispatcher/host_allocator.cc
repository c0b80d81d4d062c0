#include "dispatcher/host_allocator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <memory>

#include "dispatcher/errors.h"
#include "dispatcher/host_kernels.h"

namespace tpu {
namespace {

thread_local Device* t_device = nullptr;

void DropBuffer(void* context) { static_cast<Buffer*>(context)->Release(); }

// Blocks that ATen allocates start behind a reference to their buffer: some kernels want the address alone to be enough
// to free one (raw_allocate).
constexpr size_t kPrefix = 64;

Buffer* OwnerOf(void* data) { return *reinterpret_cast<Buffer**>(static_cast<char*>(data) - kPrefix); }
void DropBlock(void* data) {
  if (data != nullptr) OwnerOf(data)->Release();  // blocks of no bytes have no address
}

class ScopedAllocator final : public c10::Allocator {
 public:
  explicit ScopedAllocator(c10::Allocator* plain) : plain_(plain) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (t_device == nullptr || bytes == 0) return plain_->allocate(bytes);
    BufferRef buffer = ValueOrThrow(t_device->Allocate(bytes + kPrefix));
    buffer->AddRef();
    *static_cast<Buffer**>(buffer->data()) = buffer.get();
    void* const data = static_cast<char*>(buffer->data()) + kPrefix;
    return {data, data, &DropBlock, c10::Device(c10::kCPU)};
  }
  // Raw blocks are freed by the kernel that took them, in the same scope.
  c10::DeleterFnPtr raw_deleter() const override { return t_device == nullptr ? plain_->raw_deleter() : &DropBlock; }
  void copy_data(void* destination, const void* source, std::size_t count) const override {
    default_copy_data(destination, source, count);
  }

 private:
  c10::Allocator* const plain_;
};

}  // namespace

HostAllocatorScope::HostAllocatorScope(Device& device) : former_(t_device) {
  if (device.host_addressable()) t_device = &device;
}
HostAllocatorScope::~HostAllocatorScope() { t_device = former_; }

at::Tensor HostTensor(Device& device, const BufferRef& buffer, const Dims& dims, c10::ScalarType type) {
  if (!device.host_addressable()) {
    at::Tensor copy = at::detail::empty_cpu({dims.data(), dims.size()}, at::TensorOptions(type));
    ThrowIfError(device.CopyToHost(buffer, copy.data_ptr(), copy.nbytes()));
    return copy;
  }
  buffer->AddRef();
  c10::DataPtr data(buffer->data(), buffer.get(), &DropBuffer, c10::Device(c10::kCPU));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), buffer->bytes(), std::move(data)),
      c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({dims.data(), dims.size()});
  return tensor;
}

BufferRef AdoptTensor(Device& device, const at::Tensor& tensor, const TensorType& type) {
  if (!device.host_addressable()) return ValueOrThrow(device.MakeValue(type, tensor.data_ptr()));
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() == &DropBuffer && tensor.storage_offset() == 0) {
    BufferRef buffer(static_cast<Buffer*>(data.get_context()));
    // The first part of a buffer would keep all of it.
    return tensor.nbytes() == buffer->bytes() ? buffer : AdoptTensor(device, tensor.clone(), type);
  }
  if (data.get_deleter() == &DropBlock && tensor.storage_offset() == 0) {
    return MakeRef<Buffer>(data.get(), tensor.nbytes(), [owner = BufferRef(OwnerOf(data.get()))] {});
  }
  if (tensor.storage_offset() != 0)
    return AdoptTensor(device, tensor.clone(), type);  // a part of memory that others hold too
  auto keep = std::make_shared<at::Tensor>(tensor);
  return MakeRef<Buffer>(tensor.data_ptr(), tensor.nbytes(), [keep]() mutable { keep.reset(); });
}

void InstallHostAllocator() {
  static ScopedAllocator allocator(c10::GetCPUAllocator());
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
}

}  // namespace tpu
