#include "compiler/fragment.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "llvm/Support/xxhash.h"

namespace tpu {
namespace {

struct ToText {
  std::string operator()(std::monostate) { return "None"; }
  std::string operator()(bool v) { return v ? "true" : "false"; }
  std::string operator()(int64_t v) { return absl::StrCat(v); }
  std::string operator()(double v) { return absl::StrFormat("%.17g", v); }
  std::string operator()(DType v) { return std::string(NameOf(v)); }
  std::string operator()(const std::string& v) { return absl::StrCat("\"", v, "\""); }
  std::string operator()(const std::vector<bool>& v) {
    return absl::StrCat("[", absl::StrJoin(std::vector<int>(v.begin(), v.end()), ","), "]");
  }
  template <typename T>
  std::string operator()(const std::vector<T>& v) {
    return absl::StrCat("[", absl::StrJoin(v, ","), "]");
  }
};

std::string OperandText(const OperandType& operand) {
  if (operand.is_scalar) return absl::StrCat("scalar ", std::string(NameOf(operand.type.dtype)));
  return operand.type.ToString();
}

std::string ArgumentText(const Call& call, const CallArgument& argument) {
  if (argument.kind == CallArgument::Kind::kAttribute) return std::visit(ToText{}, argument.attribute);
  bool list = argument.kind == CallArgument::Kind::kTensorList || argument.kind == CallArgument::Kind::kScalarList;
  std::vector<std::string> items;
  int next = argument.first, end = argument.first + (list ? argument.count : 1);
  items.reserve(std::max(argument.absent.size(), static_cast<size_t>(end - next)));
  for (bool absent : argument.absent) items.push_back(absent ? "None" : OperandText(call.operands[next++]));
  while (argument.absent.empty() && next < end) items.push_back(OperandText(call.operands[next++]));
  return list ? absl::StrCat("[", absl::StrJoin(items, ", "), "]") : items[0];
}

// Whether a number among a call's arguments may be a size. Views are nothing but sizes.
bool MayBeSize(const Call& call, int64_t number) {
  constexpr int64_t kMostChoices = 8;
  return number > kMostChoices || number < -kMostChoices || call.op == "tpu::view" || call.op == "tpu::update";
}

// Sizes stand with sizes, however small.
bool MayBeSizes(const Call& call, const std::vector<int64_t>& list) {
  return std::any_of(list.begin(), list.end(), [&](int64_t number) { return MayBeSize(call, number); });
}

// visit(number) for each that may be a size, in an order that structure alone decides.
template <typename Calls, typename Visit>
void VisitSizes(Calls& call, Visit visit) {
  for (auto& argument : call.arguments) {
    if (auto* number = std::get_if<int64_t>(&argument.attribute)) {
      if (MayBeSize(call, *number)) visit(*number);
    } else if (auto* list = std::get_if<std::vector<int64_t>>(&argument.attribute)) {
      if (MayBeSizes(call, *list)) std::for_each(list->begin(), list->end(), visit);
    }
  }
  for (auto& operand : call.operands) {
    for (auto& dim : operand.type.dims) visit(dim);
  }
  for (auto& type : call.results) {
    for (auto& dim : type.dims) visit(dim);
  }
}

// Bytes whose equality is the equality of what was written: every variable part is preceded by its length. Without
// sizes, those that VisitSizes visits are left out.
class Digest {
 public:
  explicit Digest(bool sizes = true) : sizes_(sizes) {}
  template <typename T>
  void Number(T v) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof(v));
  }
  void Text(const std::string& s) {
    Number<uint64_t>(s.size());
    bytes_ += s;
  }
  template <typename List>
  void Numbers(const List& list) {
    Number<uint64_t>(list.size());
    for (auto v : list)
      Number(static_cast<std::conditional_t<std::is_same_v<decltype(v), double>, double, int64_t>>(v));
  }
  void Type(const TensorType& type) {
    Number(type.dtype);
    if (sizes_) {
      Numbers(type.dims);
    } else {
      Number<uint64_t>(type.dims.size());
    }
  }
  void Operand(const OperandType& operand) {
    Number<uint8_t>(operand.is_scalar);
    Type(operand.type);
  }
  void Value(const Call& call, const Attribute& attribute) {
    Number<uint8_t>(attribute.index());
    if (!sizes_) {
      const auto* number = std::get_if<int64_t>(&attribute);
      if (number != nullptr && MayBeSize(call, *number)) return Number(kSize);
      const auto* list = std::get_if<std::vector<int64_t>>(&attribute);
      if (list != nullptr && MayBeSizes(call, *list)) {
        Number<uint64_t>(list->size());
        for (size_t i = 0; i < list->size(); ++i) Number(kSize);
        return;
      }
    }
    std::visit([this](const auto& v) { (*this)(v); }, attribute);
  }
  void operator()(std::monostate) {}
  void operator()(bool v) { Number<uint8_t>(v); }
  void operator()(int64_t v) { Number(v); }
  void operator()(double v) { Number(std::bit_cast<uint64_t>(v)); }
  void operator()(DType v) { Number(v); }
  void operator()(const std::string& v) { Text(v); }
  void operator()(const std::vector<bool>& v) { Numbers(v); }
  void operator()(const std::vector<int64_t>& v) { Numbers(v); }
  void operator()(const std::vector<double>& v) { Numbers(v); }

  void Add(const Call& call) {
    Text(call.op);
    Number(call.promoted);
    Number(call.precision);
    Number<uint64_t>(call.arguments.size());
    for (const CallArgument& a : call.arguments) {
      Number(a.kind);
      Number(a.first);
      Number(a.count);
      Numbers(a.absent);
      Value(call, a.attribute);
    }
    Number<uint64_t>(call.operands.size());
    for (const OperandType& operand : call.operands) Operand(operand);
    Number<uint64_t>(call.results.size());
    for (const TensorType& type : call.results) Type(type);
  }

  void Add(const Fragment& fragment) {
    Number<uint64_t>(fragment.nodes.size());
    for (const Node& node : fragment.nodes) Add(*node.call);
    Numbers(fragment.operands);
    Number<uint64_t>(fragment.inputs.size());
    for (const OperandType& input : fragment.inputs) Operand(input);
    Numbers(fragment.outputs);
  }

  llvm::XXH128_hash_t Hash() const {
    return llvm::xxh3_128bits({reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size()});
  }
  std::string Hex() const {
    const llvm::XXH128_hash_t hash = Hash();
    return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  }

 private:
  static constexpr int64_t kSize = INT64_MAX;  // stands for any

  const bool sizes_;
  std::string bytes_;
};

}  // namespace

std::string Call::ToString() const {
  std::vector<std::string> inputs, outputs;
  for (const CallArgument& argument : arguments) inputs.push_back(ArgumentText(*this, argument));
  for (const TensorType& type : results) outputs.push_back(type.ToString());
  constexpr const char* kPrecisions[] = {"", " at high precision", " at medium precision"};
  return absl::StrCat(op, "(", absl::StrJoin(inputs, ", "), ")", kPrecisions[static_cast<int>(precision)], " -> ",
                      absl::StrJoin(outputs, ", "));
}

uint64_t Call::StructureHash() const {
  Digest digest(/*sizes=*/false);
  digest.Add(*this);
  return digest.Hash().low64;
}

const TensorType& Fragment::TypeOf(ValueId v) const {
  if (IsInput(v)) return inputs[InputIndex(v)].type;
  size_t low = 0, high = nodes.size();  // the node whose results include v: results_begin is ascending
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    (nodes[middle].results_begin <= static_cast<uint32_t>(v) ? low : high) = middle;
  }
  return nodes[low].call->results[v - nodes[low].results_begin];
}

std::string Fragment::Summary() const {
  return nodes.empty() ? "" : absl::StrCat(nodes.front().call->op, " .. ", nodes.back().call->op);
}

std::string Fragment::ToString() const {
  auto name = [](ValueId v) { return IsInput(v) ? absl::StrCat("in", InputIndex(v)) : absl::StrCat("%", v); };
  std::string text = "fragment(";
  for (size_t i = 0; i < inputs.size(); ++i) {
    absl::StrAppend(&text, i ? ", " : "", "in", i, ": ", OperandText(inputs[i]));
  }
  absl::StrAppend(&text, ")\n");
  for (const Node& node : nodes) {
    std::vector<std::string> used;
    for (ValueId v : OperandsOf(node)) used.push_back(name(v));
    absl::StrAppend(&text, "  %", node.results_begin, " = ", node.call->ToString(), "  <- ", absl::StrJoin(used, ", "),
                    "\n");
  }
  std::vector<std::string> wanted;
  wanted.reserve(outputs.size());
  for (ValueId v : outputs) wanted.push_back(name(v));
  absl::StrAppend(&text, "  return ", absl::StrJoin(wanted, ", "), "\n");
  return text;
}

std::string Fragment::StableKey() const {
  Digest digest;
  digest.Add(*this);
  return digest.Hex();
}

size_t NumSizes(const Call& call) {
  size_t count = 0;
  VisitSizes(call, [&](int64_t) { ++count; });
  return count;
}

std::vector<int64_t> Fragment::Sizes() const {
  std::vector<int64_t> sizes;
  for (const OperandType& input : inputs) sizes.insert(sizes.end(), input.type.dims.begin(), input.type.dims.end());
  for (const Node& node : nodes) {
    VisitSizes(*node.call, [&](int64_t size) { sizes.push_back(size); });
  }
  return sizes;
}

std::string Fragment::StructureKey() const {
  Digest digest(/*sizes=*/false);
  digest.Add(*this);
  return digest.Hex();
}

Fragment Fragment::WithSizes(absl::Span<const int64_t> sizes) const {
  Fragment changed = *this;
  auto next = sizes.begin();
  for (OperandType& input : changed.inputs) {
    for (int64_t& dim : input.type.dims) dim = *next++;
  }
  for (Node& node : changed.nodes) {
    auto call = std::make_shared<Call>(*node.call);
    VisitSizes(*call, [&](int64_t& size) { size = *next++; });
    node.call = std::move(call);
  }
  return changed;
}

}  // namespace tpu
