#include "collectives/c10d/tensors.h"

#include <utility>

#include "dispatcher/capture.h"
#include "dispatcher/storage.h"
#include "dispatcher/values.h"
#include "jit/engine.h"

namespace tpu {
namespace {

int64_t BytesOf(const at::Tensor& t) { return static_cast<int64_t>(t.numel()) * static_cast<int64_t>(t.itemsize()); }

std::vector<int64_t> EqualPieces(const at::Tensor& t, int pieces) {
  TORCH_CHECK_VALUE(t.numel() % pieces == 0, "tpu process group: a tensor of ", t.numel(),
                    " elements can't be divided among ", pieces, " ranks");
  return std::vector<int64_t>(static_cast<size_t>(pieces), BytesOf(t) / pieces);
}

}  // namespace

Source ReadTensor(const at::Tensor& tensor, std::vector<int64_t> pieces) {
  TORCH_CHECK_NOT_IMPLEMENTED(Capture::Current() == nullptr, "tpu process group: a collective can't be captured");
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const TpuStorage::Content content = TpuStorage::Of(impl).content();
  const bool lies_there = content.value && content.layout->row_major && tensor.is_contiguous() && tensor.numel() > 0;
  // Memory without addresses has elements of one type.
  if (lies_there && (content.layout->scalar_type == tensor.scalar_type() ||
                     Engine::Get().device(tensor.device().index()).host_addressable())) {
    return {content.value, static_cast<int64_t>(tensor.storage_offset()) * static_cast<int64_t>(tensor.itemsize()),
            std::move(pieces)};
  }
  return {ReadValue(impl), 0, std::move(pieces)};
}

Source ReadTensor(const at::Tensor& tensor, int pieces) { return ReadTensor(tensor, EqualPieces(tensor, pieces)); }

Target WriteTensor(const at::Tensor& tensor, std::vector<int64_t> pieces) { return {tensor, std::move(pieces), -1}; }
Target WriteTensor(const at::Tensor& tensor, int pieces) { return {tensor, EqualPieces(tensor, pieces), -1}; }

void ReadPartOf(const at::Tensor& output, const at::Tensor& input, int pieces, std::vector<Source>& sources,
                std::vector<Target>& targets) {
  sources.push_back(ReadTensor(input));
  targets.push_back(WriteTensor(output, pieces));
  TpuStorage& storage = TpuStorage::Of(*output.unsafeGetTensorImpl());
  const bool whole = output.storage_offset() == 0 && output.is_contiguous() &&
                     BytesOf(output) == static_cast<int64_t>(storage.nbytes());
  if (!whole) return;
  const ValueRef value = storage.content().value;
  if (value && sources.back().value == value) targets.back().in_place = 0;
}

}  // namespace tpu
