#include "dispatcher/typed_record.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "dispatcher/calls.h"
#include "dispatcher/capture.h"
#include "dispatcher/record.h"
#include "dispatcher/values.h"

namespace tpu {
namespace {

using T = const at::Tensor&;
using S = const c10::Scalar&;

// Result is at::Tensor, or at::Tensor& for operators that write and return their first argument.
template <typename Result, typename... Args>
class TypedRecorder final : public c10::OperatorKernel {
 public:
  explicit TypedRecorder(const c10::OperatorHandle& op) : handle_(op) {}

  Result operator()(Args... args) {
    Operator& op = TheOperator();
    while (true) {
      Collected collected;
      size_t argument = 0;
      (collected.Add(op, argument++, args), ...);
      collected.Finish(op);
      if (C10_UNLIKELY(WritesOthers(args...) || (std::is_reference_v<Result> && collected.first_is_made)))
        return Boxed(op, collected, args...);
      const SignatureRef& s = op.Find(collected.words);
      if (C10_UNLIKELY(s == nullptr || !s->plain)) return Boxed(op, collected, args...);
      ValueRef result;
      RecordCall(collected.device, s->call, collected.operands, {&result, 1});
      if constexpr (std::is_reference_v<Result>) {
        at::Tensor& self = std::get<0>(std::tie(args...));
        if (collected.WriteFirst(self, std::move(result))) return self;
      } else {
        return MakeTensor(std::move(result), s->results[0], collected.device);
      }
    }
  }

 private:
  Operator& TheOperator() {
    Operator* op = operator_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(op == nullptr)) {
      op = &Operator::Of(handle_);
      operator_.store(op, std::memory_order_release);
    }
    return *op;
  }

  // Whether another argument lies in the storage that is written.
  static bool WritesOthers(const at::Tensor& self, const auto&... others) {
    if constexpr (!std::is_reference_v<Result>) return false;
    [[maybe_unused]] const auto lies_there = [&self](const auto& other) {
      if constexpr (std::is_same_v<decltype(other), T>) {
        return other.defined() && self.defined() &&
               other.unsafeGetTensorImpl()->unsafe_storage().is_alias_of(self.unsafeGetTensorImpl()->unsafe_storage());
      } else {
        return false;
      }
    };
    return (lies_there(others) || ...);
  }

  Result Boxed(Operator& op, Collected& collected, Args... args) {
    torch::jit::Stack stack;
    (stack.emplace_back(args), ...);
    if (!Record(op, collected, &stack)) Record(op, &stack);
    if constexpr (std::is_reference_v<Result>) {
      return std::get<0>(std::tie(args...));
    } else {
      return std::move(stack.back()).toTensor();
    }
  }

  const c10::OperatorHandle handle_;
  std::atomic<Operator*> operator_{nullptr};
};

template <typename Result, typename... Args>
c10::KernelFunction Make(const c10::OperatorHandle& op) {
  using Kernel = TypedRecorder<Result, Args...>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(op));
}

// "TTS": tensor, tensor, number -> tensor; "T!TS": the first is written and returned. "" for anything else.
std::string ShapeOf(const c10::FunctionSchema& schema) {
  if (schema.returns().size() != 1 || schema.returns()[0].real_type()->kind() != c10::TypeKind::TensorType) return "";
  std::string shape;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& a = schema.arguments()[i];
    const c10::TypeKind kind = a.real_type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::NumberType) return "";
    shape += kind == c10::TypeKind::TensorType ? 'T' : 'S';
    if (a.alias_info() == nullptr) continue;
    if (i != 0 || !a.alias_info()->isWrite() || schema.returns()[0].alias_info() == nullptr) return "";
    shape += '!';
  }
  return shape;
}

}  // namespace

std::optional<c10::KernelFunction> TypedKernel(const c10::OperatorHandle& op) {
  using R = at::Tensor;
  using W = at::Tensor&;
  struct Entry {
    const char* shape;
    c10::KernelFunction (*make)(const c10::OperatorHandle&);
  };
  constexpr Entry kEntries[] = {
      {"T", &Make<R, T>},
      {"TT", &Make<R, T, T>},
      {"TS", &Make<R, T, S>},
      {"TTT", &Make<R, T, T, T>},
      {"TTS", &Make<R, T, T, S>},
      {"TTTS", &Make<R, T, T, T, S>},
      {"TTTSS", &Make<R, T, T, T, S, S>},
      {"T!", &Make<W, W>},
      {"T!T", &Make<W, W, T>},
      {"T!S", &Make<W, W, S>},
      {"T!TS", &Make<W, W, T, S>},
      {"T!TTS", &Make<W, W, T, T, S>},
  };
  const std::string shape = ShapeOf(op.schema());
  for (const Entry& e : kEntries) {
    if (shape == e.shape) return e.make(op);
  }
  return std::nullopt;
}

}  // namespace tpu
