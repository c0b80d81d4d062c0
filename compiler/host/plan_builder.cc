#include "compiler/host/plan_builder.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "compiler/host/conv.h"
#include "compiler/host/element_ops.h"
#include "compiler/host/gemm.h"
#include "compiler/host/kernel_compiler.h"
#include "compiler/host/placement.h"
#include "compiler/host/special_kernels.h"
#include "compiler/host/tile_loops.h"
#include "compiler/ir/dialect.h"
#include "compiler/ir/types.h"
#include "mlir/IR/AsmState.h"
#include "runtime/host/arena.h"

namespace tpu::host {
namespace {

using mlir::Operation;
using mlir::Value;

uint64_t BytesOf(Value v) {
  auto type = ir::TensorTypeOf(v);
  return static_cast<uint64_t>(type.getNumElements() * ir::BytesOf(type.getElementType()));
}

class Builder {
 public:
  Builder(mlir::func::FuncOp function, const Tuning& tuning, KernelSource kernels)
      : function_(function), tuning_(tuning), source_(std::move(kernels)) {}
  absl::Status AddAll();
  // Of builders of one function at several sizes, the largest last.
  static void FormLoops(std::vector<Builder>& sizes);
  Plan Finish();

 private:
  uint32_t SlotOf(Value v) { return slots_.lookup(BytesSource(v)); }
  uint32_t NewSlot(Slot slot) {
    plan_.slots.push_back(slot);
    return static_cast<uint32_t>(plan_.slots.size()) - 1;
  }
  void AddStep(Step step, size_t inputs, Slices slices = {}) {
    step.num_inputs = static_cast<uint32_t>(inputs);
    plan_.steps.push_back(std::move(step));
    slices_of_.push_back(std::move(slices));
  }
  void AssignInputs();
  void AssignOutputs();
  void AssignResult(Value v);
  void FindPlaces();
  void AddBase(Value updated);
  void AddCopyOf(Value base, Value result, std::string label);
  void AddUpdate(ir::UpdateSliceOp op);
  absl::Status AddSteps();
  absl::Status AddFusion(ir::FusionOp op);
  absl::Status AddSpecial(Operation* op);
  void AddGemm(ir::DotOp op);
  void AddConv(ir::ConvOp op);
  void AddCall(ir::AtenOp op);
  absl::Status AddConstant(ir::ConstantOp op);
  static bool MadeByReaders(ir::ConstantOp op) {
    return llvm::all_of(op->getUsers(), [&](Operation* user) { return IsMadeInside(user, op.getResult()); });
  }
  void FindOverwrites(const LoopNest& nest, const Step& step);
  void Donate(const std::vector<size_t>& times);
  KernelStep KernelOf(CompiledKernel kernel);
  static std::string Label(ir::FusionOp op);
  static std::vector<uint32_t> SureResults(const LoopNest& nest);

  mlir::func::FuncOp function_;
  const Tuning tuning_;
  const KernelSource source_;
  Plan plan_;
  llvm::DenseMap<Value, uint32_t> slots_;
  llvm::DenseMap<Value, int> output_of_;       // root -> output that it is written to
  std::vector<std::pair<Value, int>> copies_;  // constants and scalars that are outputs
  absl::flat_hash_map<std::string, uint32_t> kernels_;
  // A part of an output that an update in place writes.
  struct Place {
    Value updated;  // the last of the updates: the output
    uint64_t offset = 0, bytes = 0;
  };
  llvm::DenseMap<Operation*, Place> places_;       // of each update in place
  llvm::DenseMap<Value, Operation*> computed_at_;  // what is computed right into an update's place
  struct Candidate {
    int output, input;
    size_t step;
  };
  std::vector<Candidate> overwrites_;
  struct OwnRead {  // a step reads of an input only the part that it writes of an output, at the very index it writes
    size_t step;
    int output, input;
  };
  std::vector<OwnRead> own_reads_;
  std::vector<InPlace> in_place_;
  std::vector<Slices> slices_of_;
};

void Builder::AssignInputs() {
  plan_.num_inputs = function_.getNumArguments();
  for (mlir::BlockArgument argument : function_.getArguments()) {
    Slot slot;
    slot.kind = Slot::Kind::kInput;
    slot.index = argument.getArgNumber();
    slot.bytes = BytesOf(argument);
    slots_[argument] = NewSlot(slot);
  }
}

void Builder::AssignOutputs() {
  Operation* terminator = function_.getBody().front().getTerminator();
  for (auto [i, v] : llvm::enumerate(terminator->getOperands())) {
    OutputSpec spec;
    spec.bytes = BytesOf(v);
    Value root = BytesSource(v);
    Operation* op = root.getDefiningOp();
    auto argument = mlir::dyn_cast<mlir::BlockArgument>(root);
    bool scalar = argument && ir::TensorTypeOf(argument).getRank() == 0;
    auto earlier = output_of_.find(root);
    if (earlier != output_of_.end()) {
      spec.kind = OutputSpec::Kind::kOutput;
      spec.source = static_cast<uint32_t>(earlier->second);
    } else if (argument && !scalar) {
      spec.kind = OutputSpec::Kind::kInput;
      spec.source = argument.getArgNumber();
    } else if (op != nullptr && mlir::isa<ir::AtenOp>(op)) {
      spec.kind = OutputSpec::Kind::kCall;  // its buffer's number is known when the call's step is made
    } else {
      output_of_[root] = static_cast<int>(i);
      if (op == nullptr || mlir::isa<ir::ConstantOp>(op)) copies_.push_back({root, static_cast<int>(i)});
    }
    plan_.outputs.push_back(spec);
  }
}

// Where updates in place write, and which values can be computed right there: those that are not wanted elsewhere too.
void Builder::FindPlaces() {
  for (Operation& op : function_.getBody().front()) {
    auto update = mlir::dyn_cast<ir::UpdateSliceOp>(op);
    if (!update || !update.getInPlace()) continue;
    Value last = update.getResult();
    while (!last.use_empty() && !output_of_.count(last)) {
      last = (*last.getUsers().begin())->getResult(0);  // the next update, or a reshape on the way to it
    }
    const uint64_t element = BytesOf(update.getSrc()) / ir::TensorTypeOf(update.getSrc()).getNumElements();
    const Window window = WindowOf(update);
    const Place place{last, window.begin * element, (window.end - window.begin) * element};
    places_[update] = place;
    if (!window.sizes.empty()) continue;
    const Value source = BytesSource(update.getSrc());
    const bool aligned = place.offset % kAlignment == 0 || place.bytes < static_cast<uint64_t>(kNonTemporalBytes);
    if (!output_of_.count(source) && aligned) computed_at_.try_emplace(source, update);
  }
}

// The memory of an output that updates in place write parts of: the base's, or a copy of that, or what they fill.
void Builder::AddBase(Value updated) {
  if (slots_.count(updated)) return;
  Value base = updated;
  while (auto update = base.getDefiningOp<ir::UpdateSliceOp>()) {
    if (!update.getInPlace()) break;
    base = BytesSource(update.getBase());
  }
  AssignResult(updated);
  if (base.getDefiningOp<ir::UndefinedOp>() != nullptr) return;
  AddCopyOf(base, updated, "base of updates");
}

// Nothing is copied where an output is written over an input.
void Builder::AddCopyOf(Value base, Value result, std::string label) {
  Step step;
  step.kind = Step::Kind::kCopy;
  step.label = std::move(label);
  step.slots = {SlotOf(base), slots_[result]};
  const Slot& from = plan_.slots[step.slots[0]];
  const Slot& to = plan_.slots[step.slots[1]];
  if (from.kind == Slot::Kind::kInput && to.kind == Slot::Kind::kOutput &&
      from.bytes == plan_.outputs[to.index].bytes) {
    overwrites_.push_back({static_cast<int>(to.index), static_cast<int>(from.index), plan_.steps.size()});
  }
  AddStep(std::move(step), 1);
}

void Builder::AddUpdate(ir::UpdateSliceOp op) {
  const Place& place = places_[op];
  AddBase(place.updated);
  const auto at = computed_at_.find(BytesSource(op.getSrc()));
  if (at != computed_at_.end() && at->second == op && plan_.slots[slots_[at->first]].kind == Slot::Kind::kOutput)
    return;
  Slot slot = plan_.slots[slots_[place.updated]];
  slot.offset = place.offset;
  slot.bytes = place.bytes;
  Step step;
  step.kind = Step::Kind::kCopy;
  step.label = "update";
  step.slots = {SlotOf(op.getSrc()), NewSlot(slot)};
  if (const Window window = WindowOf(op); !window.sizes.empty()) {
    const int64_t element = ir::BytesOf(ir::TensorTypeOf(op.getSrc()).getElementType());
    step.copy.run = window.run * element;
    step.copy.sizes.assign(window.sizes.begin(), window.sizes.end());
    for (int64_t stride : window.strides) step.copy.strides.push_back(stride * element);
  }
  AddStep(std::move(step), 1);
}

void Builder::AssignResult(Value v) {
  Slot slot;
  slot.bytes = BytesOf(v);
  if (auto at = computed_at_.find(v); at != computed_at_.end()) {
    const Place& place = places_[at->second];
    AddBase(place.updated);
    slot.kind = Slot::Kind::kOutput;
    slot.index = plan_.slots[slots_[place.updated]].index;
    slot.offset = place.offset;
    slots_[v] = NewSlot(slot);
    return;
  }
  auto output = output_of_.find(v);
  if (output != output_of_.end()) {
    slot.kind = Slot::Kind::kOutput;
    slot.index = static_cast<uint32_t>(output->second);
  }
  slots_[v] = NewSlot(slot);
}

KernelStep Builder::KernelOf(CompiledKernel kernel) {
  auto [it, fresh] = kernels_.try_emplace(kernel.code.key, static_cast<uint32_t>(plan_.kernels.size()));
  if (fresh) plan_.kernels.push_back(std::move(kernel.code));
  const KernelShape& shape = kernel.shape;
  return {it->second, shape.rows, shape.row, shape.block, shape.grain, std::move(kernel.parameters)};
}

std::string Builder::Label(ir::FusionOp op) {
  std::string label;
  int count = 0;
  for (Operation& inner : op.getBody().front().without_terminator()) {
    if (IsFreeOp(&inner)) continue;
    if (++count > 12) return absl::StrCat(label, ",...");
    absl::StrAppend(&label, label.empty() ? "" : ",", inner.getName().stripDialect().str());
  }
  return label.empty() ? "copy" : label;
}

absl::Status Builder::AddFusion(ir::FusionOp op) {
  Step step;
  step.kind = Step::Kind::kKernel;
  step.label = Label(op);
  auto nest = NestOf(op);
  if (!nest) return absl::InternalError(absl::StrCat("not one loop nest: ", step.label));
  auto kernel = source_(op, NestWriter(*nest, tuning_));
  if (!kernel.ok()) return kernel.status();
  const KernelShape shape = kernel->shape;
  for (Value input : nest->inputs) {
    Value outside = op.getOperands()[mlir::cast<mlir::BlockArgument>(input).getArgNumber()];
    step.slots.push_back(SlotOf(outside));
  }
  for (Value result : op.getResults()) {
    AssignResult(result);
    step.slots.push_back(slots_[result]);
  }
  step.kernel = KernelOf(*std::move(kernel));
  step.kernel.sure = SureResults(*nest);
  FindOverwrites(*nest, step);
  if (step.kernel.extent() > 0) AddStep(std::move(step), nest->inputs.size(), SlicesOf(*nest, shape));
  return absl::OkStatus();
}

// Those that depend on nothing that the kernel checks, where others do.
std::vector<uint32_t> Builder::SureResults(const LoopNest& nest) {
  std::vector<uint32_t> sure;
  for (size_t o = 0; o < nest.outputs.size(); ++o) {
    if (!nest.nodes[nest.outputs[o].node].checked) sure.push_back(static_cast<uint32_t>(nest.inputs.size() + o));
  }
  if (sure.size() == nest.outputs.size()) sure.clear();
  return sure;
}

// An output may be written over an input that this kernel alone reads last, at the very index it writes; a temporary
// over another. Of a part of an output it is known that what is read there may be written over.
void Builder::FindOverwrites(const LoopNest& nest, const Step& step) {
  for (size_t o = 0; o < nest.outputs.size(); ++o) {
    const Slot& to = plan_.slots[step.slots[nest.inputs.size() + o]];
    const NestNode& written = nest.nodes[nest.outputs[o].node];
    if (to.kind != Slot::Kind::kOutput && to.kind != Slot::Kind::kTemp) continue;
    if (nest.has_reduce && (!nest.outputs[o].full || written.phase != nest.phases)) continue;
    const bool output = to.kind == Slot::Kind::kOutput;
    const uint64_t whole = output ? plan_.outputs[to.index].bytes : to.bytes;
    Expr index = nest.outputs[o].full ? nest.FullIndex() : nest.RowIndex();
    index.constant += static_cast<int64_t>(to.offset) / ir::BytesOf(written.type);
    for (size_t i = 0; i < nest.inputs.size(); ++i) {
      const Slot& from = plan_.slots[step.slots[i]];
      if (from.kind != (output ? Slot::Kind::kInput : Slot::Kind::kTemp) || from.bytes != whole) continue;
      bool same = true, twice = false;
      for (const NestNode& node : nest.nodes) {
        if (node.kind != NestNode::Kind::kLoad || node.input != static_cast<int>(i)) continue;
        same &= node.index == index && ir::BytesOf(node.type) == ir::BytesOf(written.type);
      }
      for (size_t j = 0; j < nest.inputs.size(); ++j) twice |= j != i && step.slots[j] == step.slots[i];
      if (!same || twice) continue;
      if (!output) {
        in_place_.push_back({step.slots[nest.inputs.size() + o], step.slots[i]});
      } else if (to.bytes == whole) {
        overwrites_.push_back({static_cast<int>(to.index), static_cast<int>(from.index), plan_.steps.size()});
      } else {
        own_reads_.push_back({plan_.steps.size(), static_cast<int>(to.index), static_cast<int>(from.index)});
      }
    }
  }
}

absl::Status Builder::AddSpecial(Operation* op) {
  auto kernel = source_(op, SpecialWriter(op, tuning_));
  if (!kernel.ok()) return kernel.status();
  const llvm::SmallVector<Value> inputs = SpecialInputs(op);
  Step step;
  step.kind = Step::Kind::kKernel;
  step.label = op->getName().stripDialect().str();
  for (Value input : inputs) step.slots.push_back(SlotOf(input));
  for (Value result : op->getResults()) {
    AssignResult(result);
    step.slots.push_back(slots_[result]);
  }
  step.kernel = KernelOf(*std::move(kernel));
  if (const Value base = BaseOf(op); base && BytesOf(base) > 0) AddCopyOf(base, op->getResult(0), "base of scatter");
  if (step.kernel.extent() > 0) AddStep(std::move(step), inputs.size());
  return absl::OkStatus();
}

void Builder::AddGemm(ir::DotOp op) {
  GemmSource source = PlanGemm(op);
  AssignResult(op.getResult());
  Step step;
  step.kind = Step::Kind::kGemm;
  step.label =
      HasOpenSizes(function_) ? "dot" : absl::StrCat("dot ", source.step.m, "x", source.step.n, "x", source.step.k);
  step.gemm = source.step;
  step.slots = {SlotOf(source.a), SlotOf(source.b), slots_[op.getResult()]};
  if (BytesOf(op.getResult()) == 0) return;
  Slices slices = SlicesOf(plan_, step);
  AddStep(std::move(step), 2, std::move(slices));
}

void Builder::AddConv(ir::ConvOp op) {
  AssignResult(op.getResult());
  Step step;
  step.kind = Step::Kind::kConv;
  step.conv = *PlanConv(op);
  step.label = step.conv.kind == ConvStep::Kind::kForward ? "conv" : "conv of weight";
  step.slots = {SlotOf(op.getLhs()), SlotOf(op.getRhs()), slots_[op.getResult()]};
  AddStep(std::move(step), 2);
}

void Builder::AddCall(ir::AtenOp op) {
  Step step;
  step.kind = Step::Kind::kCall;
  step.label = op.getName().str();
  step.call.node = static_cast<int32_t>(op.getNode());
  for (Value operand : op.getOperands()) step.slots.push_back(SlotOf(operand));
  Operation* terminator = function_.getBody().front().getTerminator();
  for (Value result : op.getResults()) {
    Slot slot;
    slot.kind = Slot::Kind::kCall;
    slot.index = plan_.num_call_buffers++;
    slot.bytes = BytesOf(result);
    slots_[result] = NewSlot(slot);
    step.slots.push_back(slots_[result]);
    for (auto [i, v] : llvm::enumerate(terminator->getOperands())) {
      if (BytesSource(v) == result) plan_.outputs[i].source = slot.index;
    }
  }
  AddStep(std::move(step), op.getNumOperands());
}

absl::Status Builder::AddConstant(ir::ConstantOp op) {
  auto value = mlir::cast<mlir::DenseElementsAttr>(op.getValue());
  Slot slot;
  slot.kind = Slot::Kind::kConstant;
  slot.bytes = BytesOf(op.getResult());
  plan_.constants.resize((plan_.constants.size() + kAlignment - 1) / kAlignment * kAlignment);
  slot.offset = plan_.constants.size();
  if (value.getElementType().isInteger(1)) {
    for (bool bit : value.getValues<bool>()) plan_.constants.push_back(bit ? 1 : 0);
  } else if (value.isSplat()) {
    llvm::ArrayRef<char> raw = value.getRawData();
    for (uint64_t at = 0; at < slot.bytes; at += raw.size()) plan_.constants.append(raw.data(), raw.size());
  } else {
    plan_.constants.append(value.getRawData().data(), value.getRawData().size());
  }
  if (plan_.constants.size() != slot.offset + slot.bytes) return absl::InternalError("constant of odd size");
  slots_[op.getResult()] = NewSlot(slot);
  return absl::OkStatus();
}

absl::Status Builder::AddSteps() {
  for (Operation& op : function_.getBody().front().without_terminator()) {
    if (auto fusion = mlir::dyn_cast<ir::FusionOp>(op)) {
      if (absl::Status status = AddFusion(fusion); !status.ok()) return status;
    } else if (auto dot = mlir::dyn_cast<ir::DotOp>(op)) {
      AddGemm(dot);
    } else if (auto conv = mlir::dyn_cast<ir::ConvOp>(op); conv && PlanConv(conv)) {
      AddConv(conv);
    } else if (auto call = mlir::dyn_cast<ir::AtenOp>(op)) {
      AddCall(call);
    } else if (auto update = mlir::dyn_cast<ir::UpdateSliceOp>(op)) {
      AddUpdate(update);
    } else if (IsSpecialOp(&op)) {
      if (absl::Status status = AddSpecial(&op); !status.ok()) return status;
    } else if (auto constant = mlir::dyn_cast<ir::ConstantOp>(op)) {
      if (MadeByReaders(constant)) continue;
      if (absl::Status status = AddConstant(constant); !status.ok()) return status;
    } else if (!mlir::isa<ir::BitcastOp, ir::UndefinedOp>(op) && !IsFreeOp(&op)) {
      return absl::UnimplementedError(
          absl::StrCat("the host compiler has no step for ", op.getName().getStringRef().str()));
    }
  }
  for (auto [root, output] : copies_) {
    Slot slot;
    slot.kind = Slot::Kind::kOutput;
    slot.index = static_cast<uint32_t>(output);
    slot.bytes = BytesOf(root);
    Step step;
    step.kind = Step::Kind::kCopy;
    step.label = "copy";
    step.slots = {slots_[root], NewSlot(slot)};
    AddStep(std::move(step), 1);
  }
  return absl::OkStatus();
}

void Builder::FormLoops(std::vector<Builder>& sizes) {
  const Plan& largest = sizes.back().plan_;
  for (const Builder& b : sizes) {  // plans that differ are not joined
    const auto alike = [](const Step& x, const Step& y) { return x.kind == y.kind && x.slots == y.slots; };
    if (!llvm::equal(b.plan_.steps, largest.steps, alike)) return;
  }
  std::vector<SizedSteps> steps;
  for (Builder& b : sizes) steps.push_back({&b.plan_, &b.slices_of_});
  const std::vector<size_t> former = FormTileLoops(steps);
  std::vector<size_t> now(former.size());
  for (size_t i = 0; i < former.size(); ++i) now[former[i]] = i;
  for (Builder& b : sizes) {
    for (Candidate& c : b.overwrites_) c.step = now[c.step];
    for (OwnRead& read : b.own_reads_) read.step = now[read.step];
  }
}

// Donations: no step reads the input after, or at the time of, the step that writes the output. What nothing reads, as
// a fill the value that it writes over, is any output's of its size.
void Builder::Donate(const std::vector<size_t>& times) {
  std::vector<bool> taken(plan_.num_inputs, false);
  for (const OutputSpec& output : plan_.outputs) {
    if (output.kind == OutputSpec::Kind::kInput) taken[output.source] = true;
  }
  for (const Candidate& c : overwrites_) {
    OutputSpec& output = plan_.outputs[c.output];
    if (output.may_overwrite >= 0 || taken[c.input]) continue;
    bool last = true;
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      if (s == c.step || times[s] < times[c.step]) continue;
      const auto is_own = [&](const OwnRead& r) { return r.step == s && r.output == c.output && r.input == c.input; };
      if (llvm::any_of(own_reads_, is_own)) continue;
      for (uint32_t slot : plan_.steps[s].slots) {
        const Slot& at = plan_.slots[slot];
        last &= at.kind != Slot::Kind::kInput || at.index != static_cast<uint32_t>(c.input);
      }
    }
    if (!last) continue;
    output.may_overwrite = c.input;
    taken[c.input] = true;
  }
  for (mlir::BlockArgument unread : function_.getArguments()) {
    if (!unread.use_empty() || ir::TensorTypeOf(unread).getRank() == 0) continue;
    const auto output = llvm::find_if(plan_.outputs, [&](const OutputSpec& o) {
      return o.kind == OutputSpec::Kind::kFresh && o.may_overwrite < 0 && o.bytes == BytesOf(unread);
    });
    if (output != plan_.outputs.end()) output->may_overwrite = static_cast<int32_t>(unread.getArgNumber());
  }
}

absl::Status Builder::AddAll() {
  AssignInputs();
  AssignOutputs();
  FindPlaces();
  return AddSteps();
}

Plan Builder::Finish() {
  Donate(TimesOf(plan_));
  PlaceTemporaries(plan_, in_place_);
  return std::move(plan_);
}

// Of one function at several sizes.
absl::StatusOr<std::vector<Plan>> Build(std::vector<Builder> sizes) {
  for (Builder& b : sizes) {
    if (absl::Status status = b.AddAll(); !status.ok()) return status;
  }
  Builder::FormLoops(sizes);
  std::vector<Plan> plans;
  for (Builder& b : sizes) plans.push_back(b.Finish());
  return plans;
}

}  // namespace

std::optional<LoopNest> NestOf(ir::FusionOp op) {
  llvm::SmallVector<Value> outputs(op.getBody().front().getTerminator()->getOperands());
  return AnalyzeLoopNest([](Operation*) { return true; }, outputs);
}

absl::StatusOr<Plan> BuildPlan(mlir::func::FuncOp function, const Tuning& tuning, const std::atomic<bool>* cancelled) {
  const auto compile = [&](Operation*, const KernelWriter& writer) -> absl::StatusOr<CompiledKernel> {
    if (cancelled != nullptr && *cancelled) return absl::CancelledError();
    return CompileKernel(writer);
  };
  std::vector<Builder> one;
  one.emplace_back(function, tuning, compile);
  auto plans = Build(std::move(one));
  if (!plans.ok()) return plans.status();
  return std::move(plans->front());
}

absl::StatusOr<std::vector<Plan>> BuildOpenPlans(absl::Span<const mlir::func::FuncOp> sizes,
                                                 const KernelSource& kernels) {
  std::vector<Builder> builders;
  for (mlir::func::FuncOp function : sizes) builders.emplace_back(function, Tuning(), kernels);
  return Build(std::move(builders));
}

}  // namespace tpu::host
