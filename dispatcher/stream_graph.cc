#include "dispatcher/stream_graph.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"
#include "jit/engine.h"
#include "jit/metrics.h"

namespace tpu {

// A storage holds a placeholder while the calls that read it are captured, and what it held before once it is over.
class StreamCapture final : public Capture, public StorageObserver {
 public:
  explicit StreamCapture(const Stream& stream)
      : Capture(static_cast<c10::DeviceIndex>(stream.device_index())), stream_(stream) {
    TpuStorage::Observe(this);
  }
  ~StreamCapture() override {
    TpuStorage::Observe(nullptr);
    for (const Seen& seen : seen_) {
      // What was resized meanwhile holds nothing.
      const bool fits = seen.former.layout == nullptr || seen.former.layout->bytes == seen.storage->nbytes();
      const TpuStorage::Content content = fits ? seen.former : TpuStorage::Content{};
      seen.storage->SetUnobserved(content.value, content.layout);
    }
  }

  const Stream* stream() const override { return &stream_; }

  void CheckConstant(const at::Tensor& host) const override {
    TORCH_CHECK(host.numel() == 0,
                "tpu: a tensor is copied from the CPU while a graph is captured, and would be what it is now at every "
                "replay; copy it before, into a tensor of the device that the graph reads");
  }

  void OnMade(const c10::intrusive_ptr<TpuStorage>& storage) override {
    places_.emplace(storage.get(), seen_.size());
    seen_.push_back({storage, {}, true});
  }
  void OnWrite(TpuStorage& storage) override { See(storage).blank = false; }
  void OnMemory(TpuStorage& storage) override { See(storage).blank = true; }
  void OnResize(TpuStorage& storage, size_t bytes) override {
    Seen& seen = See(storage);
    TORCH_CHECK_NOT_IMPLEMENTED(seen.made || bytes == 0,
                                "tpu: a tensor from before a graph is captured can't get another size while it is: its "
                                "replays would find it resized; resize it before");
    if (!seen.made || seen.slot < 0) return;
    // The blank memory that was read is none of its from now on.
    const int32_t slot = std::exchange(seen.slot, -1);
    const Layout* const layout = seen.layout;
    Seen& memory = See(*TpuStorage::Make(layout->bytes, storage.device().index()));
    memory.slot = slot;
    memory.layout = layout;
  }
  void OnRead(TpuStorage& storage) override {
    Seen& seen = See(storage);
    const TpuStorage::Content content = storage.Unobserved();
    if (seen.slot >= 0 || !content.value || Knows(content.value.get())) return;
    // What the graph makes holds what the graph writes, or else, blank, what is written between replays.
    if (seen.made && !seen.blank) return;
    seen.layout = content.layout;
    storage.SetUnobserved(AddInput(content.layout->type, &seen.slot), content.layout);
  }

  void Finish(StreamGraph& graph) {
    std::vector<std::tuple<int32_t, const Seen*, const Layout*>> writes;
    for (const Seen& seen : seen_) {
      const TpuStorage::Content now = seen.storage->Unobserved();
      if (seen.slot >= 0) graph.reads_.push_back({seen.storage, seen.layout, seen.slot});
      const bool given_up = seen.made && seen.storage.use_count() == 1;
      if (given_up || !now.value || now.value == seen.former.value) continue;
      const int32_t slot = SlotOf(now.value.get());
      if (slot != seen.slot) writes.emplace_back(slot, &seen, now.layout);
    }
    std::sort(writes.begin(), writes.end());
    for (const auto& [slot, seen, layout] : writes) {
      graph.writes_.push_back({c10::weak_intrusive_ptr<TpuStorage>(seen->storage), layout});
      graph.written_slots_.push_back(slot);
    }
    graph.calls_ = CapturedCalls(*this, graph.written_slots_);
    std::erase_if(graph.reads_, [&](const StreamGraph::Read& r) { return !graph.calls_.Uses(r.slot); });
  }

 private:
  struct Seen {
    c10::intrusive_ptr<TpuStorage> storage;
    TpuStorage::Content former;  // what it holds again in the end
    bool made = false;           // since the capture began
    bool blank = false;          // memory that nothing was written to
    int32_t slot = -1;           // of what it held, once that is read
    const Layout* layout = nullptr;
  };

  Seen& See(TpuStorage& storage) {
    const auto [it, is_new] = places_.emplace(&storage, seen_.size());
    if (is_new) seen_.push_back({c10::intrusive_ptr<TpuStorage>::reclaim_copy(&storage), storage.Unobserved()});
    return seen_[it->second];
  }

  const Stream& stream_;
  std::vector<Seen> seen_;
  absl::flat_hash_map<const TpuStorage*, size_t> places_;
};

namespace {

void CheckSize(const TpuStorage& storage, const Layout& captured) {
  TORCH_CHECK(storage.nbytes() == captured.bytes, "tpu: a tensor of the graph has another size now: ", storage.nbytes(),
              " bytes, ", captured.bytes, " when it was captured");
}

}  // namespace

StreamGraph::StreamGraph(const at::GraphImplArgs&) {}
StreamGraph::~StreamGraph() {
  // Given up by another thread than the one that still captures: that one goes on.
  if (capture_ && Capture::Current() != capture_.get()) static_cast<void>(capture_.release());
}

void StreamGraph::capture_begin(at::MempoolId_t pool, at::GraphCaptureMode) {
  TORCH_CHECK(!capture_ && !captured_, "This graph holds a capture already: reset() it, or make another one.");
  static std::atomic<uint64_t> pools{0};
  pool_ = pool.first == 0 && pool.second == 0 ? at::MempoolId_t{0, ++pools} : pool;
  Stream& stream = CurrentStream();
  Engine::Get().CutStream(stream, CutReason::kSynchronize, "Graph.capture_begin");
  capture_ = std::make_unique<StreamCapture>(stream);
}

void StreamGraph::capture_end() {
  TORCH_CHECK(capture_ != nullptr && Capture::Current() == capture_.get(),
              "capture_end() belongs to a capture_begin() of the same graph on the same thread.");
  capture_->Finish(*this);
  capture_ = nullptr;
  captured_ = true;
}

void StreamGraph::CheckCaptured() const { TORCH_CHECK(captured_, "This graph holds no capture."); }

void StreamGraph::instantiate() { CheckCaptured(); }

void StreamGraph::replay() {
  CheckCaptured();
  const std::lock_guard<std::mutex> lock(replaying_);
  for (const Read& r : reads_) CheckSize(*r.storage, *r.layout);
  for (const Write& w : writes_) {
    if (const auto storage = w.storage.lock()) CheckSize(*storage, *w.layout);
  }
  Metrics::Get().graph_replays.fetch_add(1, std::memory_order_relaxed);
  std::vector<CapturedCalls::Slot> slots = calls_.Slots();
  for (const Read& r : reads_) {
    slots[r.slot].value = ReadValue(*TensorOver(c10::Storage(r.storage), r.layout).unsafeGetTensorImpl(), r.layout);
  }
  for (const CapturedGenerator& g : calls_.generators()) calls_.Draw(g, g.generator, slots);
  const CompileAtOnce compiled;
  calls_.Record(slots, written_slots_, [&](size_t i) {
    if (const auto storage = writes_[i].storage.lock()) {
      storage->Set(slots[written_slots_[i]].value, writes_[i].layout);
    }
  });
}

void StreamGraph::reset() {
  TORCH_CHECK(!capture_, "tpu: the graph is being captured");
  captured_ = false;
  calls_ = {};
  reads_.clear();
  writes_.clear();
  written_slots_.clear();
}

at::MempoolId_t StreamGraph::pool() const {
  TORCH_CHECK(capture_ || captured_, "This graph has no pool before it is captured.");
  return pool_;
}

void StreamGraph::debug_dump(const std::string& path) {
  CheckCaptured();
  std::ofstream file(path);
  file << "digraph {\n  node [shape=box];\n";
  for (const Read& r : reads_) {
    file << "  s" << r.slot << " [shape=oval, label=\"" << r.layout->type.ToString() << "\"];\n";
  }
  std::vector<size_t> writers;  // by slot
  for (size_t i = 0; i < calls_.calls().size(); ++i) {
    const CapturedCall& c = calls_.calls()[i];
    file << "  c" << i << " [label=\"" << c.call->ToString() << "\"];\n";
    writers.resize(std::max(writers.size(), c.results_begin + c.call->results.size()), SIZE_MAX);
    std::fill(writers.begin() + c.results_begin, writers.begin() + c.results_begin + c.call->results.size(), i);
    for (const CapturedOperand& o : calls_.OperandsOf(c)) {
      if (o.slot < 0) continue;
      const size_t slot = static_cast<size_t>(o.slot);
      const bool made = slot < writers.size() && writers[slot] != SIZE_MAX;
      file << "  " << (made ? 'c' : 's') << (made ? writers[slot] : slot) << " -> c" << i << ";\n";
    }
  }
  file << "}\n";
  TORCH_CHECK(file.flush().good(), "tpu: can't write ", path);
}

bool IsCapturing(const Stream& stream) {
  const Capture* const capture = Capture::Current();
  return capture != nullptr && capture->stream() == &stream;
}

void RegisterStreamGraphs() {
  at::GraphImplRegistry()->Register(c10::DeviceTypeName(c10::DeviceType::PrivateUse1, /*lower_case=*/false),
                                    [](at::GraphImplArgs args) -> std::unique_ptr<at::GraphImplInterface> {
                                      return std::make_unique<StreamGraph>(args);
                                    });
}

}  // namespace tpu
