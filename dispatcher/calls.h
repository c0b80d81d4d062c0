// Making Calls: what an ATen call on given kinds of tensors means to the layers below, interned so that recording the
// same call again is one hash look-up.
//
// Operator is what a schema says, parsed once; Signature is an operator on kinds of operands with PyTorch's own shape
// inference answered. Operators live as long as the process, signatures while anybody needs them. How the tensors in
// arguments and results are listed, visited and replaced stands here too. Any thread.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "compiler/fragment.h"
#include "dispatcher/host_team.h"
#include "dispatcher/layout.h"
#include "jit/value.h"
#include "jit/window.h"

namespace tpu {

// How one schema argument is recorded.
enum class ArgumentKind : uint8_t { kTensor, kTensorList, kScalar, kScalarList, kGenerator, kAttribute };

// The type of a scalar operand, and what it is rebuilt as for a host kernel.
struct ScalarSpec {
  enum class As : uint8_t { kScalar, kFloat, kTensor };
  As as = As::kScalar;
  DType dtype = DType::kFloat64;                             // kBool, kInt64 or kFloat64
  c10::ScalarType tensor_type = c10::ScalarType::Undefined;  // kTensor: the 0-dim CPU tensor's
  bool wrapped_number = false;                               // kTensor: a Python number
};

// How a Call runs as a kernel of ATen's on the host: Call::host_kernel.
struct HostKernel {
  c10::OperatorHandle op;
  std::vector<c10::IValue> constants;     // by argument: the attributes; None where operands go
  std::vector<ScalarSpec> scalars;        // by operand (scalar operands only)
  std::vector<c10::ScalarType> operands;  // by operand: element type (tensor operands only)
  std::vector<int> mutated;               // arguments that the kernel writes: cloned first, results in this order
  std::vector<c10::ScalarType> results;   // element types the results are converted to
  // The operator that writes over its arguments where `op` is its functional form: runs when those are given up.
  std::optional<c10::OperatorHandle> in_place;
  std::vector<int> in_place_mutated;
  bool seeded = false;  // the last two operands are Philox seed and offset
  // Floats are computed from integers alone, in PyTorch's default type: what that was when the call was recorded, the
  // type computed in, and the argument to be converted to it if another default holds when the kernel runs. -1: none.
  c10::ScalarType default_type = c10::ScalarType::Undefined, computed = c10::ScalarType::Undefined;
  int promoted = -1;
  bool products = false;  // Operator::has_products
  // Operator::any_strides: a window of a storage is read where it lies. Other kernels get it contiguous, since some of
  // ATen's rely on what calls them in ATen for that.
  bool any_strides = false;
  mutable TeamChoice team;  // of every run
};

// What a call on these kinds of operands is recorded as, and what becomes of its results.
struct Signature {
  CallRef call;
  std::vector<const Layout*> results;  // of call.results: the strides that new tensors get
  std::vector<size_t> lists;           // by list that is returned: how many of them are its tensors
  uint64_t random_counters = 0;        // Philox counters each call takes
  // False: can't be recorded (its result's shape depends on data, it returns numbers, or has no shape inference);
  // it runs at once on the host.
  bool recordable = true;
  bool refused = false;  // by the CPU's kernel, perhaps for its numbers: not recordable
  bool plain = false;    // recordable, one result, which is a tensor without gaps or written; takes no random numbers
  // The results are at their largest, and behind them is what there is of each (CompilerBackend::Bounds).
  bool bounded = false;
  // It becomes recordable, or runs on the device, once the masks among its indices are positions.
  bool expands_masks = false;
};

using SignatureRef = std::shared_ptr<const Signature>;

struct Operator {
  c10::OperatorHandle op;
  // What is recorded: the functional form of an in-place or out= operator, if it has one; else op itself.
  c10::OperatorHandle recorded;
  std::string name;                 // of `recorded`
  std::vector<ArgumentKind> kinds;  // by argument of op
  std::vector<bool> is_float;       // by argument: schema type float, not Scalar
  // By argument: the schema's default number. A call that leaves it is recorded with it as an attribute: that is part
  // of what the call means, and lets the compiler drop a multiplication by alpha = 1.
  std::vector<std::optional<c10::Scalar>> defaults;
  std::vector<int> mutated;       // arguments that are written, in order
  std::vector<int> out;           // of these, the out= arguments: resized to the result, their old value unread
  std::vector<int> return_alias;  // by return: the mutated argument it is, or -1 for a new tensor
  bool functional_form = false;   // recorded != op
  bool returns_tensors = true;    // only tensors and lists of tensors
  bool static_scalars = false;    // CompilerBackend::StaticScalars
  bool has_products = false;      // aten::HasProducts
  bool seeded = false;            // tagged nondeterministic_seeded
  bool data_dependent = false;    // tagged dynamic_output_shape or data_dependent_output
  bool structured = false;        // IsStructured
  bool for_each = false;          // IsForEach
  bool pointwise = false;         // tagged so, or its functional form
  bool any_strides = false;       // the CPU's kernel takes operands of any strides for certain
  int dtype = -1;                 // the argument that names the type to compute in, where there may be one
  bool is_view = false;           // returns a view of an argument it doesn't write
  int packed = -1;                // the argument that is a list of numbers in a tensor of the CPU: `scalars`
  int rate = -1;                  // the argument of which one element on the CPU is a number, of any dims: `lr`
  int check_errors = -1;          // the argument that asks for errors at the call: `check_errors`
  int output_size = -1;           // the argument that says how large the result is: `output_size`
  int indices = -1;               // the argument that holds indices of dims, masks among them: the schema's Tensor?[]

  // Keep the handles good when a library ends: of calls that are queued, and of known fragments.
  std::vector<c10::RegistrationHandleRAII> pins;

  explicit Operator(const c10::OperatorHandle& op);
  bool IsDefault(size_t argument, const c10::Scalar& value) const;
  bool Writes(int argument) const { return std::find(mutated.begin(), mutated.end(), argument) != mutated.end(); }
  bool IsOut(int argument) const { return std::find(out.begin(), out.end(), argument) != out.end(); }
  static Operator& Of(const c10::OperatorHandle& op);

  // The signature for these words (Collected::words), or null. Each thread remembers its latest finds: the reference is
  // good until its next.
  const SignatureRef& Find(absl::Span<const uint64_t> words);
  SignatureRef Insert(absl::Span<const uint64_t> words, SignatureRef signature);

 private:
  struct Words {
    using is_transparent = void;
    size_t operator()(absl::Span<const uint64_t> w) const;
    bool operator()(absl::Span<const uint64_t> a, absl::Span<const uint64_t> b) const { return a == b; }
  };
  SignatureRef FindShared(absl::Span<const uint64_t> words);
  static size_t GiveUpSignatures();

  std::mutex mutex_;
  absl::flat_hash_map<std::vector<uint64_t>, SignatureRef, Words, Words> signatures_;
};

// One call's arguments, taken from the stack: operands in order, and words that say everything about the call but the
// operands' values.
struct Collected {
  c10::SmallVector<uint64_t, 24> words;
  c10::SmallVector<ValueRef, 4> values;  // keeps the operands below alive: others may write their tensors
  ValueRef held;                         // what the first argument's storage held, where that is not values.front()
  bool first_is_made = false;            // for this call, of the first argument: a conjugate's values, say
  c10::SmallVector<at::Tensor, 1> temporaries;  // made for this call: likewise
  c10::SmallVector<Operand, 8> operands;
  c10::SmallVector<ScalarSpec, 8> scalars;     // by operand
  c10::SmallVector<const Layout*, 8> layouts;  // by operand; null for scalars
  c10::DeviceIndex device = -1;

  // One argument after the other, for kernels that know their types; then Finish.
  void Add(const Operator& op, size_t, const at::Tensor& tensor) { AddTensor(op, tensor, false); }
  void Add(const Operator& op, size_t argument, const c10::Scalar& number);
  void Finish(const Operator& op);

  // Reads the arguments' values, uploading CPU tensors where PyTorch allows them. Raises for tensors elsewhere.
  void Collect(const Operator& op, at::ArrayRef<c10::IValue> arguments);

  // Makes `value`, which the call made, the elements of the first argument, which was read as it is (not
  // first_is_made). False, and nothing written, where another thread wrote that since it was read here: the call is to
  // be made again.
  bool WriteFirst(const at::Tensor& first, ValueRef value) const;

 private:
  c10::DeviceIndex DeviceSoFar() const;  // the tensors', else the current one
  void MeetDevice(const Operator& op, c10::DeviceIndex index);
  void AddOut(const Operator& op, const at::Tensor& tensor);
  void AddTensor(const Operator& op, const at::Tensor& tensor, bool in_list);
  void AddTemporary(const Operator& op, at::Tensor tensor, bool in_list);
  void AddHostTensor(const Operator& op, const at::Tensor& tensor, bool in_list);
  void AddScalar(const c10::Scalar& number, ScalarSpec::As as);
  void AddAttribute(const c10::IValue& value);
};

// What torch.set_float32_matmul_precision says now.
Precision ProductPrecision();

// PyTorch's shape inference for the call, as a new Signature. Raises what PyTorch raises.
SignatureRef Infer(const Operator& op, at::ArrayRef<c10::IValue> arguments, const Collected& collected);

// The tensor, or the tensors of the list, in an argument or result; absent ones are left out.
std::vector<at::Tensor> TensorsOf(const c10::IValue& value);

// visit(tensor) for every defined tensor of an argument, in order.
template <typename Visit>
void VisitTensors(const c10::IValue& value, ArgumentKind kind, Visit visit) {
  if (kind == ArgumentKind::kTensor && value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (kind == ArgumentKind::kTensorList && value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
    }
  }
}

// The argument with map(tensor) for every defined tensor of it, in order.
template <typename Map>
c10::IValue MapTensors(const c10::IValue& value, ArgumentKind kind, Map map) {
  const auto one = [&map](const at::Tensor& t) { return t.defined() ? map(t) : t; };
  if (kind == ArgumentKind::kTensor && value.isTensor()) return one(value.toTensor());
  if (kind != ArgumentKind::kTensorList || !value.isList()) return value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& item : value.toListRef()) list.push_back(one(item.toTensor()));
    return list;
  }
  c10::List<std::optional<at::Tensor>> list;
  for (const c10::IValue& item : value.toListRef()) {
    list.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(one(item.toTensor())));
  }
  return list;
}

// Fills in what follows from the rest: structure hash, boundary, and how it runs.
void FinishCall(Call& call);

// How many calls are kept that no known fragment holds, some 2 to 4 KiB each: an eighth of TORCH_TPU_KNOWN_OPS.
size_t SpareCalls();

// Calls that are no operators' (of windows, of copies), by what they are made of; given up when nobody holds them.
template <typename Key>
class CallTable {
 public:
  // make(Call&) describes a new one, but for what FinishCall fills in.
  template <typename Make>
  CallRef Get(const Key& key, Make make) {
    std::lock_guard<std::mutex> lock(mutex_);
    CallRef& slot = calls_[key];
    if (slot) return slot;
    auto call = std::make_shared<Call>();
    make(*call);
    FinishCall(*call);
    slot = call;
    if (calls_.size() > room_) {
      absl::erase_if(calls_, [](const auto& item) { return item.second.use_count() == 1; });
      room_ = calls_.size() + SpareCalls();
    }
    return call;
  }

 private:
  std::mutex mutex_;
  absl::flat_hash_map<Key, CallRef> calls_;
  size_t room_ = SpareCalls();
};

}  // namespace tpu
