#include "compiler/stablehlo/exchange.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/passes/run_passes.h"
#include "compiler/stablehlo/writer.h"
#include "mlir/IR/Builders.h"
#include "runtime/pjrt/module.h"

namespace tpu::stablehlo {
namespace {

class Emitter {
 public:
  explicit Emitter(const Exchange& exchange) : e_(exchange) { context_.loadDialect<ir::TpuDialect>(); }

  absl::StatusOr<Program> Run() {
    std::vector<Val> arguments, results;
    const bool packs = e_.stage == Exchange::Stage::kWhole || e_.stage == Exchange::Stage::kPack;
    const bool moves = e_.stage == Exchange::Stage::kWhole || e_.stage == Exchange::Stage::kMove;
    const bool unpacks = e_.stage == Exchange::Stage::kWhole || e_.stage == Exchange::Stage::kUnpack;
    Val blocks = packs ? Pack(arguments) : Argument(arguments, Blocks(moves ? Brought() : Got()));
    if (moves) blocks = Move(blocks);
    if (unpacks) {
      results = Unpack(blocks);
    } else {
      results = {blocks};
    }
    return Finish(arguments, results, moves);
  }

 private:
  // ---- types ----

  mlir::Type Element(DType dtype) { return Stored(ir::ToMlir(&context_, {dtype, {}})).getElementType(); }
  bool complex() const { return IsComplex(e_.dtype); }
  // Complex numbers travel as all real parts of a block, then all imaginary ones.
  int64_t block() const { return e_.block * (complex() ? 2 : 1); }
  int64_t Brought() const { return BringsAll(e_.verb) ? e_.ranks : 1; }
  int64_t Got() const { return GetsAll(e_.verb) ? e_.ranks : 1; }

  // What the elements are packed as.
  DType Travelling() const {
    const bool half = e_.dtype == DType::kFloat16 || e_.dtype == DType::kBFloat16;
    if (e_.dtype == DType::kBool) return DType::kUInt8;
    return half && Reduces(e_.verb) ? DType::kFloat32 : RealOf(e_.dtype);
  }
  TensorType Blocks(int64_t count) const { return {Travelling(), {count * block()}}; }

  Val Argument(std::vector<Val>& arguments, const TensorType& type) {
    inputs_.push_back(type);
    arguments.push_back({absl::StrCat("%arg", arguments.size()), Stored(ir::ToMlir(&context_, type))});
    return arguments.back();
  }

  // ---- pieces and blocks ----

  Val Range(Val x, int64_t begin, int64_t count) {
    return begin == 0 && count == x.dims()[0] ? x : w_.Slice(x, {begin}, {begin + count}, {1});
  }
  Val Join(llvm::ArrayRef<Val> parts) {
    int64_t count = 0;
    for (const Val& part : parts) count += part.dims()[0];
    return parts.size() == 1 ? parts[0] : w_.Concat(parts, 0, WithDims(parts[0].type, {count}));
  }
  Val Padded(Val x) {
    const int64_t missing = e_.block - x.dims()[0];
    return missing == 0 ? x : w_.Pad(x, w_.Splat(WithDims(x.type, {}), 0), {0}, {missing}, {0});
  }
  Val Real(Val x, const char* part) {
    return w_.Op(part, {x}, WithElement(x.type, mlir::cast<mlir::ComplexType>(x.element()).getElementType()));
  }
  // A block of parts as complex numbers, and back.
  Val Numbers(Val x) {
    const int64_t count = x.dims()[0] / 2;
    return w_.Op("complex", {Range(x, 0, count), Range(x, count, count)},
                 mlir::RankedTensorType::get({count}, mlir::ComplexType::get(x.element())));
  }
  Val Parts(Val x) { return Join({Real(x, "real"), Real(x, "imag")}); }

  Val Pack(std::vector<Val>& arguments) {
    std::vector<Val> values, blocks;
    for (const Strip& strip : e_.sources) values.push_back(Argument(arguments, strip.type));
    std::optional<Val> scale;
    if (Reduces(e_.verb) && e_.op == ReduceOp::kPremulSum) scale = Argument(arguments, {ScaleType(e_.dtype), {}});
    for (size_t i = 0; i < values.size(); ++i) {
      const Strip& strip = e_.sources[i];
      const Val flat = w_.Reshape(values[i], {strip.type.elements()});
      int64_t at = strip.offset;
      for (int64_t count : strip.pieces) {
        blocks.push_back(ToTravel(Padded(Range(flat, at, count)), scale));
        at += count;
      }
    }
    if (blocks.empty()) return w_.Splat(Stored(ir::ToMlir(&context_, Blocks(Brought()))), 0);
    return Join(blocks);
  }

  Val ToTravel(Val x, const std::optional<Val>& scale) {
    if (complex()) x = Parts(x);
    x = w_.Convert(x, Element(Travelling()));
    if (!scale) return x;
    const mlir::Type exact = scale->element();  // integers are multiplied as f64
    return w_.Convert(
        w_.Op("multiply", {w_.Convert(x, exact), w_.Broadcast(*scale, x.dims(), {})}, WithElement(x.type, exact)),
        x.element());
  }

  std::vector<Val> Unpack(Val blocks) {
    std::vector<Val> results;
    int64_t next = 0;
    for (const Strip& strip : e_.targets) {
      std::vector<Val> pieces;
      for (int64_t count : strip.pieces) {
        Val x = Range(blocks, next++ * block(), block());
        if (complex()) x = Numbers(x);
        if (e_.dtype == DType::kBool) {
          x = w_.Compare("NE", x, w_.Splat(x.type, 0));
        } else {
          x = w_.Convert(x, Element(e_.dtype));
        }
        pieces.push_back(Range(x, 0, count));
      }
      const mlir::RankedTensorType type = Stored(ir::ToMlir(&context_, strip.type));
      results.push_back(w_.Reshape(Join(pieces), type.getShape()));
      outputs_.push_back(strip.type);
    }
    return results;
  }

  // ---- between the ranks ----

  std::string Groups() const {
    std::vector<int> all(static_cast<size_t>(e_.ranks));
    std::iota(all.begin(), all.end(), 0);
    return absl::StrCat("replica_groups = dense<[[", absl::StrJoin(all, ", "), "]]> : tensor<1x", e_.ranks, "xi64>");
  }
  std::string Reducer(const std::string& op, mlir::Type element) {
    return w_.Region({element, element},
                     [&](llvm::ArrayRef<Val> a) { return llvm::SmallVector<Val>{w_.Op(op, {a[0], a[1]}, a[0].type)}; });
  }
  Val AllGather(Val x) {
    return w_.Op("all_gather", {x}, WithDims(x.type, {x.dims()[0] * e_.ranks}),
                 absl::StrCat("all_gather_dim = 0 : i64, ", Groups()));
  }
  Val AllToAll(Val x) {
    return w_.Op("all_to_all", {x}, x.type,
                 absl::StrCat("split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = ", e_.ranks,
                              " : i64, ", Groups()));
  }
  Val AllReduce(const std::string& op, Val x) {
    const std::string body = Reducer(op, x.element());
    return w_.Op("all_reduce", {x}, x.type, Groups(), body);
  }

  Val Move(Val x) {
    switch (e_.verb) {
      case Verb::kBroadcast:
        return Broadcast(x);
      case Verb::kScatter:
        return Range(AllToAll(x), e_.root * block(), block());
      case Verb::kGather:
      case Verb::kAllGather:
        return AllGather(x);
      case Verb::kAllToAll:
        return AllToAll(x);
      case Verb::kSend:
        return w_.Op("collective_permute", {x}, x.type, "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>");
      default:
        return Averaged(Reduce(x));
    }
  }

  // Everybody but the root brings zeros: the sum of the bits.
  Val Broadcast(Val x) {
    const unsigned bits = x.element().getIntOrFloatBitWidth();
    const mlir::Type whole = mlir::IntegerType::get(&context_, bits, mlir::IntegerType::Unsigned);
    const mlir::RankedTensorType type = WithElement(x.type, whole);
    const bool same = x.element() == whole;
    const Val sum = AllReduce("add", same ? x : w_.Op("bitcast_convert", {x}, type));
    return same ? sum : w_.Op("bitcast_convert", {sum}, x.type);
  }

  std::string Operation() const {
    const bool boolean = e_.dtype == DType::kBool;
    switch (e_.op) {
      case ReduceOp::kProduct:
        return boolean ? "minimum" : "multiply";
      case ReduceOp::kMin:
        return "minimum";
      case ReduceOp::kMax:
        return "maximum";
      case ReduceOp::kBitAnd:
        return "and";
      case ReduceOp::kBitOr:
        return "or";
      case ReduceOp::kBitXor:
        return "xor";
      default:
        return boolean ? "maximum" : "add";
    }
  }

  Val Reduce(Val x) {
    const std::string op = Operation();
    const bool scatters = e_.verb == Verb::kReduceScatter;
    const bool ordered = op == "minimum" || op == "maximum";
    if (op == "add" || (op == "multiply" && !complex()) || (ordered && !x.is_float())) {
      if (!scatters) return AllReduce(op, x);
      const std::string body = Reducer(op, x.element());
      return w_.Op("reduce_scatter", {x}, WithDims(x.type, {block()}),
                   absl::StrCat("scatter_dimension = 0 : i64, ", Groups()), body);
    }
    const Val all = scatters ? AllToAll(x) : AllGather(x);
    const auto of = [&](int64_t rank) {
      const Val part = Range(all, rank * block(), block());
      return complex() ? Numbers(part) : part;
    };
    Val result = of(0);
    for (int64_t r = 1; r < e_.ranks; ++r) result = w_.Op(op, {result, of(r)}, result.type);
    return complex() ? Parts(result) : result;
  }

  Val Averaged(Val x) {
    return e_.op == ReduceOp::kAverage ? w_.Op("divide", {x, w_.Splat(x.type, e_.ranks)}, x.type) : x;
  }

  // ---- the module ----

  // "all_reduce_sum_f32", "broadcast_f32_pack"
  std::string Name() const {
    constexpr const char* kStages[] = {"", "_pack", "_move", "_unpack"};
    return absl::StrCat(NameOf(e_.verb), Reduces(e_.verb) ? "_" : "", Reduces(e_.verb) ? NameOf(e_.op) : "", "_",
                        std::string(NameOf(e_.dtype)), kStages[static_cast<int>(e_.stage)]);
  }

  Program Finish(const std::vector<Val>& arguments, const std::vector<Val>& results, bool together) {
    const auto declare = [](std::string* out, const Val& v) { absl::StrAppend(out, v.name, ": ", Text(v.type)); };
    const auto name = [](std::string* out, const Val& v) { out->append(v.name); };
    const auto type = [](std::string* out, const Val& v) { out->append(Text(v.type)); };
    const std::string types = absl::StrJoin(results, ", ", type);
    w_.Line(absl::StrCat("\"func.return\"(", absl::StrJoin(results, ", ", name), ") : (", types, ") -> ()"));
    pjrt::Module module;
    module.text = absl::StrCat("module @", Name(), " attributes {mhlo.num_replicas = ", together ? e_.ranks : 1,
                               " : i32} {\n  func.func public @main(", absl::StrJoin(arguments, ", ", declare),
                               ") -> (", types, ") {\n", w_.Take(), "  }\n}\n");
    DumpStage(absl::StrCat(Name(), "_", e_.block), "stablehlo.mlir", module.text);
    module.results = static_cast<uint32_t>(results.size());
    module.donors.assign(results.size(), -1);
    for (uint32_t r = 0; r < module.results; ++r) module.outputs.push_back({false, r});
    if (outputs_.empty()) outputs_ = {Blocks(together ? Got() : Brought())};
    return {.format = pjrt::kFormat, .bytes = module.Serialize(), .inputs = inputs_, .outputs = outputs_};
  }

  const Exchange& e_;
  mlir::MLIRContext context_{mlir::MLIRContext::Threading::DISABLED};
  Writer w_;
  std::vector<TensorType> inputs_, outputs_;
};

}  // namespace

absl::StatusOr<Program> CompileExchange(const Exchange& exchange) { return Emitter(exchange).Run(); }

}  // namespace tpu::stablehlo
