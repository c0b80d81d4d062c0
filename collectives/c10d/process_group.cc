#include "collectives/c10d/process_group.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include <set>
#include <thread>

#include "dispatcher/convert.h"
#include "dispatcher/errors.h"
#include "dispatcher/streams.h"
#include "dispatcher/values.h"
#include "jit/engine.h"
#include "jit/external.h"
#include "jit/timeline.h"

namespace tpu {
namespace {

using c10d::OpType;
using std::chrono::milliseconds;

// What queued collectives get to finish when the process ends, or a group is left.
constexpr milliseconds kLastMoment{5000};
constexpr int kNoPeer = -2;

std::mutex& AllMutex() {
  static auto* mutex = new std::mutex();
  return *mutex;
}
std::set<ProcessGroupTpu*>& All() {
  static auto* all = new std::set<ProcessGroupTpu*>();
  return *all;
}

std::vector<int64_t> BytesOfSplits(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int ranks) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows * static_cast<int64_t>(tensor.itemsize());
  std::vector<int64_t> bytes;
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0,
                      "tpu process group: all_to_all: Tensor's dim 0 does not divide equally across ", "group size");
    bytes.assign(static_cast<size_t>(ranks), rows / ranks * row);
    return bytes;
  }
  TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(ranks),
                    "tpu process group: all_to_all: Number of tensor splits not equal to group size");
  int64_t sum = 0;
  for (int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, "tpu process group: all_to_all: Split sizes can't be negative, got ", size);
    bytes.push_back(size * row);
    sum += size;
  }
  TORCH_CHECK_VALUE(sum == rows, "tpu process group: all_to_all: Split sizes doesn't match total dim 0 size");
  return bytes;
}

}  // namespace

ProcessGroupTpu::ProcessGroupTpu(int rank, int size, milliseconds timeout, c10::intrusive_ptr<c10d::Store> store,
                                 std::shared_ptr<Group> group, std::shared_ptr<DeviceRanks> ranks,
                                 c10::intrusive_ptr<c10d::Backend> gloo)
    : Backend(rank, size),
      store_(std::move(store)),
      group_(std::move(group)),
      ranks_(std::move(ranks)),
      gloo_(std::move(gloo)),
      options_(c10::make_intrusive<TpuOptions>(timeout)) {
  std::lock_guard<std::mutex> lock(AllMutex());
  All().insert(this);
}

ProcessGroupTpu::~ProcessGroupTpu() {
  {
    std::lock_guard<std::mutex> lock(AllMutex());
    All().erase(this);
  }
  shutdown();
}

void ProcessGroupTpu::LeaveAll() {
  std::set<ProcessGroupTpu*> all;
  {
    std::lock_guard<std::mutex> lock(AllMutex());
    all = All();
  }
  for (ProcessGroupTpu* group : all) group->shutdown();
}

void ProcessGroupTpu::setTimeout(milliseconds timeout) {
  options_->timeout = timeout;
  group_->SetTimeout(timeout);
}

void ProcessGroupTpu::Drain(milliseconds limit) {
  std::map<std::pair<int, bool>, Stream*> streams;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    streams.swap(streams_);
  }
  const auto end = std::chrono::steady_clock::now() + limit;
  Blocking([&] {
    for (const auto& [key, stream] : streams) {
      while (!stream->Done(stream->enqueued()) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  });
  for (const auto& [key, stream] : streams) {
    if (stream->Done(stream->enqueued())) continue;
    group_->Fail(absl::AbortedError("left the group before its collectives were done"));
    stream->Synchronize();
  }
  for (const auto& [key, stream] : streams) Engine::Get().ReturnStream(*stream);
}

void ProcessGroupTpu::shutdown() {
  Drain(kLastMoment);
  group_->Leave();
}

void ProcessGroupTpu::abort() {
  group_->Fail(absl::AbortedError("the process group was aborted"));
  shutdown();
}

Stream& ProcessGroupTpu::StreamFor(int device, int peer, bool sends) {
  CurrentStream(device);  // makes the devices
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK_VALUE(device_ < 0 || device_ == device, "tpu process group: this rank's tensors were on tpu:", device_,
                    " and now are on tpu:", device, "; a group uses one device of a rank");
  device_ = device;
  Stream*& stream = streams_[{peer, sends}];
  if (stream == nullptr) stream = &Engine::Get().BorrowStream(device);
  return *stream;
}

void ProcessGroupTpu::OrderReceive(int peer, CollectiveLaunch& launch) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (peer != kAnyRank) {
    const auto any = streams_.find({kAnyRank, false});
    if (any != streams_.end()) launch.WaitFirst(*any->second);
    return;
  }
  for (const auto& [key, stream] : streams_) {
    const auto [rank, sends] = key;
    if (rank >= 0 && !sends) launch.LeaveTo(*stream, rank);
  }
}

ProcessGroupTpu::Reduction ProcessGroupTpu::ReductionOf(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {ReduceOp::kSum};
    case c10d::ReduceOp::AVG:
      return {ReduceOp::kAverage};
    case c10d::ReduceOp::PRODUCT:
      return {ReduceOp::kProduct};
    case c10d::ReduceOp::MIN:
      return {ReduceOp::kMin};
    case c10d::ReduceOp::MAX:
      return {ReduceOp::kMax};
    case c10d::ReduceOp::BAND:
      return {ReduceOp::kBitAnd};
    case c10d::ReduceOp::BOR:
      return {ReduceOp::kBitOr};
    case c10d::ReduceOp::BXOR:
      return {ReduceOp::kBitXor};
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor != nullptr, "tpu process group: PREMUL_SUM without a factor");
      const bool tensor = factor->tensor_factor.defined();
      return {ReduceOp::kPremulSum, tensor ? factor->tensor_factor.item<double>() : factor->double_factor};
    }
    default:
      TORCH_CHECK_VALUE(false, "tpu process group: unknown reduce operator ", static_cast<int>(op.op_));
  }
}

void ProcessGroupTpu::CheckTensors(const char* verb, const Tensors& tensors, bool one_shape) const {
  for (const at::Tensor& t : tensors) {
    const at::Tensor& first = tensors.front();
    TORCH_CHECK_VALUE(t.device().type() == c10::DeviceType::PrivateUse1, "tpu process group: ", verb,
                      " takes tensors on tpu, not on ", t.device());
    TORCH_CHECK_VALUE(t.layout() == c10::kStrided, "tpu process group: ", verb, " takes dense tensors");
    TORCH_CHECK_VALUE(t.device() == first.device(), "tpu process group: ", verb, " got tensors on ", first.device(),
                      " and on ", t.device());
    TORCH_CHECK_TYPE(t.scalar_type() == first.scalar_type(), "tpu process group: ", verb, " got tensors of ",
                     first.scalar_type(), " and of ", t.scalar_type());
    TORCH_CHECK_VALUE(!one_shape || t.sizes() == first.sizes(), "tpu process group: ", verb, " got tensors of sizes ",
                      first.sizes(), " and ", t.sizes());
  }
}

c10::intrusive_ptr<TpuWork> ProcessGroupTpu::Queue(Issue issue) {
  Collective& c = issue.collective;
  const bool message = c.verb == Verb::kSend || c.verb == Verb::kRecv;
  int device = issue.device;
  for (const Tensors* tensors : {&issue.inputs, &issue.outputs}) {
    if (tensors->empty()) continue;
    device = tensors->front().device().index();
    c.dtype = ToDType(tensors->front().scalar_type());
  }
  for (const Source& s : issue.sources) {
    for (int64_t bytes : s.pieces) c.inputs.push_back({nullptr, bytes});
  }
  for (const Target& t : issue.targets) {
    for (int64_t bytes : t.pieces) c.outputs.push_back({nullptr, bytes});
  }
  ThrowIfError(Check(c, getRank(), getSize()));
  Stream& stream = StreamFor(device, message ? c.peer : kNoPeer, c.verb == Verb::kSend);
  const uint64_t sequence = message ? 0 : ++sequence_;
  const std::string what = NameOf(c.verb);
  if (c.verb == Verb::kBarrier) Engine::Get().CutStream(CurrentStream(device), CutReason::kCollective, what);

  std::vector<const TensorType*> types;
  types.reserve(issue.targets.size());
  for (const Target& t : issue.targets) {
    types.push_back(&InternLayout(t.tensor.scalar_type(), t.tensor.sizes())->type);
  }
  auto launch = std::make_shared<CollectiveLaunch>(group_, ranks_, Engine::Get().device(device), c, issue.sources,
                                                   issue.targets, types);
  if (c.verb == Verb::kBarrier) launch->WaitFirst(CurrentStream(device));
  std::shared_ptr<std::atomic<int>> source;
  if (c.verb == Verb::kRecv) {
    source = std::make_shared<std::atomic<int>>(c.peer);
    OrderReceive(c.peer, *launch);
    launch->TellSource(source);
  }
  std::vector<ValueRef> operands;
  operands.reserve(issue.sources.size());
  for (Source& s : issue.sources) operands.push_back(std::move(s.value));
  auto outcome = std::make_shared<absl::Status>();
  External::Queued queued = External::Enqueue(
      stream, std::move(operands), types, what, Timeline::Get().recording() ? c.Describe() : what,
      [launch, outcome](const absl::Status& sound, absl::Span<Argument> arguments, absl::Span<BufferRef> results) {
        *outcome = launch->Run(sound, arguments, results);
        return *outcome;
      });
  for (size_t i = 0; i < issue.targets.size(); ++i) {
    WriteValue(*issue.targets[i].tensor.unsafeGetTensorImpl(), std::move(queued.results[i]));
  }
  auto work = c10::make_intrusive<TpuWork>(getRank(), issue.type, c.verb == Verb::kBarrier, sequence);
  work->Add({&stream, queued.sequence, std::move(outcome)}, issue.inputs, issue.outputs);
  work->set_source(std::move(source));
  if (Engine::Get().mode() == Mode::kDebug) {
    stream.WaitFor(queued.sequence);
    work->wait();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (coalesced_) coalesced_->Join(*work);
  return work;
}

void ProcessGroupTpu::startCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  coalesced_ = c10::make_intrusive<TpuWork>(getRank(), OpType::COALESCED, false, sequence_);
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::endCoalescing() {
  std::lock_guard<std::mutex> lock(mutex_);
  TORCH_CHECK(coalesced_, "tpu process group: endCoalescing without startCoalescing");
  return std::move(coalesced_);
}

template <typename Each>
ProcessGroupTpu::WorkRef ProcessGroupTpu::Coalesced(const Each& each) {
  auto all = c10::make_intrusive<TpuWork>(getRank(), OpType::COALESCED, false, sequence_);
  each([&](Issue issue) { all->Join(*Queue(std::move(issue))); });
  return all;
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tpu process group: broadcast takes one tensor");
  CheckTensors("broadcast", tensors, true);
  const int root = static_cast<int>(options.rootRank);
  Issue issue{{.verb = Verb::kBroadcast, .peer = root}, {}, {}, tensors, tensors, OpType::BROADCAST};
  if (root == getRank()) {
    issue.sources = {ReadTensor(tensors[0])};
  } else {
    issue.targets = {WriteTensor(tensors[0])};
  }
  return Queue(std::move(issue));
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const Reduction reduction = ReductionOf(options.reduceOp);
  if (tensors.size() == 1 && tensors[0].is_sparse()) return AllReduceSparse(tensors[0], reduction);
  return Coalesced([&](const auto& queue) {
    for (at::Tensor& t : tensors) {
      CheckTensors("all_reduce", {t}, true);
      Issue issue{{.verb = Verb::kAllReduce, .op = reduction.op, .scale = reduction.scale},
                  {},
                  {},
                  {t},
                  {t},
                  OpType::ALLREDUCE};
      ReadPartOf(t, t, 1, issue.sources, issue.targets);
      queue(std::move(issue));
    }
  });
}

// The elements of all ranks, one after the other; each says first how many it has, and of which sizes, which is read.
ProcessGroupTpu::WorkRef ProcessGroupTpu::AllReduceSparse(at::Tensor& tensor, Reduction reduction) {
  const bool average = reduction.op == ReduceOp::kAverage;
  TORCH_CHECK_VALUE(average || reduction.op == ReduceOp::kSum,
                    "tpu process group: all_reduce of sparse tensors takes their sum or average");
  TORCH_CHECK_VALUE(!average || !at::isIntegralType(tensor.scalar_type(), true),
                    "tpu process group: all_reduce of sparse tensors of ", tensor.scalar_type(), " takes their sum");
  const at::Tensor indices = tensor._indices().t().contiguous(), values = tensor._values().contiguous();
  std::vector<int64_t> words{tensor._nnz()};
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  const auto length = static_cast<int64_t>(words.size());
  at::Tensor own = at::tensor(words, at::kLong).to(indices.device()),
             all = at::empty({getSize(), length}, own.options());
  _allgather_base(all, own, {});
  Tensors all_indices, all_values;
  const at::Tensor said = all.cpu();
  for (int r = 0; r < getSize(); ++r) {
    const int64_t* const by_rank = said.const_data_ptr<int64_t>() + r * length;
    const at::IntArrayRef theirs(by_rank + 1, words.size() - 1);
    TORCH_CHECK(theirs == tensor.sizes(),
                "tpu process group: ranks diverge: in all_reduce of sparse tensors that of rank ", r, " has sizes ",
                theirs, " while that of rank ", getRank(), " has ", tensor.sizes());
    const int64_t count = by_rank[0];
    all_indices.push_back(indices.new_empty({count, indices.size(1)}));
    std::vector<int64_t> sizes = values.sizes().vec();
    sizes[0] = count;
    all_values.push_back(values.new_empty(sizes));
  }
  auto work = c10::make_intrusive<TpuWork>(getRank(), OpType::ALLREDUCE, false, sequence_);
  work->Join(*Queue(GatherToAll(indices, all_indices)));
  work->Join(*Queue(GatherToAll(average ? values / getSize() : values, all_values)));
  tensor.copy_(at::_sparse_coo_tensor_unsafe(at::cat(all_indices).t(), at::cat(all_values), tensor.sizes()));
  work->set_outputs({tensor});
  return work;
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::allreduce_coalesced(Tensors& tensors,
                                                              const c10d::AllreduceCoalescedOptions& options) {
  return allreduce(tensors, options);
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tpu process group: reduce takes one tensor");
  CheckTensors("reduce", tensors, true);
  const Reduction reduction = ReductionOf(options.reduceOp);
  const int root = static_cast<int>(options.rootRank);
  Issue issue{{.verb = Verb::kReduce, .op = reduction.op, .scale = reduction.scale, .peer = root},
              {ReadTensor(tensors[0])},
              {},
              tensors,
              tensors,
              OpType::REDUCE};
  if (root == getRank()) issue.targets = {WriteTensor(tensors[0])};
  return Queue(std::move(issue));
}

ProcessGroupTpu::Issue ProcessGroupTpu::GatherToAll(const at::Tensor& input, const Tensors& outputs) const {
  CheckTensors("all_gather", outputs, false);
  CheckTensors("all_gather", {input}, false);
  Issue issue{{.verb = Verb::kAllGather}, {ReadTensor(input)}, {}, {input}, outputs, OpType::ALLGATHER};
  for (const at::Tensor& t : outputs) issue.targets.push_back(WriteTensor(t));
  return issue;
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::allgather(TensorLists& outputs, Tensors& inputs,
                                                    const c10d::AllgatherOptions&) {
  TORCH_CHECK_VALUE(outputs.size() == 1 && inputs.size() == 1, "tpu process group: all_gather takes one tensor");
  return Coalesced([&](const auto& queue) { queue(GatherToAll(inputs[0], outputs[0])); });
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions&) {
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), "tpu process group: all_gather_coalesced got ",
                    outputs.size(), " lists of outputs for ", getSize(), " ranks");
  for (const Tensors& list : outputs) {
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "tpu process group: all_gather_coalesced got ", inputs.size(),
                      " inputs and a list of ", list.size(), " outputs");
  }
  return Coalesced([&](const auto& queue) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      Tensors by_rank;
      for (const Tensors& list : outputs) by_rank.push_back(list[i]);
      queue(GatherToAll(inputs[i], by_rank));
    }
  });
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                          const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::AllgatherOptions&) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tpu process group: all_gather got ", inputs.size(),
                    " inputs and ", outputs.size(), " outputs");
  return Coalesced([&](const auto& queue) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckTensors("all_gather", {outputs[i], inputs[i]}, false);
      Issue issue{{.verb = Verb::kAllGather}, {}, {}, {inputs[i]}, {outputs[i]}, OpType::_ALLGATHER_BASE};
      ReadPartOf(outputs[i], inputs[i], getSize(), issue.sources, issue.targets);
      queue(std::move(issue));
    }
  });
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::gather(TensorLists& outputs, Tensors& inputs,
                                                 const c10d::GatherOptions& options) {
  TORCH_CHECK_VALUE(inputs.size() == 1, "tpu process group: gather takes one tensor");
  const int root = static_cast<int>(options.rootRank);
  Issue issue{{.verb = Verb::kGather, .peer = root}, {}, {}, inputs, {}, OpType::GATHER};
  CheckTensors("gather", inputs, true);
  issue.sources = {ReadTensor(inputs[0])};
  if (root == getRank()) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "tpu process group: gather takes one list of outputs on the root");
    CheckTensors("gather", outputs[0], true);
    issue.outputs = outputs[0];
    for (at::Tensor& t : outputs[0]) issue.targets.push_back(WriteTensor(t));
  }
  return Queue(std::move(issue));
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::scatter(Tensors& outputs, TensorLists& inputs,
                                                  const c10d::ScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == 1, "tpu process group: scatter takes one output");
  CheckTensors("scatter", outputs, true);
  const int root = static_cast<int>(options.rootRank);
  Issue issue{{.verb = Verb::kScatter, .peer = root}, {}, {WriteTensor(outputs[0])}, {}, outputs, OpType::SCATTER};
  if (root == getRank()) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "tpu process group: scatter takes one list of inputs on the root");
    CheckTensors("scatter", inputs[0], true);
    issue.inputs = inputs[0];
    for (at::Tensor& t : inputs[0]) issue.sources.push_back(ReadTensor(t));
  }
  return Queue(std::move(issue));
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                         const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == 1 && inputs.size() == 1, "tpu process group: reduce_scatter takes one output");
  CheckTensors("reduce_scatter", inputs[0], false);
  CheckTensors("reduce_scatter", outputs, false);
  const Reduction reduction = ReductionOf(options.reduceOp);
  Issue issue{{.verb = Verb::kReduceScatter, .op = reduction.op, .scale = reduction.scale},
              {},
              {WriteTensor(outputs[0])},
              inputs[0],
              outputs,
              OpType::REDUCE_SCATTER};
  for (at::Tensor& t : inputs[0]) issue.sources.push_back(ReadTensor(t));
  return Queue(std::move(issue));
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                               const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                          const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "tpu process group: reduce_scatter got ", inputs.size(),
                    " inputs and ", outputs.size(), " outputs");
  const Reduction reduction = ReductionOf(options.reduceOp);
  return Coalesced([&](const auto& queue) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      CheckTensors("reduce_scatter", {outputs[i], inputs[i]}, false);
      queue({{.verb = Verb::kReduceScatter, .op = reduction.op, .scale = reduction.scale},
             {ReadTensor(inputs[i], getSize())},
             {WriteTensor(outputs[i])},
             {inputs[i]},
             {outputs[i]},
             OpType::_REDUCE_SCATTER_BASE});
    }
  });
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                        std::vector<int64_t>& output_sizes,
                                                        std::vector<int64_t>& input_sizes,
                                                        const c10d::AllToAllOptions&) {
  CheckTensors("all_to_all", {output, input}, false);
  return Queue({{.verb = Verb::kAllToAll},
                {ReadTensor(input, BytesOfSplits(input, input_sizes, getSize()))},
                {WriteTensor(output, BytesOfSplits(output, output_sizes, getSize()))},
                {input},
                {output},
                OpType::ALLTOALL_BASE});
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) {
  Tensors all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  CheckTensors("all_to_all", all, false);
  Issue issue{{.verb = Verb::kAllToAll}, {}, {}, inputs, outputs, OpType::ALLTOALL};
  for (at::Tensor& t : inputs) issue.sources.push_back(ReadTensor(t));
  for (at::Tensor& t : outputs) issue.targets.push_back(WriteTensor(t));
  return Queue(std::move(issue));
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::send(Tensors& tensors, int peer, int tag) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tpu process group: send takes one tensor");
  CheckTensors("send", tensors, true);
  return Queue(
      {{.verb = Verb::kSend, .peer = peer, .tag = tag}, {ReadTensor(tensors[0])}, {}, tensors, {}, OpType::SEND});
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::recv(Tensors& tensors, int peer, int tag) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "tpu process group: recv takes one tensor");
  CheckTensors("recv", tensors, true);
  return Queue(
      {{.verb = Verb::kRecv, .peer = peer, .tag = tag}, {}, {WriteTensor(tensors[0])}, {}, tensors, OpType::RECV});
}

ProcessGroupTpu::WorkRef ProcessGroupTpu::barrier(const c10d::BarrierOptions& options) {
  return Queue({{.verb = Verb::kBarrier}, {}, {}, {}, {}, OpType::BARRIER, DeviceOf(options)});
}

int ProcessGroupTpu::DeviceOf(const c10d::BarrierOptions& options) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (device_ >= 0) return device_;
  if (options.device && options.device->is_privateuseone() && options.device->has_index()) {
    return options.device->index();
  }
  return options.device_ids.empty() ? CurrentDevice() : static_cast<int>(options.device_ids.front());
}

namespace {

// Sparse tensors come the way that dense ones do.
void AsDense(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&AsDense>());
}

}  // namespace

}  // namespace tpu
