#include "compiler/stablehlo/writer.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "llvm/Support/raw_ostream.h"

namespace tpu::stablehlo {
namespace {

template <typename T>
std::string Printed(T thing) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  thing.print(stream);
  return text;
}

mlir::RankedTensorType Scalar(mlir::Type element) { return mlir::RankedTensorType::get({}, element); }

}  // namespace

mlir::RankedTensorType WithDims(mlir::RankedTensorType type, Ints dims) {
  return mlir::RankedTensorType::get(dims, type.getElementType());
}
mlir::RankedTensorType WithElement(mlir::RankedTensorType type, mlir::Type element) {
  return mlir::RankedTensorType::get(type.getShape(), element);
}

mlir::RankedTensorType Stored(mlir::RankedTensorType type) {
  if (!mlir::isa<ir::OpaqueType>(type.getElementType())) return type;
  const auto bits = static_cast<unsigned>(8 * ir::BytesOf(type.getElementType()));
  return WithElement(type, mlir::IntegerType::get(type.getContext(), bits, mlir::IntegerType::Unsigned));
}

std::string Text(mlir::Type type) { return Printed(type); }
std::string Text(mlir::Attribute attribute) { return Printed(attribute); }
std::string List(Ints values) { return absl::StrCat("[", absl::StrJoin(values, ", "), "]"); }
std::string Array(Ints values) {
  return values.empty() ? "array<i64>" : absl::StrCat("array<i64: ", absl::StrJoin(values, ", "), ">");
}

std::string Writer::NewName() { return absl::StrCat("%", next_++); }
void Writer::Line(const std::string& text) { absl::StrAppend(&text_, std::string(2 * depth_, ' '), text, "\n"); }

Val Writer::Op(const std::string& op, llvm::ArrayRef<Val> operands, mlir::RankedTensorType result,
               const std::string& attributes, const std::string& regions) {
  return Ops(op, operands, {result}, attributes, regions)[0];
}

llvm::SmallVector<Val> Writer::Ops(const std::string& op, llvm::ArrayRef<Val> operands,
                                   llvm::ArrayRef<mlir::RankedTensorType> results, const std::string& attributes,
                                   const std::string& regions) {
  const auto name = [](std::string* out, const Val& v) { out->append(v.name); };
  const auto type = [](std::string* out, const Val& v) { out->append(Text(v.type)); };
  const auto text = [](std::string* out, mlir::RankedTensorType t) { out->append(Text(t)); };
  const std::string base = NewName();
  llvm::SmallVector<Val> values;
  for (size_t i = 0; i < results.size(); ++i) {
    values.push_back({results.size() == 1 ? base : absl::StrCat(base, "#", i), results[i]});
  }
  Line(absl::StrCat(
      base, results.size() == 1 ? "" : absl::StrCat(":", results.size()), " = \"stablehlo.", op, "\"(",
      absl::StrJoin(operands, ", ", name), ")", regions.empty() ? "" : absl::StrCat(" ", regions),
      attributes.empty() ? "" : absl::StrCat(" {", attributes, "}"), " : (", absl::StrJoin(operands, ", ", type),
      ") -> ", results.size() == 1 ? Text(results[0]) : absl::StrCat("(", absl::StrJoin(results, ", ", text), ")")));
  return values;
}

std::string Writer::Region(llvm::ArrayRef<mlir::Type> types,
                           const std::function<llvm::SmallVector<Val>(llvm::ArrayRef<Val>)>& body) {
  std::string outer = std::exchange(text_, "");
  llvm::SmallVector<Val> arguments;
  for (mlir::Type t : types) arguments.push_back({NewName(), Scalar(t)});
  depth_ += 2;
  const llvm::SmallVector<Val> results = body(arguments);
  const auto declare = [](std::string* out, const Val& v) { absl::StrAppend(out, v.name, ": ", Text(v.type)); };
  const auto name = [](std::string* out, const Val& v) { out->append(v.name); };
  const auto type = [](std::string* out, const Val& v) { out->append(Text(v.type)); };
  Line(absl::StrCat("\"stablehlo.return\"(", absl::StrJoin(results, ", ", name), ") : (",
                    absl::StrJoin(results, ", ", type), ") -> ()"));
  depth_ -= 2;
  const std::string indent(2 * depth_, ' ');
  std::string region = absl::StrCat("({\n", indent, "  ^bb0(", absl::StrJoin(arguments, ", ", declare), "):\n",
                                    std::exchange(text_, std::move(outer)), indent, "})");
  return region;
}

Val Writer::Constant(mlir::ElementsAttr value) {
  return Op("constant", {}, mlir::cast<mlir::RankedTensorType>(value.getType()), absl::StrCat("value = ", Text(value)));
}

Val Writer::Splat(mlir::RankedTensorType type, double value) {
  mlir::Type element = type.getElementType();
  mlir::Builder b(type.getContext());
  mlir::Attribute number;
  if (mlir::isa<mlir::FloatType>(element)) {
    number = b.getFloatAttr(element, value);
  } else if (auto complex = mlir::dyn_cast<mlir::ComplexType>(element)) {
    number =
        b.getArrayAttr({b.getFloatAttr(complex.getElementType(), value), b.getFloatAttr(complex.getElementType(), 0)});
  } else if (element.isInteger(1)) {
    number = b.getBoolAttr(value != 0);
  } else {
    number = b.getIntegerAttr(element, static_cast<int64_t>(value));
  }
  return Constant(mlir::DenseElementsAttr::get(type, number));
}

Val Writer::Lowest(mlir::Type element) {
  if (mlir::isa<mlir::FloatType>(element)) return Splat(Scalar(element), -std::numeric_limits<double>::infinity());
  const unsigned bits = element.getIntOrFloatBitWidth();
  const bool is_unsigned = element.isUnsignedInteger() || bits == 1;
  const llvm::APInt least = is_unsigned ? llvm::APInt::getMinValue(bits) : llvm::APInt::getSignedMinValue(bits);
  return Constant(mlir::DenseElementsAttr::get(Scalar(element), least));
}

Val Writer::Highest(mlir::Type element) {
  if (mlir::isa<mlir::FloatType>(element)) return Splat(Scalar(element), std::numeric_limits<double>::infinity());
  const unsigned bits = element.getIntOrFloatBitWidth();
  const bool is_unsigned = element.isUnsignedInteger() || bits == 1;
  const llvm::APInt most = is_unsigned ? llvm::APInt::getMaxValue(bits) : llvm::APInt::getSignedMaxValue(bits);
  return Constant(mlir::DenseElementsAttr::get(Scalar(element), most));
}

Val Writer::Iota(mlir::RankedTensorType type, int64_t dim) {
  return Op("iota", {}, type, absl::StrCat("iota_dimension = ", dim, " : i64"));
}

Val Writer::Compare(const std::string& direction, Val a, Val b) {
  const char* kind = a.is_float() || a.is_complex() ? "FLOAT" : a.is_unsigned() ? "UNSIGNED" : "SIGNED";
  mlir::Builder builder(a.type.getContext());
  return Op("compare", {a, b}, WithElement(a.type, builder.getI1Type()),
            absl::StrCat("comparison_direction = #stablehlo<comparison_direction ", direction,
                         ">, compare_type = #stablehlo<comparison_type ", kind, ">"));
}

Val Writer::Convert(Val x, mlir::Type element) {
  return x.element() == element ? x : Op("convert", {x}, WithElement(x.type, element));
}

Val Writer::Reshape(Val x, Ints dims) { return x.dims() == dims ? x : Op("reshape", {x}, WithDims(x.type, dims)); }

Val Writer::Broadcast(Val x, Ints dims, Ints along) {
  return Op("broadcast_in_dim", {x}, WithDims(x.type, dims), absl::StrCat("broadcast_dimensions = ", Array(along)));
}

Val Writer::Slice(Val x, Ints start, Ints limit, Ints stride) {
  Dims dims;
  for (size_t d = 0; d < start.size(); ++d) dims.push_back((limit[d] - start[d] + stride[d] - 1) / stride[d]);
  return Op("slice", {x}, WithDims(x.type, dims),
            absl::StrCat("start_indices = ", Array(start), ", limit_indices = ", Array(limit),
                         ", strides = ", Array(stride)));
}

Val Writer::Pad(Val x, Val value, Ints low, Ints high, Ints interior) {
  Dims dims;
  for (int64_t d = 0; d < x.rank(); ++d) {
    dims.push_back(low[d] + x.dims()[d] + std::max<int64_t>(x.dims()[d] - 1, 0) * interior[d] + high[d]);
  }
  return Op("pad", {x, value}, WithDims(x.type, dims),
            absl::StrCat("edge_padding_low = ", Array(low), ", edge_padding_high = ", Array(high),
                         ", interior_padding = ", Array(interior)));
}

Val Writer::Concat(llvm::ArrayRef<Val> inputs, int64_t dim, mlir::RankedTensorType result) {
  return Op("concatenate", inputs, result, absl::StrCat("dimension = ", dim, " : i64"));
}

Val Writer::Reduce(const std::string& op, Val x, Val init, Ints dims) {
  Dims left;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (!llvm::is_contained(dims, d)) left.push_back(x.dims()[d]);
  }
  const std::string body = Region({x.element(), x.element()}, [&](llvm::ArrayRef<Val> a) {
    return llvm::SmallVector<Val>{Op(op, {a[0], a[1]}, a[0].type)};
  });
  return Op("reduce", {x, init}, WithDims(x.type, left), absl::StrCat("dimensions = ", Array(dims)), body);
}

}  // namespace tpu::stablehlo
