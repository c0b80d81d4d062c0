// Windows of one value at places that change: one program for all of them only where they lie alike at every one.
#include "compiler/ir/windows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/host/family.h"
#include "compiler/ir/dialect.h"
#include "compiler/stablehlo/stablehlo_backend.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Parser/Parser.h"

namespace tpu {
namespace {

// A part of %x is written at $T, one at 30 is read: what was read before where the two don't meet.
constexpr char kReadsAnother[] = R"(
  func.func @fragment(%x: tensor<64xf32>, %part: tensor<4xf32>) -> (tensor<64xf32>, tensor<3xf32>) {
    %0 = tpu.update_slice %part into %x at [$T] by [1] : tensor<4xf32> into tensor<64xf32>
    %1 = tpu.slice %0 [30] to [33] by [1] : (tensor<64xf32>) -> tensor<3xf32>
    return %0, %1 : tensor<64xf32>, tensor<3xf32>
  })";

// The second one, at 20000, is written in place, as the first is, where they don't meet.
constexpr char kWritesAnother[] = R"(
  func.func @fragment(%x: tensor<65536xf32>, %part: tensor<400xf32>) -> tensor<65536xf32> {
    %0 = tpu.add %part, %part : tensor<400xf32>
    %1 = tpu.update_slice %0 into %x at [$T] by [1] : tensor<400xf32> into tensor<65536xf32>
    %2 = tpu.mul %part, %part : tensor<400xf32>
    %3 = tpu.update_slice %2 into %1 at [20000] by [1] : tensor<400xf32> into tensor<65536xf32>
    return %3 : tensor<65536xf32>
  })";

using Place = int64_t (*)(int64_t);
int64_t Same(int64_t size) { return size; }

// Of a function whose windows, at each of the sizes, are at the place that the size gives.
template <typename Join>
absl::Status Joined(const char* text, std::initializer_list<int64_t> sizes, Place place, Join join) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
  std::vector<mlir::OwningOpRef<mlir::ModuleOp>> owned;
  std::vector<mlir::ModuleOp> modules;
  std::vector<SizePoint> points;
  for (const int64_t size : sizes) {
    const std::string at = absl::StrReplaceAll(text, {{"$T", absl::StrCat(place(size))}});
    owned.push_back(mlir::parseSourceString<mlir::ModuleOp>(at, &context));
    if (!owned.back()) throw std::runtime_error(at);
    modules.push_back(*owned.back());
    points.push_back({size});
  }
  return join(modules, points).status();
}

absl::Status OnHost(const char* text, std::initializer_list<int64_t> sizes, Place place) {
  const std::atomic<bool> cancelled = false;
  return Joined(text, sizes, place, [&](const auto& modules, const auto& points) {
    return host::CompileFamily(modules, points, /*places=*/true, "test", cancelled);
  });
}

absl::Status Padded(const char* text, std::initializer_list<int64_t> sizes, Place place) {
  return Joined(text, sizes, place, [](const auto& modules, const auto& points) {
    return stablehlo::CompilePadded(modules, points, "test");
  });
}

TEST(Windows, OneProgramWhereTheyLieAlike) {
  for (const auto& join : {OnHost, Padded}) {
    EXPECT_TRUE(join(kReadsAnother, {3, 7, 13, 26}, Same).ok()) << join(kReadsAnother, {3, 7, 13, 26}, Same);
    EXPECT_TRUE(join(kReadsAnother, {33, 41, 47, 60}, Same).ok());
  }
  EXPECT_TRUE(OnHost(kWritesAnother, {3, 701, 3001, 19600}, Same).ok());
}

TEST(Windows, NoneWhereTheyMeetInBetween) {
  for (const auto& join : {OnHost, Padded}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(join(kReadsAnother, {3, 7, 41, 47}, Same)));  // before it and behind it
    EXPECT_TRUE(absl::IsFailedPrecondition(join(kReadsAnother, {3, 7, 13, 29}, Same)));  // before it, over it
    EXPECT_TRUE(absl::IsFailedPrecondition(join(kReadsAnother, {3, 29, 30, 47}, Same)));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(OnHost(kWritesAnother, {3, 701, 23001, 41231}, Same)));
  // Behind it at all of these, over it at 10.
  const Place turns = [](int64_t size) { return size * size - 20 * size + 130; };
  for (const auto& join : {OnHost, Padded}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(join(kReadsAnother, {5, 6, 14, 15}, turns)));
  }
}

}  // namespace
}  // namespace tpu
