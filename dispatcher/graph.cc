#include "dispatcher/graph.h"

#include <algorithm>
#include <utility>

#include "dispatcher/convert.h"
#include "dispatcher/storage.h"
#include "dispatcher/values.h"

namespace tpu {
namespace {

constexpr uint64_t kNumberWord = 1, kGeneratorWord = 2;  // layouts' addresses are larger

// As what a graph takes in the stretch of storage from the tensor's first element to its last, so that views are
// recorded where the graph uses them: the storage as it lies, if the tensor covers it; else, without gaps, the tensor
// itself; else a flat tensor.
const Layout* BaseOf(const c10::TensorImpl& tensor, const Layout* layout) {
  const TpuStorage& storage = TpuStorage::Of(tensor);
  if (layout->dense && layout->bytes == storage.nbytes() && tensor.storage_offset() == 0) {
    if (const Layout* lies = storage.layout()) return lies;
  }
  if (layout->dense || layout->bytes == 0) return layout;
  int64_t extent = 1;
  for (size_t i = 0; i < layout->strides.size(); ++i) extent += (layout->type.dims[i] - 1) * layout->strides[i];
  return InternLayout(layout->scalar_type, {extent});
}

// Another tensor over the storage of `tensor`: autograd is to see in either what is written to the other.
at::Tensor Alias(const at::Tensor& tensor, const Layout* layout, int64_t offset) {
  at::Tensor alias = TensorOver(tensor.storage(), layout, offset);
  if (!alias.is_inference() && !tensor.is_inference()) {
    alias.unsafeGetTensorImpl()->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  return alias;
}

}  // namespace

bool Describe(const at::Tensor& tensor, GraphInput& input, std::vector<uint64_t>& words) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.key_set().has_any(c10::python_ks) || impl.layout() != c10::kStrided || tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  if (tensor.device().type() == c10::DeviceType::PrivateUse1 && tensor.has_storage() && !tensor._is_zerotensor()) {
    input.kind = GraphInput::Kind::kTensor;
    input.tensor = tensor;
    const Layout* layout = LayoutOf(impl);
    input.base = BaseOf(impl, layout);
    words.push_back(reinterpret_cast<uintptr_t>(layout));
    words.push_back(reinterpret_cast<uintptr_t>(input.base));
    words.push_back(static_cast<uint64_t>(tensor.device().index()));
    return true;
  }
  if (!tensor.device().is_cpu() || tensor.dim() != 0 || tensor.is_complex()) return false;
  input.kind = GraphInput::Kind::kHostNumber;
  input.tensor = tensor;
  words.push_back(kNumberWord);
  words.push_back(static_cast<uint64_t>(tensor.scalar_type()) << 1 | impl.is_wrapped_number());
  return true;
}

bool Describe(const at::Generator& generator, GraphInput& input, std::vector<uint64_t>& words) {
  input.kind = GraphInput::Kind::kGenerator;
  input.generator = generator;
  words.push_back(kGeneratorWord);
  return generator.device().type() == c10::DeviceType::PrivateUse1;
}

GraphCapture::GraphCapture(absl::Span<const GraphInput> inputs, c10::DeviceIndex device) : capture_(device) {
  graph_->kept_.resize(inputs.size());
  graph_->device_ = device;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const GraphInput& in = inputs[i];
    graph_->input_slots_.push_back(-1);
    placeholders_.emplace_back();
    bases_.emplace_back();
    if (in.kind == GraphInput::Kind::kTensor) {
      AddTensor(in.tensor, in.base);
    } else if (in.kind == GraphInput::Kind::kHostNumber) {
      graph_->input_slots_.back() = capture_.AddNumber(in.tensor);
    } else if (in.kind == GraphInput::Kind::kGenerator) {
      capture_.AddGenerator(in.generator, static_cast<int>(i));
    }
  }
}

void GraphCapture::AddTensor(const at::Tensor& tensor, const Layout* base) {
  const Layout* layout = LayoutOf(*tensor.unsafeGetTensorImpl());
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device().index() == graph_->device_, "tpu: an input is on ",
                              tensor.device().str());
  ValueRef value = capture_.AddInput(base->type, &graph_->input_slots_.back());
  bases_.back() = MakeTensor(std::move(value), base, tensor.device().index());
  placeholders_.back() = layout == base ? bases_.back() : TensorOver(bases_.back().storage(), layout, 0);
}

void GraphCapture::FindWrites() {
  std::vector<std::pair<int32_t, int>> writes;
  for (size_t i = 0; i < bases_.size(); ++i) {
    if (!bases_[i].defined()) continue;
    int32_t slot = capture_.SlotOf(ReadValue(*bases_[i].unsafeGetTensorImpl()).get());
    if (slot == graph_->input_slots_[i]) continue;
    const c10::TensorImpl& input = *placeholders_[i].unsafeGetTensorImpl();
    const Layout* const layout = LayoutOf(input);
    if (!layout->dense) slot = capture_.SlotOf(ReadValue(input, layout).get());
    writes.emplace_back(slot, static_cast<int>(i));
  }
  std::sort(writes.begin(), writes.end());
  for (const auto& [slot, input] : writes) {
    graph_->written_slots_.push_back(slot);
    graph_->writes_.push_back(input);
    graph_->kept_[input] = true;
  }
}

CapturedGraph::Output GraphCapture::FindOutput(const at::Tensor& tensor) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device() == c10::Device(c10::DeviceType::PrivateUse1, graph_->device_) &&
                                  !tensor.is_conj() && !tensor.is_neg(),
                              "tpu: an output is on ", tensor.device().str(), " or lazily conjugated or negated");
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const Layout* const layout = LayoutOf(*tensor.unsafeGetTensorImpl());
  for (size_t i = 0; i < placeholders_.size(); ++i) {
    if (!placeholders_[i].defined() || placeholders_[i].storage().unsafeGetStorageImpl() != storage) continue;
    const int input = static_cast<int>(i);
    if (placeholders_[i].is_same(tensor)) return {.input = input};
    graph_->kept_[i] = true;
    return {.storage = ~input, .layout = layout, .offset = tensor.storage_offset()};
  }
  const auto known = std::find(new_storages_.begin(), new_storages_.end(), storage);
  const CapturedGraph::Output out{
      .storage = static_cast<int>(known - new_storages_.begin()), .layout = layout, .offset = tensor.storage_offset()};
  if (known != new_storages_.end()) return out;
  new_storages_.push_back(storage);
  TpuStorage& made = TpuStorage::Of(*storage);
  const TpuStorage::Content content = made.content();
  const int32_t slot = content.value ? capture_.SlotOf(content.value.get()) : -1;
  graph_->storages_.push_back({slot, content.layout, made.nbytes()});
  return out;
}

std::unique_ptr<CapturedGraph> GraphCapture::Finish(absl::Span<const at::Tensor> outputs) {
  FindWrites();
  for (const at::Tensor& t : outputs) {
    graph_->outputs_.push_back(t.defined() ? FindOutput(t) : CapturedGraph::Output{});
  }
  std::vector<int32_t> wanted = graph_->written_slots_;
  for (const CapturedGraph::NewStorage& s : graph_->storages_) {
    if (s.slot >= 0) wanted.push_back(s.slot);
  }
  graph_->calls_ = CapturedCalls(capture_, wanted);
  for (int32_t& slot : graph_->input_slots_) {
    if (slot >= 0 && !graph_->calls_.Uses(slot)) slot = -1;
  }
  return std::move(graph_);
}

std::vector<CapturedCalls::Slot> CapturedGraph::Fill(std::vector<GraphInput>& inputs) const {
  std::vector<CapturedCalls::Slot> slots = calls_.Slots();
  for (size_t i = 0; i < inputs.size(); ++i) {
    GraphInput& in = inputs[i];
    const int32_t slot = input_slots_[i];
    if (in.kind == GraphInput::Kind::kHostNumber) {
      if (slot >= 0) slots[slot].bits = BitsOf(NumberIn(in.tensor));
    } else if (in.kind == GraphInput::Kind::kTensor) {
      if (slot < 0 && !kept_[i]) continue;
      const Layout* const layout = LayoutOf(*in.tensor.unsafeGetTensorImpl());
      at::Tensor base = layout == in.base ? in.tensor : Alias(in.tensor, in.base, in.tensor.storage_offset());
      if (slot >= 0) slots[slot].value = ReadValue(*base.unsafeGetTensorImpl(), in.base);
      if (!kept_[i]) {
        in.tensor.reset();
      } else if (layout->dense) {
        in.tensor = std::move(base);
      }  // else it is written as it lies: in its gaps, which are read with it, other inputs may lie
    }
  }
  for (const CapturedGenerator& g : calls_.generators()) {
    calls_.Draw(g, g.input >= 0 ? inputs[g.input].generator : g.generator, slots);
  }
  return slots;
}

std::vector<at::Tensor> CapturedGraph::Replay(std::vector<GraphInput>& inputs) const {
  std::vector<CapturedCalls::Slot> slots = Fill(inputs);
  calls_.Record(slots, written_slots_, [&](size_t i) {
    WriteValue(*inputs[writes_[i]].tensor.unsafeGetTensorImpl(), slots[written_slots_[i]].value);
  });
  std::vector<c10::Storage> storages;
  for (const NewStorage& s : storages_) {
    if (s.slot >= 0) {
      storages.emplace_back(TpuStorage::Make(slots[s.slot].value, s.layout, device_));
    } else {
      storages.emplace_back(TpuStorage::Make(s.bytes, device_));
    }
  }
  std::vector<at::Tensor> results;
  results.reserve(outputs_.size());
  std::vector<const at::Tensor*> firsts(storages.size());  // by storage: the first output over it
  for (const Output& out : outputs_) {
    if (out.layout == nullptr) {
      results.emplace_back();
    } else if (out.storage < 0) {
      const at::Tensor& base = inputs[~out.storage].tensor;
      const int64_t elements = base.storage_offset() * static_cast<int64_t>(base.itemsize());
      results.push_back(Alias(base, out.layout,
                              out.offset + elements / static_cast<int64_t>(c10::elementSize(out.layout->scalar_type))));
    } else if (const at::Tensor*& first = firsts[out.storage]; first != nullptr) {
      results.push_back(Alias(*first, out.layout, out.offset));
    } else {
      results.push_back(TensorOver(storages[out.storage], out.layout, out.offset));
      first = &results.back();
    }
  }
  return results;
}

}  // namespace tpu
