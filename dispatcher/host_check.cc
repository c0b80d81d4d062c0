#include "dispatcher/host_check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/equal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "dispatcher/host_team.h"
#include "dispatcher/host_widened.h"
#include "dispatcher/layout.h"
#include "dispatcher/overlap.h"
#include "dispatcher/structured.h"
#include "jit/engine.h"
#include "runtime/flags.h"

namespace tpu {
namespace {

// Up to the first, a kernel is tried on tensors of the call's own sizes; up to the second, after it has refused shrunk
// ones. Beyond, such a refusal says nothing.
constexpr int64_t kSmallElements = 1 << 14, kLargeElements = 1 << 24;
constexpr int64_t kShrunk = 4;  // what larger sizes become, or a multiple of it
// But a size that an attribute names stays, up to this: a norm's normalized_shape.
constexpr int64_t kLargestNamed = 1 << 12;

// What stand-ins hold: most kernels are content with the first. Probabilities, indices, offsets, pivots and matrices to
// be inverted are each right in one of them.
struct Contents {
  enum class Floats { kOne, kHalf, kZero, kIdentity } floats;
  enum class Integers { kZero, kOne, kCounting } integers;
};
constexpr Contents kContents[] = {
    {Contents::Floats::kOne, Contents::Integers::kZero},
    {Contents::Floats::kIdentity, Contents::Integers::kOne},
    {Contents::Floats::kHalf, Contents::Integers::kCounting},
    {Contents::Floats::kZero, Contents::Integers::kZero},
};

void Fill(at::Tensor t, Contents contents) {
  if (t.numel() == 0) return;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.stride(d) == 0) t = t.narrow(d, 0, 1);  // elements in one place are written once
  }
  if (!at::isFloatingType(t.scalar_type()) && !at::isComplexType(t.scalar_type())) {
    t.fill_(contents.integers == Contents::Integers::kZero ? 0 : 1);
    if (contents.integers == Contents::Integers::kCounting && t.dim() > 0) t.copy_(at::arange(t.size(-1)));
    return;
  }
  using Floats = Contents::Floats;
  t.fill_(contents.floats == Floats::kHalf ? 0.5 : contents.floats == Floats::kOne ? 1 : 0);
  if (contents.floats == Floats::kIdentity) t.dim() < 2 ? t.fill_(1) : t.diagonal(0, -2, -1).fill_(1);
}

struct Shape {
  std::vector<int64_t> sizes, strides;
};

// Strides without gaps whose dimensions lie in the order of `like`.
std::vector<int64_t> Packed(at::IntArrayRef sizes, at::IntArrayRef like) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return like[a] < like[b]; });
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (const size_t i : order) {
    if (like[i] == 0 && sizes[i] > 1) continue;
    strides[i] = step;
    step *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

// The shapes of shrunk tensors: equal sizes stay equal and others different, in their order; expanded dimensions stay
// expanded.
class Shrinking {
 public:
  enum class Dimensions {
    kAll,
    // Batches, channels: what comes first in all operands alike. For calls whose other sizes follow from one another.
    kLeading,
  };
  Shrinking(const Call& call, Dimensions dimensions)
      : call_(call), leading_(dimensions == Dimensions::kLeading ? std::optional(LeadingAlike()) : std::nullopt) {
    for (const CallArgument& a : call.arguments) {
      if (const auto* one = std::get_if<int64_t>(&a.attribute)) named_.push_back(*one);
      if (const auto* list = std::get_if<std::vector<int64_t>>(&a.attribute)) {
        named_.insert(named_.end(), list->begin(), list->end());
      }
    }
    for (const OperandType& operand : call.operands) {
      for (const int64_t size : operand.type.dims) {
        if (size >= kShrunk) sizes_.push_back(size);
      }
    }
    std::sort(sizes_.begin(), sizes_.end());
    sizes_.erase(std::unique(sizes_.begin(), sizes_.end()), sizes_.end());
  }
  Shape operator()(at::IntArrayRef sizes, at::IntArrayRef strides) const {
    std::vector<int64_t> shrunk = sizes.vec();
    const size_t dimensions = !leading_ ? sizes.size() : sizes.size() < 2 ? 0 : std::min(*leading_, sizes.size());
    for (size_t d = 0; d < dimensions; ++d) {
      int64_t& size = shrunk[d];
      const bool named = size <= kLargestNamed && std::find(named_.begin(), named_.end(), size) != named_.end();
      if (!named && size > kShrunk) size = Shrunk(size);
    }
    std::vector<int64_t> packed = Packed(shrunk, strides);
    return {std::move(shrunk), std::move(packed)};
  }
  // Of all operands.
  int64_t Elements() const {
    int64_t elements = 0;
    for (const OperandType& operand : call_.operands) elements += c10::multiply_integers(ShrunkSizes(operand));
    return elements;
  }
  // How many positions an operand's last dimensions have (group norm's HxW) becomes how many the shrunk ones have. A
  // guess: what only happens to be such a number is refused then, and tried again at its own sizes.
  int64_t Attribute(int64_t number) const {
    int64_t shrunk_number = number;
    for (const OperandType& operand : call_.operands) {
      const Dims& sizes = operand.type.dims;
      if (std::find(sizes.begin(), sizes.end(), number) != sizes.end()) return number;
      const std::vector<int64_t> shrunk = ShrunkSizes(operand);
      int64_t positions = 1, shrunk_positions = 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        positions *= sizes[d];
        shrunk_positions *= shrunk[d];
        if (positions == number) shrunk_number = shrunk_positions;
      }
    }
    return shrunk_number;
  }

 private:
  // By its rank among the operands' sizes.
  int64_t Shrunk(int64_t size) const {
    const auto rank = std::lower_bound(sizes_.begin(), sizes_.end(), size) - sizes_.begin();
    return std::min(size, kShrunk * (static_cast<int64_t>(rank) + 1));
  }
  std::vector<int64_t> ShrunkSizes(const OperandType& operand) const {
    const Dims& sizes = operand.type.dims;
    return (*this)({sizes.data(), sizes.size()}, std::vector<int64_t>(sizes.size())).sizes;
  }
  // How many dimensions but the last all matrices and larger operands have alike from the first on; of one the first.
  size_t LeadingAlike() const {
    const Dims* first = nullptr;
    size_t alike = 0, operands = 0;
    for (const OperandType& operand : call_.operands) {
      const Dims& sizes = operand.type.dims;
      if (sizes.size() < 2) continue;
      if (++operands == 1) {
        first = &sizes;
        alike = sizes.size() - 1;
        continue;
      }
      const auto last = sizes.begin() + static_cast<int64_t>(std::min(alike, sizes.size() - 1));
      alike = static_cast<size_t>(std::mismatch(sizes.begin(), last, first->begin()).first - sizes.begin());
    }
    return operands > 1 ? alike : std::min<size_t>(alike, 1);
  }

  const Call& call_;
  const std::optional<size_t> leading_;
  std::vector<int64_t> named_;
  std::vector<int64_t> sizes_;  // of the operands, from kShrunk on, ascending
};

// The call's arguments with stand-ins for its tensors, of their own sizes where `shrink` is null.
class StandIns {
 public:
  StandIns(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Overlaps& overlaps, const Shrinking* shrink)
      : op_(op), arguments_(arguments), overlaps_(overlaps), shrink_(shrink) {}
  const Shrinking* shrinking() const { return shrink_; }  // null: they have the arguments' sizes

  torch::jit::Stack Make(Contents contents) const {
    torch::jit::Stack stack;
    std::vector<at::Tensor> made;
    for (size_t i = 0; i < arguments_.size(); ++i) stack.push_back(MakeOne(i, contents, made));
    return stack;
  }

 private:
  c10::IValue MakeOne(size_t i, Contents contents, std::vector<at::Tensor>& made) const {
    const c10::IValue& v = arguments_[i];
    if (op_.kinds[i] == ArgumentKind::kGenerator) {
      thread_local const at::Generator unshared = at::detail::createCPUGenerator();
      return unshared;
    }
    if (v.isDevice()) return c10::Device(c10::kCPU);
    if (op_.data_dependent && static_cast<int>(i) == op_.output_size) return {};  // what stand-ins hold says another
    if (v.isInt() && shrink_ != nullptr && op_.kinds[i] == ArgumentKind::kAttribute) {
      return shrink_->Attribute(v.toInt());
    }
    return MapTensors(v, op_.kinds[i], [&](const at::Tensor& t) {
      made.push_back(TensorLike(t, made));
      Fill(made.back(), contents);
      return made.back();
    });
  }

  // Puts `moved` over `there`: over its elements, or over all but the first.
  static void MoveOver(const at::Tensor& moved, const at::Tensor& there, bool beside) {
    const int64_t offset = there.storage_offset() + (beside ? 1 : 0);
    const std::vector<int64_t> sizes = moved.sizes().vec(), strides = moved.strides().vec();
    const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, moved.itemsize(), offset);
    at::native::maybe_resize_storage_cpu(there.unsafeGetTensorImpl(), bytes);
    moved.set_(there.storage(), offset, sizes, strides);
  }

  // `made`: of the tensors before it, with some of which it may share memory. It goes where the first of them is, the
  // others come there.
  at::Tensor TensorLike(const at::Tensor& t, const std::vector<at::Tensor>& made) const {
    const Shape shape = shrink_ ? (*shrink_)(t.sizes(), t.strides()) : Shape{t.sizes().vec(), t.strides().vec()};
    at::Tensor like = at::empty_strided(shape.sizes, shape.strides, at::TensorOptions(t.scalar_type()));
    bool placed = false;
    for (const Overlap& overlap : overlaps_) {
      if (overlap.second != made.size()) continue;
      const at::Tensor& other = made[overlap.first];
      const bool beside =
          overlap.kind == Overlap::Kind::kPartial && other.sizes() == like.sizes() && other.dtype() == like.dtype();
      const bool same = overlap.kind == Overlap::Kind::kSameTensor;
      if (placed) {
        MoveOver(other, like, beside);
      } else if (!same) {
        MoveOver(like, other, beside);
      }
      if (same) like = other;
      placed = true;
    }
    // A number stays one: it takes part in promotion as such.
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) like.unsafeGetTensorImpl()->set_wrapped_number(true);
    return like;
  }

  const Operator& op_;
  const at::ArrayRef<c10::IValue> arguments_;
  const Overlaps& overlaps_;
  const Shrinking* const shrink_;
};

bool DrawsElsewhere(const Operator& op) {
  return op.seeded && std::find(op.kinds.begin(), op.kinds.end(), ArgumentKind::kGenerator) == op.kinds.end();
}

// Puts the CPU's generator back, from which operators draw that take none.
class UnmovedGenerator {
 public:
  UnmovedGenerator() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~UnmovedGenerator() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  bool WasMoved() {
    std::lock_guard<std::mutex> lock(generator_.mutex());
    return !at::equal(generator_.get_state(), state_);
  }

 private:
  at::Generator generator_ = at::detail::getDefaultCPUGenerator();
  at::Tensor state_;
};

// What the operator complains about, or null: then its results are on the stack, if it `ran`, and it `drew` perhaps.
// Others' exceptions are no complaints.
std::exception_ptr Complaint(const Operator& op, torch::jit::Stack& stack, std::string& message, bool& ran,
                             bool& drew) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  std::optional<UnmovedGenerator> unmoved;
  if (DrawsElsewhere(op)) unmoved.emplace();
  try {
    CallWidening(op.op, stack);
    ran = true;
    drew = !unmoved || unmoved->WasMoved();
  } catch (const c10::Error& e) {
    message = e.what_without_backtrace();
    return std::current_exception();
  } catch (const std::runtime_error& e) {  // of numbers that the elements' type can't hold
    message = e.what();
    return std::current_exception();
  } catch (...) {
    stack.clear();
  }
  return nullptr;
}

bool IsNotImplemented(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::NotImplementedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// What PyTorch infers for stand-ins; nothing where it refuses them.
torch::jit::Stack InferredFor(const Operator& op, const torch::jit::Stack& stand_ins) {
  try {
    std::optional<Inference> inference = AskPyTorch(op, stand_ins, c10::DeviceType::CPU);
    return inference ? std::move(inference->returns) : torch::jit::Stack();
  } catch (...) {
    return {};
  }
}

// False when a result has other sizes than it should have, which are those of `inferred`, shrunk if the arguments are.
bool AsInferred(const torch::jit::Stack& found, const torch::jit::Stack& inferred, const Shrinking* shrink) {
  for (size_t r = 0; r < std::min(found.size(), inferred.size()); ++r) {
    const std::vector<at::Tensor> one = TensorsOf(found[r]), other = TensorsOf(inferred[r]);
    for (size_t i = 0; i < std::min(one.size(), other.size()); ++i) {
      const Shape whole{other[i].sizes().vec(), other[i].strides().vec()};
      const std::vector<int64_t> sizes = shrink ? (*shrink)(whole.sizes, whole.strides).sizes : whole.sizes;
      if (one[i].sizes() != sizes && (one[i].numel() != 1 || c10::multiply_integers(sizes) != 1)) return false;
    }
  }
  return true;
}

// A tensor of the kernel's results.
struct Found {
  c10::ScalarType type;
  Shape shape;
};

// By result: itself, or a list's tensors.
using Results = std::vector<std::vector<Found>>;

// What a kernel did without a complaint.
struct Done {
  Results results;
  bool draws;
};

Results Describe(const torch::jit::Stack& results) {
  Results described;
  for (const c10::IValue& r : results) {
    described.emplace_back();
    for (const at::Tensor& t : TensorsOf(r)) {
      described.back().push_back({t.scalar_type(), {t.sizes().vec(), t.strides().vec()}});
    }
  }
  return described;
}

// Whether tensors of these sizes lie in memory alike: where there is one element, strides say nothing.
bool SameStrides(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

// The strides of a result of these sizes, where the kernel's are those of one that may have been shrunk; `inferred`
// where it says nothing else.
std::vector<int64_t> StridesAs(const Shape& found, at::IntArrayRef sizes, at::IntArrayRef inferred) {
  if (found.sizes.size() != sizes.size() || c10::multiply_integers(sizes) == 0) return inferred.vec();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool says_nothing = sizes[i] > 1 && (found.sizes[i] < 2 || found.strides[i] == 0);
    if (says_nothing) return inferred.vec();
  }
  if (found.sizes == sizes) return found.strides;
  const auto packed = [&found](at::IntArrayRef like) { return Packed(found.sizes, like); };
  const bool same = packed(found.strides) == packed(inferred);
  const bool gaps = !SameStrides(found.sizes, packed(found.strides), found.strides);
  return same || gaps ? inferred.vec() : Packed(sizes, found.strides);
}

// `inferred` with what the kernel says of it.
at::Tensor Adopted(const Found& found, const at::Tensor& inferred) {
  const auto& [type, shape] = found;
  const bool number = shape.sizes.empty() && inferred.numel() == 1;
  const at::IntArrayRef none, sizes = number ? none : inferred.sizes();
  const std::vector<int64_t> strides = StridesAs(shape, sizes, number ? none : inferred.strides());
  const bool same = inferred.scalar_type() == type && inferred.sizes() == sizes && inferred.strides() == strides;
  return same ? inferred : at::empty_strided(sizes, strides, inferred.options().dtype(type));
}

// Meta kernels differ from the CPU's in the types of some results (statistics of norms of 16-bit floats), in the
// strides of some, and in one dimension or none for one element (the loss of multilabel_margin_loss).
void Adopt(const Results& found, torch::jit::Stack& inferred) {
  for (size_t r = 0; r < std::min(found.size(), inferred.size()); ++r) {
    const ArgumentKind kind = inferred[r].isTensor() ? ArgumentKind::kTensor : ArgumentKind::kTensorList;
    if (TensorsOf(inferred[r]).size() != found[r].size()) continue;
    auto next = found[r].begin();
    inferred[r] = MapTensors(inferred[r], kind, [&next](const at::Tensor& t) { return Adopted(*next++, t); });
  }
}

// What the kernel said of shrunk stand-ins without a complaint: the same for all calls that shrink to them.
class Passed {
 public:
  using Key = std::vector<uint64_t>;

  // Of the call: its words with the layouts of what its operands shrink to, which results are empty, and what its
  // attributes become.
  static Key KeyOf(const Operator& op, const Collected& collected, at::ArrayRef<c10::IValue> arguments,
                   const Shrinking& shrink, const torch::jit::Stack& inferred) {
    Key key = {reinterpret_cast<uintptr_t>(&op)};
    auto layout = collected.layouts.begin();
    for (const uint64_t word : collected.words) {
      while (layout != collected.layouts.end() && *layout == nullptr) ++layout;
      if (layout == collected.layouts.end() || word != reinterpret_cast<uintptr_t>(*layout)) {
        key.push_back(word);
        continue;
      }
      const Shape shape = shrink((*layout)->sizes(), (*layout)->stride_ref());
      key.push_back(reinterpret_cast<uintptr_t>(InternLayout((*layout)->scalar_type, shape.sizes, shape.strides)));
      ++layout;
    }
    for (const c10::IValue& result : inferred) {
      for (const at::Tensor& t : TensorsOf(result)) key.push_back(t.numel() == 0);
    }
    for (const c10::IValue& argument : arguments) {
      if (argument.isInt()) key.push_back(static_cast<uint64_t>(shrink.Attribute(argument.toInt())));
    }
    if (op.seeded) AddNumbers(collected, key);
    return key;
  }
  static void AddNumbers(const Collected& collected, Key& key) {
    for (size_t i = 0; i < collected.layouts.size(); ++i) {
      if (collected.layouts[i] == nullptr) key.push_back(collected.operands[i].bits);
    }
  }

  std::optional<Done> Find(const Key& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto it = done_.find(key);
    return it == done_.end() ? std::nullopt : std::optional(it->second);
  }
  void Insert(Key key, Done done) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (done_.size() >= kMost) done_.clear();  // what comes back is tried again
    done_.emplace(std::move(key), std::move(done));
  }
  static Passed& Get() {
    static auto* const passed = new Passed();
    return *passed;
  }

 private:
  static constexpr size_t kMost = 4096;  // some hundred bytes each

  std::mutex mutex_;
  absl::flat_hash_map<Key, Done> done_;
};

int64_t Elements(at::ArrayRef<c10::IValue> values) {
  int64_t elements = 0;
  for (const c10::IValue& v : values) {
    for (const at::Tensor& t : TensorsOf(v)) elements += t.numel();
  }
  return elements;
}

struct Trial {
  HostCheck check;            // with the one complaint about all contents
  torch::jit::Stack results;  // without a complaint
};

// Hears what is so of the call, too: not what a kernel warns of on shrunk tensors, and not that it resizes an out=
// tensor, which is said again when that is done.
class Hearing final : public c10::WarningHandler {
 public:
  explicit Hearing(bool shrunk) : shrunk_(shrunk), next_(c10::WarningUtils::get_warning_handler()) {}
  void process(const c10::Warning& warning) override {
    const bool resizes = warning.msg().find("elements was resized since it had shape") != std::string::npos;
    if (!shrunk_ && !resizes) next_->process(warning);
  }

 private:
  const bool shrunk_;
  c10::WarningHandler* const next_;
};

Trial Try(const Operator& op, const StandIns& stand_ins, const torch::jit::Stack& inferred) {
  Hearing hearing(stand_ins.shrinking() != nullptr);
  const c10::WarningUtils::WarningHandlerGuard guard(&hearing);
  const HostTeamLimit alone(1);
  Trial trial;
  std::string complaint;
  for (const Contents& contents : kContents) {
    std::string message;
    bool ran = false, drew = true;
    torch::jit::Stack stack = stand_ins.Make(contents);
    const std::exception_ptr error = Complaint(op, stack, message, ran, drew);
    if (!error) {
      bool as_inferred = AsInferred(stack, inferred, stand_ins.shrinking());
      if (!as_inferred && stand_ins.shrinking()) {  // results' sizes are computed from the arguments'
        as_inferred = AsInferred(stack, InferredFor(op, stand_ins.Make(contents)), nullptr);
      }
      return {{nullptr, as_inferred, ran, drew}, std::move(stack)};
    }
    const bool about_types = IsNotImplemented(error);  // whatever else is wrong with what the others hold
    if (trial.check.complaint && message != complaint && !about_types) return {};
    trial.check.complaint = error;
    if (about_types) return trial;
    complaint = message;
  }
  return trial;
}

bool HasHostKernel(const Operator& op) { return op.op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU); }

bool OfLibrary(const Operator& op) { return op.op.schema().getNamespace() != "aten"; }

// Of floats of one type the CPU lacks some kernels that other devices have; of other types, what has no meaning.
bool TakesFloats(const Call& call) {
  bool tensors = false;
  std::optional<DType> floats;
  for (const auto& operand : call.operands) {
    tensors |= !operand.is_scalar;
    if (operand.is_scalar || !IsFloat(operand.type.dtype)) continue;
    if (std::exchange(floats, operand.type.dtype).value_or(operand.type.dtype) != operand.type.dtype) return false;
  }
  return floats || (!tensors && !call.results.empty() && IsFloat(call.results[0].dtype));
}

}  // namespace

HostCheck CheckOnHost(const Operator& op, const Call& call, const Collected& collected,
                      at::ArrayRef<c10::IValue> arguments, torch::jit::Stack& inferred) {
  if (OfLibrary(op)) return {.accepted = HasHostKernel(op)};
  if (!HasHostKernel(op)) return {};
  const int64_t elements = Elements(arguments) + Elements(inferred);
  const bool small = elements <= kSmallElements;
  if (!small && call.operands.empty()) return {};  // its sizes are attributes: they don't shrink
  const Shrinking shrink(call, Shrinking::Dimensions::kAll);
  Passed::Key key;
  if (!small) {
    key = Passed::KeyOf(op, collected, arguments, shrink, inferred);
    if (const std::optional<Done> done = Passed::Get().Find(key)) {
      Adopt(done->results, inferred);
      return {.accepted = true, .draws = done->draws};
    }
  }
  Overlaps overlaps = FindOverlaps(op, arguments);
  const auto unseen = [](const Overlap& overlap) { return overlap.kind == Overlap::Kind::kPerhaps; };
  overlaps.erase(std::remove_if(overlaps.begin(), overlaps.end(), unseen), overlaps.end());
  Trial trial = Try(op, StandIns(op, arguments, overlaps, small ? nullptr : &shrink), inferred);
  if (!small && !trial.check.complaint && trial.check.as_inferred) {
    Passed::Get().Insert(std::move(key), {Describe(trial.results), trial.check.draws});
  }
  // Perhaps because shrunk sizes don't fit one another or the call's attributes; what is about types stands.
  const auto about_sizes = [&] { return !small && trial.check.complaint && !IsNotImplemented(trial.check.complaint); };
  if (about_sizes()) {
    const Shrinking less(call, Shrinking::Dimensions::kLeading);
    if (less.Elements() <= kLargeElements) trial = Try(op, StandIns(op, arguments, overlaps, &less), inferred);
  }
  if (about_sizes()) {
    if (elements > kLargeElements) return overlaps.empty() ? HostCheck() : trial.check;
    trial = Try(op, StandIns(op, arguments, overlaps, nullptr), inferred);
  }
  Adopt(Describe(trial.results), inferred);
  return trial.check;
}

void CheckNumbers(const Operator& op, const Call& call, const Collected& collected,
                  at::ArrayRef<c10::IValue> arguments) {
  if (OfLibrary(op) || !HasHostKernel(op)) return;
  Passed::Key key = {reinterpret_cast<uintptr_t>(&op)};
  key.insert(key.end(), collected.words.begin(), collected.words.end());
  Passed::AddNumbers(collected, key);
  if (Passed::Get().Find(key)) return;
  torch::jit::Stack none;
  const std::exception_ptr complaint = CheckOnHost(op, call, collected, arguments, none).complaint;
  if (complaint && !IsNotImplemented(complaint)) std::rethrow_exception(complaint);
  Passed::Get().Insert(std::move(key), {{}, true});
}

bool HostCheck::AllowsToRecord(const Call& call) const {
  if (!complaint && as_inferred) return true;
  const CompilerBackend& backend = Engine::Get().backend();
  if (!complaint) return backend.CanLower(call);  // asked only of calls that PyTorch takes: lowerings trust that
  if (IsNotImplemented(complaint) && TakesFloats(call) && !backend.HoldsCalls() && backend.CanLower(call)) return true;
  if (Flags::Get().fallback == "error") std::rethrow_exception(complaint);  // it may not run on its own data
  return false;
}

}  // namespace tpu
