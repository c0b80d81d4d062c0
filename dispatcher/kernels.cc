// The kernels that are no operations: factories, views, copies between devices, reads, set_ and resize_.
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/is_set_to_native.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <memory>
#include <utility>

#include "dispatcher/calls.h"
#include "dispatcher/capture.h"
#include "dispatcher/errors.h"
#include "dispatcher/host_allocator.h"
#include "dispatcher/host_kernels.h"
#include "dispatcher/record.h"
#include "dispatcher/streams.h"
#include "dispatcher/structured.h"
#include "dispatcher/upload.h"
#include "dispatcher/values.h"
#include "jit/engine.h"

namespace tpu {
namespace {

c10::DeviceIndex IndexOf(std::optional<c10::Device> device) {
  const int index = device && device->has_index() ? device->index() : CurrentDevice();
  CheckDevice(index);
  return static_cast<c10::DeviceIndex>(index);
}

// torch.utils.deterministic.fill_uninitialized_memory: NaN or the largest number where nothing was written.
bool FillsUninitialized() {
  return at::globalContext().deterministicAlgorithms() && at::globalContext().deterministicFillUninitializedMemory();
}

at::Tensor MakeEmpty(const Layout* layout, c10::DeviceIndex device) {
  at::Tensor made = MakeUninitialized(layout, device);
  if (FillsUninitialized()) at::native::fill_empty_deterministic_(made);
  return made;
}

// In CUDA's words.
void CheckNotPinned(std::optional<bool> pinned) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

at::Tensor EmptyStrided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                        std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool> pinned) {
  CheckNotPinned(pinned);
  at::detail::check_size_nonnegative(size);
  TORCH_CHECK(size.size() == stride.size(), "dimensionality of sizes (", size.size(),
              ") must match dimensionality of strides (", stride.size(), ")");
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  at::detail::computeStorageNbytes(size, stride, c10::elementSize(type));  // raises where there is no such size
  if (InferringStructured()) return StructuredStandIn(size, stride, type, IndexOf(device));
  return MakeEmpty(InternLayout(type, size, stride), IndexOf(device));
}

at::Tensor Empty(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device> device, std::optional<bool> pinned,
                 std::optional<c10::MemoryFormat> format) {
  CheckNotPinned(pinned);
  at::detail::check_size_nonnegative(size);
  const c10::ScalarType type = c10::dtype_or_default(dtype);
  at::detail::computeStorageNbytesContiguous(size, c10::elementSize(type));  // raises where there is no such size
  const bool plain = !format || *format == c10::MemoryFormat::Contiguous || *format == c10::MemoryFormat::Preserve;
  if (plain && !InferringStructured()) return MakeEmpty(InternLayout(type, size), IndexOf(device));
  const at::Tensor like = at::detail::empty_meta(size, type, std::nullopt, c10::Device(c10::kMeta), std::nullopt,
                                                 plain ? c10::MemoryFormat::Contiguous : *format);
  if (InferringStructured()) return StructuredStandIn(size, like.strides(), type, IndexOf(device));
  return MakeEmpty(InternLayout(type, like.sizes(), like.strides()), IndexOf(device));
}

// PyTorch's writes zeros over memory, which would have to be there.
void RecordZeros(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  CheckNotPinned(stack->back().toOptional<bool>());
  Record(Operator::Of(op), stack);
}

// Zeros without memory, which autograd makes; PyTorch turns them into zeros where they are used.
at::Tensor EfficientZeros(c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                          std::optional<c10::Device> device, std::optional<bool>) {
  at::native::ZeroTensorAllocator allocator(c10::Device(c10::DeviceType::PrivateUse1, IndexOf(device)));
  const c10::DispatchKeySet keys({c10::DispatchKey::PrivateUse1, c10::DispatchKey::ZeroTensor});
  return at::detail::empty_generic(size, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// "tpu::copy": broadcast to the destination's sizes, converted to its dtype.
CallRef CopyCall(const Layout* from, const Layout* to) {
  static auto* const calls = new CallTable<std::pair<const Layout*, const Layout*>>();
  return calls->Get({from, to}, [&](Call& call) {
    call.op = "tpu::copy";
    CallArgument a;
    a.kind = CallArgument::Kind::kTensor;
    a.count = 1;
    call.arguments = {a};
    call.operands = {{from->type, false}};
    call.results = {to->type};
    call.promoted = to->type.dtype;
  });
}

void CopyOnDevice(const at::Tensor& source, const at::Tensor& destination) {
  const Layout* from = LayoutOf(*source.unsafeGetTensorImpl());
  const Layout* to = LayoutOf(*destination.unsafeGetTensorImpl());
  // Of these only PyTorch knows the format.
  const bool formats = from->type.dtype == DType::kOpaque8 || to->type.dtype == DType::kOpaque8;
  TORCH_CHECK_NOT_IMPLEMENTED(!formats || from->scalar_type == to->scalar_type, "tpu: no conversion from ",
                              from->scalar_type, " to ", to->scalar_type);
  if (source.is_complex() && !destination.is_complex()) {
    TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  }
  ValueRef value = ReadValue(*source.unsafeGetTensorImpl());
  if (from->type != to->type) {
    const Operand operand{value.get(), 0};
    ValueRef copied;
    RecordCall(source.device().index(), CopyCall(from, to), {&operand, 1}, {&copied, 1});
    value = std::move(copied);
  }
  WriteValue(*destination.unsafeGetTensorImpl(), std::move(value));
}

// The tensor's elements as a CPU tensor, over device memory where that can be.
at::Tensor HostView(const at::Tensor& tensor, const std::string& what) {
  ValueRef value = ReadValue(*tensor.unsafeGetTensorImpl());
  const BufferRef& buffer = AwaitBuffer(value, what);
  return HostTensor(Engine::Get().device(tensor.device().index()), buffer, value->type().dims, tensor.scalar_type());
}

// Straight to where the tensor of the CPU lies, where its elements lie as the device gives them.
void ReadInto(const at::Tensor& tensor, const at::Tensor& cpu) {
  Device& device = Engine::Get().device(tensor.device().index());
  const bool as_it_is = cpu.is_cpu() && cpu.is_contiguous() && cpu.scalar_type() == tensor.scalar_type() &&
                        cpu.sizes() == tensor.sizes() && cpu.numel() > 0;
  if (device.host_addressable() || !as_it_is) {
    cpu.copy_(HostView(tensor, "copy_"));
    return;
  }
  const ValueRef value = ReadValue(*tensor.unsafeGetTensorImpl());
  ThrowIfError(device.CopyToHost(AwaitBuffer(value, "copy_"), cpu.data_ptr(), cpu.nbytes()));
}

// The same memory without the bits that say "conjugated" and "negated" lazily.
at::Tensor WithoutBits(const at::Tensor& t) {
  const at::Tensor plain = t.is_conj() ? at::_conj(t) : t;
  return plain.is_neg() ? at::_neg_view(plain) : plain;
}

// PyTorch's errors where the source's sizes don't broadcast to the destination's.
void CheckSizes(const at::Tensor& source, const at::Tensor& destination) {
  if (source.sizes() == destination.sizes()) return;
  at::TensorIteratorConfig()
      .set_check_mem_overlap(false)
      .add_output(destination)
      .add_const_input(source)
      .resize_outputs(false)
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .build();
}

at::Tensor CopyFrom(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (self.is_conj() || dst.is_conj() || self.is_neg() || dst.is_neg()) {
    at::Tensor source = WithoutBits(self);
    if (self.is_conj() != dst.is_conj()) source = at::conj_physical(source);
    if (self.is_neg() != dst.is_neg()) source = at::neg(source);
    CopyFrom(source, WithoutBits(dst), non_blocking);
    return dst;
  }
  at::assert_no_internal_overlap(dst);
  at::assert_no_partial_overlap(dst, self);
  CheckSizes(self, dst);
  const bool from_tpu = self.device().type() == c10::DeviceType::PrivateUse1;
  const bool to_tpu = dst.device().type() == c10::DeviceType::PrivateUse1;
  if (from_tpu && to_tpu && self.device() == dst.device()) {
    CopyOnDevice(self, dst);
  } else if (to_tpu) {
    const at::Tensor host = from_tpu ? HostView(self, "copy_") : self;
    const Layout* layout = InternLayout(dst.scalar_type(), dst.sizes());
    WriteValue(*dst.unsafeGetTensorImpl(), UploadValue(host, layout, dst.device().index()));
  } else {
    ReadInto(self, dst);
  }
  return dst;
}

at::Tensor CopyFromAndResize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return CopyFrom(self, dst, false);
}

// Bytes that are copied from a device for one of their elements, rather than that be made a tensor there first: a
// program of its own for each place.
constexpr size_t kReadWhole = 16 << 20;

// A storage whose bytes are there is read in place, element by element: a printed tensor costs one read.
c10::Scalar LocalScalarDense(const at::Tensor& self) {
  const auto [value, layout] = TpuStorage::Of(*self.unsafeGetTensorImpl()).content();
  Device& device = Engine::Get().device(self.device().index());
  const bool at_hand = device.host_addressable() || self.storage().nbytes() <= kReadWhole;
  if (at_hand && value && layout->row_major && layout->scalar_type == self.scalar_type()) {
    const bool there = value->read() && value->done() && !value->error();
    if (there) TellOfWait("item");
    const BufferRef& buffer = there ? value->buffer() : AwaitBuffer(value, "item");
    const at::Tensor whole = HostTensor(device, buffer, value->type().dims, self.scalar_type());
    return at::_local_scalar_dense(at::from_blob(
        static_cast<char*>(whole.data_ptr()) + self.storage_offset() * self.itemsize(), {}, whole.options()));
  }
  return at::_local_scalar_dense(HostView(self, "item"));
}

// PyTorch's kernels grow a storage through its address, where ours has nothing: it is grown first.
void GrowTo(const c10::Storage& storage, size_t bytes) {
  if (bytes > storage.nbytes()) ResizeStorage(storage, bytes);
}

const at::Tensor& Resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  const size_t before = self.storage().nbytes();
  GrowTo(self.storage(), at::detail::computeStorageNbytesContiguous(size, self.itemsize(), self.storage_offset()));
  at::native::resize_(self, size, format);
  if (FillsUninitialized()) at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before));
  return self;
}

at::Tensor& SetStorage(at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size,
                       c10::IntArrayRef stride) {
  if (offset >= 0 && stride.size() == size.size()) {
    GrowTo(source, at::detail::computeStorageNbytes(size, stride, self.itemsize(), offset));
  } else if (offset >= 0 && stride.empty()) {  // row-major
    at::detail::check_size_nonnegative(size);
    GrowTo(source, at::detail::computeStorageNbytesContiguous(size, self.itemsize(), offset));
  }
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& SetStorageWhole(at::Tensor& self, at::Storage source) {
  const int64_t size = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {size}, {});
}

at::Tensor& SetEmpty(at::Tensor& self) {
  at::Storage empty(TpuStorage::Make(size_t{0}, self.device().index()));
  return at::native::set_storage_cpu_(self, std::move(empty), 0, {0}, {});
}

void CheckStatistics(const std::optional<at::Tensor>& mean, const std::optional<at::Tensor>& variance) {
  TORCH_CHECK_VALUE(Given(mean) == Given(variance),
                    "running_mean and running_var must either both be None or neither be None");
}

// Its schema hides that it writes the running statistics; that of its legit form does not.
std::tuple<at::Tensor, at::Tensor, at::Tensor> NativeBatchNorm(const at::Tensor& input,
                                                               const std::optional<at::Tensor>& weight,
                                                               const std::optional<at::Tensor>& bias,
                                                               const std::optional<at::Tensor>& running_mean,
                                                               const std::optional<at::Tensor>& running_var,
                                                               bool training, double momentum, double eps) {
  CheckStatistics(running_mean, running_var);
  if (Given(running_mean)) {
    at::Tensor mean = *running_mean, var = *running_var;
    return at::_native_batch_norm_legit(input, weight, bias, mean, var, training, momentum, eps);
  }
  return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> NativeBatchNormOut(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var, bool training,
    double momentum, double eps, at::Tensor& out, at::Tensor& mean_out, at::Tensor& deviation_out) {
  CheckStatistics(running_mean, running_var);
  if (Given(running_mean)) {
    at::Tensor mean = *running_mean, var = *running_var;
    return at::_native_batch_norm_legit_out(out, mean_out, deviation_out, input, weight, bias, mean, var, training,
                                            momentum, eps);
  }
  return at::_native_batch_norm_legit_out(out, mean_out, deviation_out, input, weight, bias, training, momentum, eps);
}

// PyTorch's own calls the CPU's kernel. The reserve is cuDNN's: empty, as on the CPU.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> BatchNormNoUpdate(
    const at::Tensor& input, const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var, double momentum,
    double eps) {
  auto [output, mean, deviation] =
      NativeBatchNorm(input, weight, bias, running_mean, running_var, /*training=*/false, momentum, eps);
  return {output, mean, deviation, at::empty({0}, input.options().dtype(at::kByte))};
}

// PyTorch's own goes to a kernel that only its devices have.
at::Tensor& ConjPhysical(at::Tensor& self) { return self.is_complex() ? self.copy_(at::conj_physical(self)) : self; }

// Queued work holds the memory that it uses, on whichever stream.
void RecordStream(at::Tensor&, c10::Stream) {}

TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("record_stream", &RecordStream);
  m.impl("conj_physical_", &ConjPhysical);
  m.impl("native_batch_norm", &NativeBatchNorm);
  m.impl("native_batch_norm.out", &NativeBatchNormOut);
  m.impl("_batch_norm_no_update", &BatchNormNoUpdate);
  m.impl("empty.memory_format", &Empty);
  m.impl("empty_strided", &EmptyStrided);
  m.impl("zeros", torch::CppFunction::makeFromBoxedFunction<&RecordZeros>());
  m.impl("_efficientzerotensor", &EfficientZeros);
  // PyTorch's own is a kernel that only its devices have, also for tensors that say nothing but shapes.
  for (const char* overload : {"kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"}) {
    m.impl(overload, torch::CppFunction::makeFromBoxedFunction<&RunNowBoxed>());
  }
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &Resize);
  m.impl("set_.source_Storage_storage_offset", &SetStorage);
  m.impl("set_.source_Storage", &SetStorageWhole);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
  m.impl("set_", &SetEmpty);
  m.impl("is_set_to", &at::native::is_set_to);
  m.impl("_copy_from", &CopyFrom);
  m.impl("_copy_from_and_resize", &CopyFromAndResize);
  m.impl("_local_scalar_dense", &LocalScalarDense);
}

}  // namespace

ValueRef UploadValue(const at::Tensor& cpu, const Layout* layout, c10::DeviceIndex device) {
  if (const Capture* capture = Capture::Current()) capture->CheckConstant(cpu);
  CurrentStream(device);  // makes the devices
  if (!Engine::Get().device(device).host_addressable()) {
    at::Tensor elements = cpu;  // a device takes row-major elements from where they lie
    if (!cpu.is_contiguous() || cpu.scalar_type() != layout->scalar_type || cpu.sizes() != layout->sizes()) {
      elements = at::detail::empty_cpu(layout->sizes(), at::TensorOptions(layout->scalar_type));
      elements.copy_(cpu);
    }
    return MakeReadyValue(layout, device, elements.const_data_ptr());
  }
  ValueRef value = MakeReadyValue(layout, device);
  if (layout->bytes > 0) {
    at::from_blob(value->buffer()->data(), layout->sizes(), at::TensorOptions(layout->scalar_type)).copy_(cpu);
  }
  return value;
}

at::Tensor Upload(const at::Tensor& cpu, c10::DeviceIndex device) {
  const Layout* layout = LayoutLike(cpu);
  return MakeTensor(UploadValue(cpu, layout, device), layout, device);
}

}  // namespace tpu
