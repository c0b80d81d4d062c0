// Programs for padded values: what is there comes out as the function at its own size gives it, whatever the padding
// holds; their bytes are whole and consistent, or refused.
#include "runtime/pjrt/padded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/host/host_compiler.h"
#include "compiler/ir/types.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"
#include "runtime/machine.h"
#include "runtime/pjrt/executable.h"
#include "tests/unit/pjrt/two_devices.h"

namespace tpu {
namespace {

using mlir::ModuleOp;

// A function's text at sizes $T and $B; also $M = $T - 1, $N = $T + 1, $F = 4 $T, $S = $T $T, $P = $B $T, $Q = 4 $P, $D
// = 2 $T + 4, $R = 40 - $T.
std::string At(const std::string& text, const SizePoint& sizes) {
  const int64_t t = sizes[0], b = sizes.size() > 1 ? sizes[1] : 0;
  return absl::StrReplaceAll(text, {{"$T", absl::StrCat(t)},
                                    {"$B", absl::StrCat(b)},
                                    {"$M", absl::StrCat(t - 1)},
                                    {"$N", absl::StrCat(t + 1)},
                                    {"$F", absl::StrCat(4 * t)},
                                    {"$S", absl::StrCat(t * t)},
                                    {"$P", absl::StrCat(b * t)},
                                    {"$Q", absl::StrCat(4 * b * t)},
                                    {"$R", absl::StrCat(40 - t)},
                                    {"$D", absl::StrCat(2 * t + 4)}});
}

class Parsed {
 public:
  explicit Parsed(const std::string& text) : context_(mlir::MLIRContext::Threading::DISABLED) {
    context_.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
    Add(text);
  }
  ModuleOp Add(const std::string& text) {
    modules_.push_back(mlir::parseSourceString<ModuleOp>(text, &context_));
    if (!modules_.back()) throw std::runtime_error(text);
    return *modules_.back();
  }
  ModuleOp first() { return *modules_.front(); }

 private:
  mlir::MLIRContext context_;
  std::vector<mlir::OwningOpRef<ModuleOp>> modules_;
};

std::vector<SizePoint> PointsOf(size_t sizes) {
  std::vector<SizePoint> points;
  for (const int64_t t : {3, 7, 13, 16}) {
    if (sizes == 1) points.push_back({t});
    for (const int64_t b : {5, 11, 17, 24}) {
      if (sizes == 2) points.push_back({t, b});
    }
  }
  return points;
}

absl::StatusOr<Program> Padded(const std::string& text, size_t sizes) {
  const std::vector<SizePoint> points = PointsOf(sizes);
  Parsed parsed(At(text, points[0]));
  std::vector<ModuleOp> modules{parsed.first()};
  for (size_t i = 1; i < points.size(); ++i) modules.push_back(parsed.Add(At(text, points[i])));
  return stablehlo::CompilePadded(modules, points, "test");
}

// A value of the device, in `stored`, with every bit of the padding set.
BufferRef Poisoned(const TensorType& type, const TensorType& stored, const Bytes& elements) {
  Bytes padded(stored.bytes(), type.dtype == DType::kBool ? '\1' : '\xff');
  pjrt::CopyCorner(type, elements.data(), stored, padded.data());
  const BufferRef whole = *PluginDevice().MakeValue(stored, padded.data());
  pjrt::Held& held = pjrt::HeldBy(whole);
  return pjrt::MakeBuffer(held.place, std::exchange(held.handle, nullptr), type, stored,
                          std::exchange(held.charged, 0));
}

// Compares the program with the function at its own size, on the host.
void CheckAt(const std::string& text, const Program& program, ExecutableFamily& family, const SizePoint& sizes) {
  SCOPED_TRACE(At("at $T by $B", sizes));
  Parsed parsed(At(text, sizes));
  const auto for_host = host::CompileModule(parsed.first(), "test");
  ASSERT_TRUE(for_host.ok()) << for_host.status();
  std::mt19937 random(7);
  std::vector<Bytes> inputs;
  std::vector<Argument> arguments;
  for (size_t i = 0; i < for_host->inputs.size(); ++i) {
    const TensorType& type = for_host->inputs[i];
    inputs.push_back(RandomValue(type, false, random));
    arguments.push_back({.buffer = Poisoned(type, program.inputs[i], inputs.back())});
  }
  const auto expected = Run(HostDevice(), *for_host, inputs);
  ASSERT_TRUE(expected.ok()) << expected.status();
  auto executable = family.At(sizes);
  ASSERT_TRUE(executable.ok()) << executable.status();
  std::vector<BufferRef> outputs(program.outputs.size());
  ASSERT_TRUE((*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr).ok());
  for (size_t i = 0; i < outputs.size(); ++i) {
    Bytes bytes(for_host->outputs[i].bytes());
    const absl::Status status = PluginDevice().CopyToHost(outputs[i], bytes.data(), bytes.size());
    ASSERT_TRUE(status.ok()) << status;
    SCOPED_TRACE(absl::StrCat("output ", i));
    Compare(for_host->outputs[i], (*expected)[i], bytes);
  }
}

struct Case {
  const char* name;
  const char* text;
  size_t sizes = 1;
};

class PaddedPrimitive : public testing::TestWithParam<Case> {};

TEST_P(PaddedPrimitive, GivesWhatTheFunctionGivesAtEachSize) {
  const auto& [name, text, sizes] = GetParam();
  if (absl::StrContains(text, "tpu.conv ") && !UsableInstructions().avx2) {
    GTEST_SKIP() << "this processor has no panels, without which the host compiles no convolution";
  }
  const auto program = Padded(text, sizes);
  ASSERT_TRUE(program.ok()) << program.status();
  auto family = PluginDevice().LoadFamily(*program);
  ASSERT_TRUE(family.ok()) << family.status();
  for (const int64_t t : {3, 4, 5, 8, 11, 15, 16}) {
    if (sizes == 1) CheckAt(text, *program, **family, {t});
    for (const int64_t b : {5, 6, 12, 24}) {
      if (sizes == 2) CheckAt(text, *program, **family, {t, b});
    }
  }
  EXPECT_FALSE((*family)->At(SizePoint(sizes, 25)).ok());
}

const Case kCases[] = {
    {"elementwise_of_merged_dims", R"(
func.func @f(%x: tensor<4x$Tx6xf32>, %y: tensor<$Fx6xf32>) -> (tensor<$Fx6xf32>, tensor<4x$Tx6xf32>) {
  %0 = tpu.reshape %x : (tensor<4x$Tx6xf32>) -> tensor<$Fx6xf32>
  %1 = tpu.mul %0, %y : tensor<$Fx6xf32>
  %2 = tpu.reshape %1 : (tensor<$Fx6xf32>) -> tensor<4x$Tx6xf32>
  return %1, %2 : tensor<$Fx6xf32>, tensor<4x$Tx6xf32>
})"},
    {"dims_of_two_sizes", R"(
func.func @f(%x: tensor<$Px4xf32>, %y: tensor<$Bx$Tx4xf32>, %z: tensor<$Qxf32>) -> (tensor<$Bx4x$Txf32>, tensor<$Qxf32>) {
  %0 = tpu.reshape %x : (tensor<$Px4xf32>) -> tensor<$Bx$Tx4xf32>
  %1 = tpu.mul %0, %y : tensor<$Bx$Tx4xf32>
  %2 = tpu.transpose %1 [0, 2, 1] : (tensor<$Bx$Tx4xf32>) -> tensor<$Bx4x$Txf32>
  %3 = tpu.reshape %2 : (tensor<$Bx4x$Txf32>) -> tensor<$Qxf32>
  %4 = tpu.add %3, %z : tensor<$Qxf32>
  %5 = tpu.reshape %4 : (tensor<$Qxf32>) -> tensor<$Bx4x$Txf32>
  return %5, %3 : tensor<$Bx4x$Txf32>, tensor<$Qxf32>
})",
     2},
    {"nothing_along_a_dim", R"(
func.func @f(%x: tensor<$Tx0xf32>, %y: tensor<$Tx2x1xf32>) -> (tensor<$Tx2x1xf32>, tensor<0x$Txf32>) {
  %0 = tpu.reshape %x : (tensor<$Tx0xf32>) -> tensor<$Tx0x1xf32>
  %1 = tpu.concat %0, %y along 1 : (tensor<$Tx0x1xf32>, tensor<$Tx2x1xf32>) -> tensor<$Tx2x1xf32>
  %2 = tpu.reshape %x : (tensor<$Tx0xf32>) -> tensor<0x$Txf32>
  return %1, %2 : tensor<$Tx2x1xf32>, tensor<0x$Txf32>
})"},
    {"reductions", R"(
func.func @f(%x: tensor<3x$Tx5xf32>) -> (tensor<3x5xf32>, tensor<f32>, tensor<5xf32>, tensor<3xf32>, tensor<3x5xi64>, tensor<3x$Txi64>) {
  %0 = tpu.reduce sum %x [1] : (tensor<3x$Tx5xf32>) -> tensor<3x5xf32>
  %1 = tpu.reduce prod %x [0, 1, 2] : (tensor<3x$Tx5xf32>) -> tensor<f32>
  %2 = tpu.reduce min %x [0, 1] : (tensor<3x$Tx5xf32>) -> tensor<5xf32>
  %3 = tpu.reduce max %x [1, 2] : (tensor<3x$Tx5xf32>) -> tensor<3xf32>
  %4 = tpu.arg_reduce min %x along 1 : (tensor<3x$Tx5xf32>) -> tensor<3x5xi64>
  %5 = tpu.arg_reduce max %x along 2 : (tensor<3x$Tx5xf32>) -> tensor<3x$Txi64>
  return %0, %1, %2, %3, %4, %5 : tensor<3x5xf32>, tensor<f32>, tensor<5xf32>, tensor<3xf32>, tensor<3x5xi64>, tensor<3x$Txi64>
})"},
    {"a_reduction_of_what_is_alike", R"(
func.func @f(%x: tensor<f32>) -> (tensor<f32>, tensor<5xf32>) {
  %0 = tpu.broadcast %x [] : (tensor<f32>) -> tensor<$Tx5xf32>
  %1 = tpu.reduce sum %0 [0, 1] : (tensor<$Tx5xf32>) -> tensor<f32>
  %2 = tpu.reduce sum %0 [0] : (tensor<$Tx5xf32>) -> tensor<5xf32>
  return %1, %2 : tensor<f32>, tensor<5xf32>
})"},
    {"numbers_that_follow", R"(
func.func @f(%x: tensor<$Txf32>) -> (tensor<$Txf32>, tensor<$Txf32>, tensor<$Txi64>) {
  %0 = tpu.constant dense<$T.0> : tensor<$Txf32>
  %1 = tpu.div %x, %0 : tensor<$Txf32>
  %2 = tpu.constant dense<$S.0> : tensor<$Txf32>
  %3 = tpu.mul %x, %2 : tensor<$Txf32>
  %4 = tpu.iota 0 : tensor<$Txi64>
  %5 = tpu.constant dense<$M> : tensor<$Txi64>
  %6 = tpu.sub %5, %4 : tensor<$Txi64>
  return %1, %3, %6 : tensor<$Txf32>, tensor<$Txf32>, tensor<$Txi64>
})"},
    {"products", R"(
func.func @f(%x: tensor<2x$Tx4xf32>, %y: tensor<2x$Tx4xf32>, %z: tensor<6x4xf32>) -> (tensor<2x$Tx$Txf32>, tensor<2x4x4xf32>, tensor<2x$Tx6xf32>, tensor<4x4xf32>) {
  %0 = tpu.dot %x, %y batch [0] x [0] contract [2] x [2] : (tensor<2x$Tx4xf32>, tensor<2x$Tx4xf32>) -> tensor<2x$Tx$Txf32>
  %1 = tpu.dot %x, %y batch [0] x [0] contract [1] x [1] : (tensor<2x$Tx4xf32>, tensor<2x$Tx4xf32>) -> tensor<2x4x4xf32>
  %2 = tpu.dot %x, %z batch [] x [] contract [2] x [1] : (tensor<2x$Tx4xf32>, tensor<6x4xf32>) -> tensor<2x$Tx6xf32>
  %3 = tpu.dot %x, %y batch [] x [] contract [0, 1] x [0, 1] : (tensor<2x$Tx4xf32>, tensor<2x$Tx4xf32>) -> tensor<4x4xf32>
  return %0, %1, %2, %3 : tensor<2x$Tx$Txf32>, tensor<2x4x4xf32>, tensor<2x$Tx6xf32>, tensor<4x4xf32>
})"},
    {"parts", R"(
func.func @f(%x: tensor<$Nx3xf32>) -> (tensor<$Tx3xf32>, tensor<$Tx3xf32>, tensor<1x3xf32>, tensor<2x2xf32>, tensor<$Nx3xf32>) {
  %0 = tpu.slice %x [0, 0] to [$T, 3] by [1, 1] : (tensor<$Nx3xf32>) -> tensor<$Tx3xf32>
  %1 = tpu.slice %x [1, 0] to [$N, 3] by [1, 1] : (tensor<$Nx3xf32>) -> tensor<$Tx3xf32>
  %2 = tpu.slice %x [$T, 0] to [$N, 3] by [1, 1] : (tensor<$Nx3xf32>) -> tensor<1x3xf32>
  %3 = tpu.slice %x [$M, 0] to [$N, 3] by [1, 2] : (tensor<$Nx3xf32>) -> tensor<2x2xf32>
  %4 = tpu.reverse %x [0, 1] : tensor<$Nx3xf32>
  return %0, %1, %2, %3, %4 : tensor<$Tx3xf32>, tensor<$Tx3xf32>, tensor<1x3xf32>, tensor<2x2xf32>, tensor<$Nx3xf32>
})"},
    {"joined", R"(
func.func @f(%x: tensor<2x$Txf32>, %y: tensor<2x3xf32>, %v: tensor<f32>) -> (tensor<2x$Fxf32>, tensor<2x$Nxf32>, tensor<2x$Fxf32>) {
  %0 = tpu.concat %x, %x, %x, %x along 1 : (tensor<2x$Txf32>, tensor<2x$Txf32>, tensor<2x$Txf32>, tensor<2x$Txf32>) -> tensor<2x$Fxf32>
  %1 = tpu.slice %y [0, 1] to [2, 2] by [1, 1] : (tensor<2x3xf32>) -> tensor<2x1xf32>
  %2 = tpu.concat %x, %1 along 1 : (tensor<2x$Txf32>, tensor<2x1xf32>) -> tensor<2x$Nxf32>
  %3 = tpu.pad %0, %v low [0, 0] high [0, 0] interior [0, 0] : (tensor<2x$Fxf32>, tensor<f32>) -> tensor<2x$Fxf32>
  return %0, %2, %3 : tensor<2x$Fxf32>, tensor<2x$Nxf32>, tensor<2x$Fxf32>
})"},
    {"padded_out", R"(
func.func @f(%x: tensor<2x$Txf32>, %y: tensor<2x1xf32>, %v: tensor<f32>) -> (tensor<2xf32>, tensor<3x$Nxf32>, tensor<2x$Txf32>) {
  %0 = tpu.pad %x, %v low [0, 2] high [0, 3] interior [0, 1] : (tensor<2x$Txf32>, tensor<f32>) -> tensor<2x$Dxf32>
  %1 = tpu.reduce sum %0 [1] : (tensor<2x$Dxf32>) -> tensor<2xf32>
  %2 = tpu.pad %x, %v low [1, 0] high [0, 1] interior [0, 0] : (tensor<2x$Txf32>, tensor<f32>) -> tensor<3x$Nxf32>
  %3 = tpu.pad %y, %v low [0, $M] high [0, 0] interior [0, 0] : (tensor<2x1xf32>, tensor<f32>) -> tensor<2x$Txf32>
  return %1, %2, %3 : tensor<2xf32>, tensor<3x$Nxf32>, tensor<2x$Txf32>
})"},
    {"written", R"(
func.func @f(%x: tensor<40x3xf32>, %y: tensor<$Tx3xf32>, %z: tensor<1x3xf32>) -> (tensor<40x3xf32>, tensor<$Tx3xf32>, tensor<40x3xf32>) {
  %0 = tpu.update_slice %y into %x at [2, 0] by [1, 1] : tensor<$Tx3xf32> into tensor<40x3xf32>
  %1 = tpu.update_slice %z into %y at [$M, 0] by [1, 1] : tensor<1x3xf32> into tensor<$Tx3xf32>
  %2 = tpu.update_slice %y into %x at [$T, 0] by [1, 1] : tensor<$Tx3xf32> into tensor<40x3xf32>
  return %0, %1, %2 : tensor<40x3xf32>, tensor<$Tx3xf32>, tensor<40x3xf32>
})"},
    {"running_and_sorted", R"(
func.func @f(%x: tensor<3x$Txf32>, %i: tensor<$Tx2xi64>) -> (tensor<3x$Txf32>, tensor<3x$Txf32>, tensor<3x$Txi64>, tensor<$Tx2xi64>, tensor<$Tx2xi64>) {
  %0 = tpu.scan sum %x along 1 : tensor<3x$Txf32>
  %1, %2 = tpu.sort %x along 1 descending false : (tensor<3x$Txf32>) -> (tensor<3x$Txf32>, tensor<3x$Txi64>)
  %3, %4 = tpu.sort %i along 0 descending true : (tensor<$Tx2xi64>) -> (tensor<$Tx2xi64>, tensor<$Tx2xi64>)
  return %0, %1, %2, %3, %4 : tensor<3x$Txf32>, tensor<3x$Txf32>, tensor<3x$Txi64>, tensor<$Tx2xi64>, tensor<$Tx2xi64>
})"},
    {"windows", R"(
func.func @f(%x: tensor<2x$Fxf32>) -> (tensor<2x$Fxf32>, tensor<2x$Txf32>) {
  %0 = tpu.window_reduce sum %x window [3] strides [1] dilation [1] padding [1] [1] : (tensor<2x$Fxf32>) -> tensor<2x$Fxf32>
  %1 = tpu.window_reduce max %x window [4] strides [4] dilation [1] padding [0] [0] : (tensor<2x$Fxf32>) -> tensor<2x$Txf32>
  return %0, %1 : tensor<2x$Fxf32>, tensor<2x$Txf32>
})"},
    {"convolutions", R"(
func.func @f(%x: tensor<$Tx2x9xf32>, %w: tensor<3x2x3xf32>, %s: tensor<2x2x$Fxf32>) -> (tensor<$Tx3x9xf32>, tensor<2x3x$Fxf32>) {
  %0 = tpu.conv %x, %w strides [1] padding [1] [1] dilation [1] x [1] groups 1 x 1 : (tensor<$Tx2x9xf32>, tensor<3x2x3xf32>) -> tensor<$Tx3x9xf32>
  %1 = tpu.conv %s, %w strides [1] padding [1] [1] dilation [1] x [1] groups 1 x 1 : (tensor<2x2x$Fxf32>, tensor<3x2x3xf32>) -> tensor<2x3x$Fxf32>
  return %0, %1 : tensor<$Tx3x9xf32>, tensor<2x3x$Fxf32>
})"},
    {"indices", R"(
func.func @f(%x: tensor<$Tx3xf32>, %i: tensor<5xi64>, %t: tensor<6x3xf32>, %j: tensor<2x$Txi64>, %k: tensor<$Tx3xi64>) -> (tensor<5x3xf32>, tensor<2x$Tx3xf32>, tensor<$Tx3xf32>) {
  %0 = tpu.take %x at %i along 0 : (tensor<$Tx3xf32>, tensor<5xi64>) -> tensor<5x3xf32>
  %1 = tpu.take %t at %j along 0 : (tensor<6x3xf32>, tensor<2x$Txi64>) -> tensor<2x$Tx3xf32>
  %2 = tpu.take_along %x at %k along 0 : (tensor<$Tx3xf32>, tensor<$Tx3xi64>) -> tensor<$Tx3xf32>
  return %0, %1, %2 : tensor<5x3xf32>, tensor<2x$Tx3xf32>, tensor<$Tx3xf32>
})"},
    {"scattered", R"(
func.func @f(%x: tensor<6x3xf32>, %u: tensor<$Tx3xf32>, %i: tensor<$Txi64>, %k: tensor<$Tx3xi64>, %w: tensor<$Tx3xf32>, %j: tensor<2xi64>, %v: tensor<2x3xf32>) -> (tensor<6x3xf32>, tensor<6x3xf32>, tensor<6x3xf32>, tensor<$Tx3xf32>, tensor<$Tx3xf32>) {
  %0 = tpu.scatter_rows add %u into %x at %i along 0 : (tensor<6x3xf32>, tensor<$Txi64>, tensor<$Tx3xf32>) -> tensor<6x3xf32>
  %1 = tpu.scatter_rows set %u into %x at %i along 0 : (tensor<6x3xf32>, tensor<$Txi64>, tensor<$Tx3xf32>) -> tensor<6x3xf32>
  %2 = tpu.scatter max %u into %x at %k along 0 : (tensor<6x3xf32>, tensor<$Tx3xi64>, tensor<$Tx3xf32>) -> tensor<6x3xf32>
  %3 = tpu.scatter set %u into %w at %k along 1 : (tensor<$Tx3xf32>, tensor<$Tx3xi64>, tensor<$Tx3xf32>) -> tensor<$Tx3xf32>
  %4 = tpu.scatter_rows mul %v into %w at %j along 0 : (tensor<$Tx3xf32>, tensor<2xi64>, tensor<2x3xf32>) -> tensor<$Tx3xf32>
  return %0, %1, %2, %3, %4 : tensor<6x3xf32>, tensor<6x3xf32>, tensor<6x3xf32>, tensor<$Tx3xf32>, tensor<$Tx3xf32>
})"},
    {"sums_of_what_is_taken", R"(
func.func @f(%x: tensor<$Tx3xf32>, %i: tensor<$Fxi64>, %to: tensor<$Fxi64>, %w: tensor<$Fxf32>) -> (tensor<2x3xf32>, tensor<$Nx3xf32>) {
  %0 = tpu.sum_taken %x at %i times %w to %to : (tensor<$Tx3xf32>, tensor<$Fxi64>, tensor<$Fxi64>, tensor<$Fxf32>) -> tensor<2x3xf32>
  %1 = tpu.sum_taken %x at %i to %to : (tensor<$Tx3xf32>, tensor<$Fxi64>, tensor<$Fxi64>) -> tensor<$Nx3xf32>
  return %0, %1 : tensor<2x3xf32>, tensor<$Nx3xf32>
})"},
    {"indices_that_are_alike", R"(
func.func @f(%x: tensor<6x3xf32>, %y: tensor<4x$Tx6xf32>, %u: tensor<2xf32>) -> (tensor<$Fx2x3xf32>, tensor<$Fx3xf32>, tensor<$Fx6xf32>) {
  %0 = tpu.iota 1 : tensor<$Fx2xi64>
  %1 = tpu.take %x at %0 along 0 : (tensor<6x3xf32>, tensor<$Fx2xi64>) -> tensor<$Fx2x3xf32>
  %2 = tpu.reshape %y : (tensor<4x$Tx6xf32>) -> tensor<$Fx2x3xf32>
  %3 = tpu.mul %1, %2 : tensor<$Fx2x3xf32>
  %4 = tpu.iota 1 : tensor<$Fx3xi64>
  %5 = tpu.broadcast %x [1, 2] : (tensor<6x3xf32>) -> tensor<$Fx6x3xf32>
  %6 = tpu.reshape %4 : (tensor<$Fx3xi64>) -> tensor<$Fx1x3xi64>
  %7 = tpu.take_along %5 at %6 along 1 : (tensor<$Fx6x3xf32>, tensor<$Fx1x3xi64>) -> tensor<$Fx1x3xf32>
  %8 = tpu.reshape %7 : (tensor<$Fx1x3xf32>) -> tensor<$Fx3xf32>
  %9 = tpu.reshape %y : (tensor<4x$Tx6xf32>) -> tensor<$Fx6xf32>
  %10 = tpu.slice %9 [0, 0] to [$F, 3] by [1, 1] : (tensor<$Fx6xf32>) -> tensor<$Fx3xf32>
  %11 = tpu.mul %8, %10 : tensor<$Fx3xf32>
  %12 = tpu.broadcast %u [1] : (tensor<2xf32>) -> tensor<$Fx2xf32>
  %13 = tpu.scatter add %12 into %9 at %0 along 1 : (tensor<$Fx6xf32>, tensor<$Fx2xi64>, tensor<$Fx2xf32>) -> tensor<$Fx6xf32>
  return %3, %11, %13 : tensor<$Fx2x3xf32>, tensor<$Fx3xf32>, tensor<$Fx6xf32>
})"},
    {"random_bits", R"(
func.func @f(%s: tensor<i64>, %o: tensor<i64>) -> (tensor<3x$Tx5xi32>, tensor<$Txi32>) {
  %0 = tpu.random_bits %s, %o : (tensor<i64>, tensor<i64>) -> tensor<3x$Tx5xi32>
  %1 = tpu.random_bits %s, %o : (tensor<i64>, tensor<i64>) -> tensor<$Txi32>
  return %0, %1 : tensor<3x$Tx5xi32>, tensor<$Txi32>
})"},
    {"bits", R"(
func.func @f(%x: tensor<$Tx4xf32>) -> (tensor<$Tx4xi32>, tensor<$Tx8xi16>) {
  %0 = tpu.bitcast %x : (tensor<$Tx4xf32>) -> tensor<$Tx4xi32>
  %1 = tpu.bitcast %x : (tensor<$Tx4xf32>) -> tensor<$Tx8xi16>
  return %0, %1 : tensor<$Tx4xi32>, tensor<$Tx8xi16>
})"},
};

// What is beyond the end of what is there is out of range, also where padding is.
TEST(Padded, AnIndexIntoThePaddingIsAnError) {
  const char* text = R"(
func.func @f(%x: tensor<$Txf32>, %i: tensor<2xi64>, %u: tensor<2xf32>) -> (tensor<2xf32>, tensor<$Txf32>) {
  %0 = tpu.take %x at %i along 0 : (tensor<$Txf32>, tensor<2xi64>) -> tensor<2xf32>
  %1 = tpu.scatter_rows add %u into %x at %i along 0 : (tensor<$Txf32>, tensor<2xi64>, tensor<2xf32>) -> tensor<$Txf32>
  return %0, %1 : tensor<2xf32>, tensor<$Txf32>
})";
  const auto program = Padded(text, 1);
  ASSERT_TRUE(program.ok()) << program.status();
  auto family = PluginDevice().LoadFamily(*program);
  ASSERT_TRUE(family.ok()) << family.status();
  for (const int64_t last : {-1, 0, 9, 10, 12, 16}) {
    auto executable = (*family)->At({10});
    ASSERT_TRUE(executable.ok());
    const Bytes values(40), updates(8);
    Bytes indices(16);
    std::memcpy(indices.data() + 8, &last, 8);
    std::vector<Argument> arguments{{.buffer = Poisoned({DType::kFloat32, {10}}, program->inputs[0], values)},
                                    {.buffer = Poisoned({DType::kInt64, {2}}, program->inputs[1], indices)},
                                    {.buffer = Poisoned({DType::kFloat32, {2}}, program->inputs[2], updates)}};
    std::vector<BufferRef> outputs(2);
    ASSERT_TRUE((*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr).ok());
    for (const BufferRef& output : outputs) EXPECT_EQ(PluginDevice().Wait(output).ok(), last >= 0 && last < 10) << last;
  }
}

// Of a value that is stored otherwise, the one given up is what the result is written over: as large as that.
TEST(Padded, AResultOverAValueThatWasStoredOtherwiseIsChargedWhole) {
  const auto program = Padded(R"(
func.func @f(%x: tensor<$Txf32>) -> tensor<$Txf32> {
  %0 = tpu.add %x, %x : tensor<$Txf32>
  return %0 : tensor<$Txf32>
})",
                              1);
  ASSERT_TRUE(program.ok()) << program.status();
  auto family = PluginDevice().LoadFamily(*program);
  ASSERT_TRUE(family.ok()) << family.status();
  auto executable = (*family)->At({5});
  ASSERT_TRUE(executable.ok()) << executable.status();
  const float values[] = {1, 2, 3, 4, 5};
  for (const bool padded : {true, false}) {
    const TensorType type{DType::kFloat32, {5}};
    BufferRef x = *PluginDevice().MakeValue(type, values);
    if (padded) x = Poisoned(type, program->inputs[0], Bytes(type.bytes()));
    std::vector<Argument> arguments{{.buffer = std::move(x), .donated = true}};
    std::vector<BufferRef> outputs(1);
    ASSERT_TRUE((*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr).ok());
    EXPECT_EQ(pjrt::HeldBy(outputs[0]).charged, static_cast<int64_t>(program->outputs[0].bytes())) << padded;
  }
}

TEST(Padded, WhatCantBePaddedIsRefusedByName) {
  const auto strides = Padded(R"(
func.func @f(%x: tensor<$Sxf32>) -> tensor<$Txf32> {
  %0 = tpu.slice %x [0] to [$S] by [$T] : (tensor<$Sxf32>) -> tensor<$Txf32>
  return %0 : tensor<$Txf32>
})",
                              1);
  EXPECT_TRUE(absl::IsFailedPrecondition(strides.status()));
  EXPECT_NE(strides.status().message().find("tpu.slice: strides follow the sizes"), std::string::npos)
      << strides.status();
  const auto written = Padded(R"(
func.func @f(%x: tensor<$Fxf32>, %y: tensor<4xf32>) -> tensor<$Fxf32> {
  %0 = tpu.update_slice %y into %x at [0] by [$T] : tensor<4xf32> into tensor<$Fxf32>
  return %0 : tensor<$Fxf32>
})",
                              1);
  EXPECT_TRUE(absl::IsFailedPrecondition(written.status())) << written.status();
  EXPECT_NE(written.status().message().find("strides"), std::string::npos) << written.status();
  const auto shrinks = Padded(R"(
func.func @f(%x: tensor<40xf32>) -> tensor<$Rxf32> {
  %0 = tpu.slice %x [$T] to [40] by [1] : (tensor<40xf32>) -> tensor<$Rxf32>
  return %0 : tensor<$Rxf32>
})",
                              1);
  EXPECT_TRUE(absl::IsFailedPrecondition(shrinks.status())) << shrinks.status();
  EXPECT_NE(shrinks.status().message().find("becomes smaller"), std::string::npos) << shrinks.status();
  const auto number = Padded(R"(
func.func @f(%x: tensor<$Txf32>) -> tensor<$Txf32> {
  %0 = tpu.constant dense<1.$T> : tensor<$Txf32>
  %1 = tpu.mul %x, %0 : tensor<$Txf32>
  return %1 : tensor<$Txf32>
})",
                             1);
  EXPECT_TRUE(absl::IsFailedPrecondition(number.status())) << number.status();
}

pjrt::PaddedModule Example() {
  pjrt::PaddedModule padded;
  padded.module.text = "module {}";
  padded.module.outputs = {{false, 0}};
  padded.module.results = 1;
  padded.module.donors = {-1};
  padded.range = {{3}, {16}};
  padded.inputs = {{Polynomial{{0, 1}}, Polynomial{{4}}}};
  padded.outputs = {{Polynomial{{0, 4}}}};
  return padded;
}

TEST(PaddedModule, ComesBackAsItWas) {
  const auto parsed = pjrt::PaddedModule::Parse(Example().Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Serialize(), Example().Serialize());
}

TEST(PaddedModule, EveryTruncationIsRefused) {
  const std::string bytes = Example().Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(pjrt::PaddedModule::Parse(bytes.substr(0, size)).ok()) << size;
  }
}

TEST(PaddedModule, WhatDoesNotFitItsSignatureIsRefused) {
  Program program{pjrt::kPaddedFormat, Example().Serialize(), {}, {{DType::kFloat32, {64}}}};
  const TensorType input{DType::kFloat32, {16, 4}}, size{DType::kInt64, {}};
  program.inputs = {input, size};
  EXPECT_TRUE(pjrt::PaddedModuleOf(program).ok());
  program.inputs = {input};
  EXPECT_FALSE(pjrt::PaddedModuleOf(program).ok());
  program.inputs = {{DType::kFloat32, {64}}, size};
  EXPECT_FALSE(pjrt::PaddedModuleOf(program).ok());
}

TEST(CopyCorner, GoesBothWays) {
  const TensorType small{DType::kInt16, {2, 3, 2}}, large{DType::kInt16, {3, 5, 2}};
  std::vector<int16_t> from(12), into(30, -1), back(12);
  for (int16_t i = 0; i < 12; ++i) from[i] = i;
  pjrt::CopyCorner(small, from.data(), large, into.data());
  EXPECT_EQ(into[1 * 10 + 3 * 2], -1);
  EXPECT_EQ(into[1 * 10 + 2 * 2 + 1], 11);
  EXPECT_EQ(std::count(into.begin(), into.end(), -1), 18);
  pjrt::CopyCorner(large, into.data(), small, back.data());
  EXPECT_EQ(back, from);
}

INSTANTIATE_TEST_SUITE_P(Each, PaddedPrimitive, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tpu
