// From the stack of a boxed call to operands and the words that name the call.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "dispatcher/calls.h"
#include "dispatcher/capture.h"
#include "dispatcher/convert.h"
#include "dispatcher/streams.h"
#include "dispatcher/upload.h"
#include "dispatcher/values.h"

namespace tpu {
namespace {

// First words of arguments that are not layouts (whose addresses are larger).
enum Tag : uint64_t {
  kNone = 1,
  kDefaultTag,
  kScalarTag,
  kHostTensorTag,
  kIntTag,
  kListTag,
  kDoubleTag,
  kStringTag,
  kComplexTag,
  kDefaultTypeTag,
  kDeterministicTag
};

bool IsHostNumber(const c10::IValue& item) {
  return item.isTensor() && item.toTensor().defined() && item.toTensor().is_cpu() && item.toTensor().dim() == 0;
}

// Which element types can hold the number, which is what the CPU's kernels refuse it for: calls with numbers of
// different ranges are different calls.
uint64_t RangeOf(const c10::Scalar& number) {
  constexpr double kLargest[] = {127,          128,          255,        32767,  32768,  65504,      65535,
                                 2147483647.0, 2147483648.0, 0xFFFFFFFF, 0x1p63, 0x1p64, 0x1.FEp127, 0x1.FFFFFEp127};
  constexpr uint64_t kRanges = std::size(kLargest);
  const double value = number.toDouble(), size = std::abs(value);
  if (size <= kLargest[0]) return 0;
  if (std::isnan(value) || std::isinf(value)) return 2 * kRanges + 2;
  const auto* range = std::lower_bound(std::begin(kLargest), std::end(kLargest), size);
  return 2 * static_cast<uint64_t>(range - std::begin(kLargest)) + (value < 0 ? 1 : 0);
}

uint64_t Word(Tag tag, uint64_t detail) { return static_cast<uint64_t>(tag) | detail << 8; }

}  // namespace

Precision ProductPrecision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGHEST:
      return Precision::kHighest;
    case at::Float32MatmulPrecision::HIGH:
      return Precision::kHigh;
    case at::Float32MatmulPrecision::MEDIUM:
      return Precision::kMedium;
  }
  return Precision::kHighest;
}

void Collected::Collect(const Operator& op, at::ArrayRef<c10::IValue> arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isNone()) {
      words.push_back(kNone);
      continue;
    }
    if (op.IsOut(static_cast<int>(i))) {
      for (const at::Tensor& t : TensorsOf(value)) AddOut(op, t);
      continue;
    }
    switch (op.kinds[i]) {
      case ArgumentKind::kTensor:
        if (static_cast<int>(i) == op.packed && value.toTensor().is_cpu()) {
          AddTemporary(op, Upload(value.toTensor(), DeviceSoFar()), false);
        } else if (static_cast<int>(i) == op.rate && value.toTensor().is_cpu() && value.toTensor().dim() != 0) {
          AddTensor(op, value.toTensor().squeeze(), false);
        } else {
          AddTensor(op, value.toTensor(), false);
        }
        break;
      case ArgumentKind::kTensorList: {
        const auto list = value.toListRef();
        words.push_back(Word(kListTag, list.size()));
        const bool numbers = std::all_of(list.begin(), list.end(), IsHostNumber);
        for (const c10::IValue& item : list) {
          if (item.isNone()) {
            words.push_back(kNone);
          } else if (numbers) {  // the second list of _foreach_mul and others: copied here, as on other devices
            AddTemporary(op, Upload(item.toTensor(), DeviceSoFar()), true);
          } else {
            AddTensor(op, item.toTensor(), true);
          }
        }
        break;
      }
      case ArgumentKind::kScalar:
        Add(op, i, value.toScalar());
        break;
      case ArgumentKind::kScalarList: {
        const auto list = value.toListRef();
        words.push_back(Word(kListTag, list.size()));
        for (const c10::IValue& item : list) AddScalar(item.toScalar(), ScalarSpec::As::kScalar);
        break;
      }
      case ArgumentKind::kGenerator:
        words.push_back(kNone);
        break;
      case ArgumentKind::kAttribute:
        AddAttribute(value);
        if (value.isDevice() && value.toDevice().is_privateuseone() && value.toDevice().has_index()) {
          MeetDevice(op, value.toDevice().index());
        }
        break;
    }
  }
  Finish(op);
}

bool Collected::WriteFirst(const at::Tensor& first, ValueRef value) const {
  return WriteOver(*first.unsafeGetTensorImpl(), held ? held : values.front(), std::move(value));
}

void Collected::Finish(const Operator& op) {
  if (op.has_products) words.push_back(static_cast<uint64_t>(ProductPrecision()));
  // torch.set_default_dtype: what integers divided are, and a number makes of them.
  const c10::ScalarType type = c10::get_default_dtype_as_scalartype();
  if (C10_UNLIKELY(type != c10::ScalarType::Float)) words.push_back(Word(kDefaultTypeTag, static_cast<uint64_t>(type)));
  // torch.use_deterministic_algorithms: the CPU's kernels refuse some calls while it holds.
  if (C10_UNLIKELY(at::globalContext().deterministicAlgorithms())) words.push_back(Word(kDeterministicTag, 0));
  device = DeviceSoFar();
}

c10::DeviceIndex Collected::DeviceSoFar() const {
  return device < 0 ? static_cast<c10::DeviceIndex>(CurrentDevice()) : device;
}

void Collected::Add(const Operator& op, size_t argument, const c10::Scalar& number) {
  if (op.IsDefault(argument, number)) {
    words.push_back(kDefaultTag);
  } else if (op.static_scalars) {
    AddAttribute(number);
  } else {
    AddScalar(number, op.is_float[argument] ? ScalarSpec::As::kFloat : ScalarSpec::As::kScalar);
  }
}

void Collected::MeetDevice(const Operator& op, c10::DeviceIndex index) {
  TORCH_CHECK(device < 0 || device == index,
              "Expected all tensors to be on the same device, but found at least two devices, tpu:", int{device},
              " and tpu:", int{index}, "! (when checking arguments of ", op.name, ")");
  device = index;
}

// An out= tensor is written, not read.
void Collected::AddOut(const Operator& op, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == c10::DeviceType::PrivateUse1,
              "Expected all tensors to be on the same device, but the out= tensor of ", op.name, " is on ",
              tensor.device().str());
  MeetDevice(op, tensor.device().index());
  words.push_back(reinterpret_cast<uintptr_t>(LayoutOf(*tensor.unsafeGetTensorImpl())));
}

void Collected::AddTemporary(const Operator& op, at::Tensor tensor, bool in_list) {
  first_is_made |= operands.empty();
  temporaries.push_back(std::move(tensor));
  AddTensor(op, temporaries.back(), in_list);
}

void Collected::AddTensor(const Operator& op, const at::Tensor& tensor, bool in_list) {
  if (!tensor.defined()) {
    words.push_back(kNone);
    return;
  }
  if (tensor.device().type() != c10::DeviceType::PrivateUse1) {
    AddHostTensor(op, tensor, in_list);
    return;
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    AddTemporary(op, tensor.resolve_conj().resolve_neg(), in_list);
    return;
  }
  if (C10_UNLIKELY(tensor._is_zerotensor())) {  // has sizes and no elements
    AddTemporary(op, at::zeros(tensor.sizes(), tensor.options()), in_list);
    return;
  }
  MeetDevice(op, tensor.device().index());
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  TpuStorage::Content content = TpuStorage::Of(impl).content();
  if (!IsWhole(impl, content.layout)) {
    content.layout = LayoutOf(impl);
    content.value = ReadValue(impl, content.layout, operands.empty() ? &held : nullptr);
  }
  const Layout* layout = content.layout;
  words.push_back(reinterpret_cast<uintptr_t>(layout));
  operands.push_back({content.value.get(), 0});
  values.push_back(std::move(content.value));
  scalars.emplace_back();
  layouts.push_back(layout);
}

// A 0-dim CPU tensor is a number, unless it is to be written; CPU indices are copied here, as on other devices.
void Collected::AddHostTensor(const Operator& op, const at::Tensor& tensor, bool in_list) {
  if (in_list && tensor.device().is_cpu() && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) {
    AddTemporary(op, Upload(tensor, DeviceSoFar()), in_list);
    return;
  }
  const bool written = operands.empty() && op.Writes(0);
  TORCH_CHECK(tensor.device().is_cpu() && tensor.dim() == 0 && !in_list && !written,
              "Expected all tensors to be on the same device, but found at least two devices, tpu:", int{DeviceSoFar()},
              " and ", tensor.device().str(), "! (when checking arguments of ", op.name, ")");
  ScalarSpec spec;
  spec.as = ScalarSpec::As::kTensor;
  spec.tensor_type = tensor.scalar_type();
  spec.wrapped_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  Value* const placeholder = Capture::Current() ? Capture::Current()->NumberOf(tensor) : nullptr;
  const c10::Scalar number = NumberIn(tensor);
  if (IsWide(number)) {
    words.push_back(Word(kHostTensorTag, static_cast<uint64_t>(spec.tensor_type) << 1 | spec.wrapped_number));
    AddTemporary(op, Upload(tensor, DeviceSoFar()), in_list);
    return;
  }
  if (!number.isFloatingPoint()) spec.dtype = number.isBoolean() ? DType::kBool : DType::kInt64;
  words.push_back(Word(kHostTensorTag, static_cast<uint64_t>(spec.tensor_type) << 1 | spec.wrapped_number));
  operands.push_back({placeholder, BitsOf(number)});
  scalars.push_back(spec);
  layouts.push_back(nullptr);
}

void Collected::AddScalar(const c10::Scalar& number, ScalarSpec::As as) {
  ScalarSpec spec;
  spec.as = as;
  if (IsWide(number)) return AddAttribute(number);
  if (!number.isFloatingPoint()) spec.dtype = number.isBoolean() ? DType::kBool : DType::kInt64;
  words.push_back(Word(kScalarTag, static_cast<uint64_t>(spec.dtype) | RangeOf(number) << 8));
  operands.push_back({nullptr, BitsOf(number)});
  scalars.push_back(spec);
  layouts.push_back(nullptr);
}

void Collected::AddAttribute(const c10::IValue& value) {
  if (value.isInt() || value.isBool()) {
    words.push_back(Word(kIntTag, value.isBool()));
    words.push_back(static_cast<uint64_t>(value.isBool() ? value.toBool() : value.toInt()));
  } else if (value.isUnsigned()) {
    words.push_back(Word(kIntTag, 3));
    words.push_back(value.toUInt());
  } else if (value.isDouble()) {
    words.push_back(kDoubleTag);
    words.push_back(std::bit_cast<uint64_t>(value.toDouble()));
  } else if (value.isSymInt()) {
    words.push_back(Word(kIntTag, 0));
    words.push_back(static_cast<uint64_t>(value.toSymInt().expect_int()));
  } else if (value.isComplexDouble()) {
    words.push_back(kComplexTag);
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    words.push_back(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    words.push_back(Word(kListTag, list.size()));
    for (const c10::IValue& item : list) {
      if (item.isNone()) {
        words.push_back(kNone);
      } else {
        AddAttribute(item);
      }
    }
  } else if (value.isString()) {
    words.push_back(kStringTag);
    const std::string& s = value.toStringRef();
    words.push_back(s.size());
    for (size_t i = 0; i < s.size(); i += 8) {
      uint64_t w = 0;
      std::memcpy(&w, s.data() + i, std::min<size_t>(8, s.size() - i));
      words.push_back(w);
    }
  } else if (value.isDevice()) {
    words.push_back(Word(kIntTag, 2));
    words.push_back(static_cast<uint64_t>(value.toDevice().type()) << 16 |
                    static_cast<uint8_t>(value.toDevice().index()));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu: an argument of type ", value.type()->annotation_str(),
                                " can't be recorded");
  }
}

}  // namespace tpu
