#include "dispatcher/graph.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "dispatcher/convert.h"
#include "dispatcher/generator.h"
#include "dispatcher/storage.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"
#include "jit/engine.h"
#include "jit/window.h"

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

GraphCapture::GraphCapture(absl::Span<const GraphInput> inputs, c10::DeviceIndex device) {
  graph_->num_inputs_ = inputs.size();
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
  for (size_t i = 0; i < bases_.size(); ++i) {
    if (!bases_[i].defined()) continue;
    const ValueRef value = ReadValue(*bases_[i].unsafeGetTensorImpl());
    const int32_t slot = capture_.SlotOf(value.get());
    if (slot == graph_->input_slots_[i]) continue;
    graph_->writes_.push_back({static_cast<int>(i), slot});
    graph_->kept_[i] = true;
  }
}

CapturedGraph::Output GraphCapture::FindOutput(const at::Tensor& tensor) {
  CapturedGraph::Output out;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.device() == c10::Device(c10::DeviceType::PrivateUse1, graph_->device_) &&
                                  !tensor.is_conj() && !tensor.is_neg(),
                              "tpu: an output is on ", tensor.device().str(), " or lazily conjugated or negated");
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  for (size_t i = 0; i < placeholders_.size(); ++i) {
    if (!placeholders_[i].defined() || placeholders_[i].storage().unsafeGetStorageImpl() != storage) continue;
    if (placeholders_[i].is_same(tensor)) {
      out.input = static_cast<int>(i);
      return out;
    }
    out.storage = ~static_cast<int>(i);
    graph_->kept_[i] = true;
  }
  out.layout = LayoutOf(*tensor.unsafeGetTensorImpl());
  out.offset = tensor.storage_offset();
  if (out.storage != -1) return out;
  const auto known = std::find(new_storages_.begin(), new_storages_.end(), storage);
  out.storage = static_cast<int>(known - new_storages_.begin());
  if (known != new_storages_.end()) return out;
  new_storages_.push_back(storage);
  const TpuStorage& made = TpuStorage::Of(*storage);
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
  graph_->calls_ = std::move(capture_.calls);
  graph_->operands_ = std::move(capture_.operands);
  graph_->randoms_ = std::move(capture_.randoms);
  graph_->num_slots_ = capture_.constants.size();
  for (size_t s = 0; s < capture_.constants.size(); ++s) {
    if (capture_.constants[s]) graph_->constants_.emplace_back(s, std::move(capture_.constants[s]));
  }
  graph_->DropUnneeded();
  return std::move(graph_);
}

// Calls whose results nobody reads go; of the others is found out after which one each value is needed no more.
void CapturedGraph::DropUnneeded() {
  std::vector<bool> needed(num_slots_);
  for (const Write& w : writes_) needed[w.slot] = true;
  for (const NewStorage& s : storages_) {
    if (s.slot >= 0) needed[s.slot] = true;
  }
  std::vector<CapturedCall> live;
  for (size_t i = calls_.size(); i-- > 0;) {
    const CapturedCall& c = calls_[i];
    std::vector<int32_t> release;
    for (size_t r = 0; r < c.call->results.size(); ++r) {
      if (!needed[c.results_begin + r]) release.push_back(static_cast<int32_t>(c.results_begin + r));
    }
    if (release.size() == c.call->results.size()) continue;
    for (size_t o = 0; o < c.call->operands.size(); ++o) {
      const int32_t slot = operands_[c.operands_begin + o].slot;
      if (slot < 0 || needed[slot]) continue;
      needed[slot] = true;
      release.push_back(slot);
    }
    live.push_back(c);
    releases_.push_back(std::move(release));
  }
  std::reverse(live.begin(), live.end());
  std::reverse(releases_.begin(), releases_.end());
  calls_ = std::move(live);
  for (int32_t& slot : input_slots_) {
    if (slot >= 0 && !needed[slot]) slot = -1;
  }
}

void CapturedGraph::Fill(std::vector<GraphInput>& inputs, std::vector<Slot>& slots) const {
  for (const auto& [slot, value] : constants_) slots[slot].value = value;
  for (size_t i = 0; i < inputs.size(); ++i) {
    GraphInput& in = inputs[i];
    const int32_t slot = input_slots_[i];
    if (in.kind == GraphInput::Kind::kHostNumber) {
      if (slot >= 0) slots[slot].bits = BitsOf(NumberIn(in.tensor));
    } else if (in.kind == GraphInput::Kind::kTensor) {
      if (slot < 0 && !kept_[i]) continue;
      if (LayoutOf(*in.tensor.unsafeGetTensorImpl()) != in.base) {
        in.tensor = TensorOver(in.tensor.storage(), in.base, in.tensor.storage_offset());
      }
      if (slot >= 0) slots[slot].value = ReadValue(*in.tensor.unsafeGetTensorImpl(), in.base);
      if (!kept_[i]) in.tensor.reset();
    }
  }
  for (const CapturedRandom& r : randoms_) {
    const auto& generator = r.generator_input >= 0 ? inputs[r.generator_input].generator : r.generator;
    std::tie(slots[r.seed_slot].bits, slots[r.seed_slot + 1].bits) = ReservePhilox(generator, r.counters, device_);
  }
}

void CapturedGraph::RecordCalls(std::vector<Slot>& slots) const {
  Window& window = Engine::Get().window(CurrentStream(device_));
  absl::InlinedVector<Operand, 16> operands;
  absl::InlinedVector<ValueRef, 8> results;
  for (size_t i = 0; i < calls_.size(); ++i) {
    const CapturedCall& c = calls_[i];
    operands.resize(c.call->operands.size());
    for (size_t o = 0; o < operands.size(); ++o) {
      const CapturedOperand& operand = operands_[c.operands_begin + o];
      operands[o] = operand.slot >= 0 ? Operand{slots[operand.slot].value.get(), slots[operand.slot].bits}
                                      : Operand{nullptr, operand.bits};
    }
    results.resize(c.call->results.size());
    window.Record(c.call, operands, absl::MakeSpan(results));
    for (size_t r = 0; r < results.size(); ++r) slots[c.results_begin + r].value = std::move(results[r]);
    for (int32_t slot : releases_[i]) slots[slot].value = nullptr;
  }
}

std::vector<at::Tensor> CapturedGraph::Replay(std::vector<GraphInput>& inputs) const {
  std::vector<Slot> slots(num_slots_);
  Fill(inputs, slots);
  RecordCalls(slots);
  for (const Write& w : writes_) WriteValue(*inputs[w.input].tensor.unsafeGetTensorImpl(), slots[w.slot].value);
  std::vector<c10::Storage> storages;
  for (const NewStorage& s : storages_) {
    if (s.slot >= 0) {
      storages.emplace_back(c10::make_intrusive<TpuStorage>(slots[s.slot].value, s.layout, device_));
    } else {
      storages.emplace_back(c10::make_intrusive<TpuStorage>(s.bytes, device_));
    }
  }
  std::vector<at::Tensor> results;
  results.reserve(outputs_.size());
  for (const Output& out : outputs_) {
    if (out.layout == nullptr) {
      results.emplace_back();
    } else if (out.storage >= 0) {
      results.push_back(TensorOver(storages[out.storage], out.layout, out.offset));
    } else {
      const at::Tensor& base = inputs[~out.storage].tensor;
      const int64_t elements = base.storage_offset() * static_cast<int64_t>(base.itemsize());
      results.push_back(
          TensorOver(base.storage(), out.layout,
                     out.offset + elements / static_cast<int64_t>(c10::elementSize(out.layout->scalar_type))));
    }
  }
  return results;
}

}  // namespace tpu
