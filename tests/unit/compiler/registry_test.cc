// The table of lowerings and the import of fragments, asked as the dispatcher and the backends ask them.
#include "compiler/aten/registry.h"

#include <gtest/gtest.h>

#include "compiler/import/import.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Verifier.h"

namespace tpu {
namespace {

CallArgument Tensor(int operand) { return {.kind = CallArgument::Kind::kTensor, .first = operand, .count = 1}; }
CallArgument Scalar(int operand) { return {.kind = CallArgument::Kind::kScalar, .first = operand, .count = 1}; }
CallArgument Value(Attribute value) { return {.attribute = std::move(value)}; }

Call Binary(const std::string& op, DType dtype, Dims a, Dims b, Dims result) {
  Call call;
  call.op = op;
  call.arguments = {Tensor(0), Tensor(1)};
  call.operands = {{{dtype, a}}, {{dtype, b}}};
  call.results = {{dtype, result}};
  call.promoted = dtype;
  return call;
}

TEST(Registry, LowersWhatItsTypesAllow) {
  EXPECT_TRUE(aten::CanLower(Binary("aten::mul.Tensor", DType::kFloat32, {2, 3}, {3}, {2, 3}), true));
  EXPECT_TRUE(aten::CanLower(Binary("aten::mul.Tensor", DType::kBFloat16, {2, 3}, {3}, {2, 3}), true));
  EXPECT_TRUE(aten::CanLower(Binary("aten::mul.Tensor", DType::kUInt8, {2, 3}, {3}, {2, 3}), true));
  EXPECT_TRUE(aten::CanLower(Binary("aten::mul.Tensor", DType::kComplex64, {2, 3}, {3}, {2, 3}), true));
  EXPECT_FALSE(aten::CanLower(Binary("aten::atan2", DType::kComplex64, {2, 3}, {3}, {2, 3}), true));
  EXPECT_FALSE(aten::CanLower(Binary("aten::mul.Tensor", DType::kOpaque16, {2, 3}, {3}, {2, 3}), true));
  EXPECT_FALSE(aten::CanLower(Binary("aten::no_such_operator", DType::kFloat32, {2}, {2}, {2}), true));
}

TEST(Registry, DeclinesResultsThatDoNotFit) {
  EXPECT_FALSE(aten::CanLower(Binary("aten::mul.Tensor", DType::kFloat32, {2, 3}, {3}, {2, 4}), true));
}

TEST(Registry, FindsTheFunctionalTwinOfAnInPlaceOverload) {
  EXPECT_TRUE(aten::CanLower(Binary("aten::mul_.Tensor", DType::kFloat32, {2, 3}, {3}, {2, 3}), true));
  EXPECT_EQ(aten::Registry::Get().Find("aten::__and__"), nullptr);
}

TEST(Registry, KnowsWhichScalarsAreStructure) {
  EXPECT_TRUE(aten::StaticScalars("aten::pow.Tensor_Scalar"));
  EXPECT_FALSE(aten::StaticScalars("aten::add.Tensor"));
  EXPECT_FALSE(aten::StaticScalars("aten::no_such_operator"));
}

TEST(Registry, MovesComplexElements) {
  Call view;
  view.op = "tpu::view";
  view.arguments = {Tensor(0), Value(std::vector<int64_t>{3, 2}), Value(std::vector<int64_t>{1, 3}), Value(int64_t{0}),
                    Value(DType::kComplex64)};
  view.operands = {{{DType::kComplex64, {2, 3}}}};
  view.results = {{DType::kComplex64, {3, 2}}};
  EXPECT_TRUE(aten::CanLower(view, true));
}

// What is declined for its size is not made first; rows without elements cost nothing.
TEST(Registry, WeighsTrianglesByTheirResults) {
  const auto triangle = [](int64_t rows, int64_t columns, int64_t offset, int64_t positions) {
    Call call;
    call.op = "aten::tril_indices";
    call.arguments = {Value(rows), Value(columns), Value(offset)};
    call.results = {{DType::kInt64, {2, positions}}};
    return call;
  };
  constexpr int64_t kMany = 1 << 20;
  EXPECT_FALSE(aten::CanLower(triangle(kMany, kMany, 0, kMany * (kMany + 1) / 2), true));
  EXPECT_TRUE(aten::CanLower(triangle(kMany, kMany, 2 - kMany, 3), true));
}

TEST(Import, ReturnsOutputsInOrder) {
  auto call = std::make_shared<Call>(Binary("aten::add.Tensor", DType::kFloat32, {2}, {2}, {2}));
  call->arguments.push_back(Scalar(2));
  call->operands.push_back({{DType::kInt64, {}}, true});
  Fragment f;
  f.inputs = {{{DType::kFloat32, {2}}}, {{DType::kInt64, {}}, true}};
  f.operands = {InputId(0), InputId(0), InputId(1), 0, InputId(0), InputId(1)};
  f.nodes.resize(2);
  f.nodes[0].call = call;
  f.nodes[1].call = call;
  f.nodes[1].operands_begin = 3;
  f.nodes[1].results_begin = 1;
  f.num_results = 2;
  f.outputs = {0, 1};
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  auto module = ImportFragment(context, f);
  ASSERT_TRUE(mlir::succeeded(mlir::verify(*module)));
  auto function = module->lookupSymbol<mlir::func::FuncOp>("fragment");
  ASSERT_TRUE(function);
  EXPECT_EQ(function.getNumArguments(), 2u);
  EXPECT_EQ(function.getNumResults(), 2u);
}

TEST(Fragment, KeyIsContent) {
  auto make = [](DType dtype, bool wanted) {
    Fragment f;
    f.inputs = {{{dtype, {2}}}};
    f.operands = {InputId(0), InputId(0)};
    f.nodes.resize(1);
    f.nodes[0].call = std::make_shared<Call>(Binary("aten::mul.Tensor", dtype, {2}, {2}, {2}));
    f.num_results = 1;
    if (wanted) f.outputs = {0};
    return f;
  };
  EXPECT_EQ(make(DType::kFloat32, true).StableKey(), make(DType::kFloat32, true).StableKey());
  EXPECT_NE(make(DType::kFloat32, true).StableKey(), make(DType::kFloat64, true).StableKey());
  EXPECT_NE(make(DType::kFloat32, true).StableKey(), make(DType::kFloat32, false).StableKey());
  EXPECT_EQ(make(DType::kFloat32, true).StableKey().size(), 32u);
  EXPECT_EQ(make(DType::kFloat32, true).TypeOf(0), (TensorType{DType::kFloat32, {2}}));
}

}  // namespace
}  // namespace tpu
