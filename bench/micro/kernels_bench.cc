// Generated kernels on 4M elements, in GB/s of what must cross memory, beside this machine's triad and fill.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <cstdlib>

#include "compiler/host/host_backend.h"
#include "compiler/host/host_compiler.h"
#include "compiler/ir/dialect.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "oneapi/tbb/parallel_for.h"
#include "runtime/host/host_device.h"

namespace tpu::host {
namespace {

Device& TheDevice() {
  static Device* device = MakeHostDevice(0, 0, MakeObjectLoader().release()).release();
  return *device;
}

// Runs the module on inputs filled with small numbers; donates those in `donated`.
void Run(benchmark::State& state, const char* text, int64_t bytes, std::vector<int> donated = {}) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<ir::TpuDialect, mlir::func::FuncDialect>();
  auto module = mlir::parseSourceString<mlir::ModuleOp>(text, &context);
  auto program = module ? CompileModule(*module, "bench") : absl::InvalidArgumentError("does not parse");
  auto executable = program.ok() ? TheDevice().Load(*program) : program.status();
  if (!executable.ok()) return state.SkipWithError(executable.status().ToString().c_str());
  std::vector<BufferRef> buffers;
  for (const TensorType& type : program->inputs) {
    BufferRef buffer = *TheDevice().Allocate(type.bytes());
    if (type.dtype == DType::kFloat32) {
      for (int64_t i = 0; i < type.elements(); ++i) static_cast<float*>(buffer->data())[i] = 0.001f * (i % 1000) + 0.1f;
    } else {
      std::memset(buffer->data(), 0, type.bytes());
    }
    buffers.push_back(buffer);
  }
  auto launch = [&] {
    std::vector<Argument> arguments;
    for (size_t i = 0; i < buffers.size(); ++i) {
      bool give = std::find(donated.begin(), donated.end(), static_cast<int>(i)) != donated.end();
      arguments.push_back({give ? std::move(buffers[i]) : buffers[i], 0, give});
    }
    std::vector<BufferRef> outputs(program->outputs.size());
    absl::Status status = (*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr);
    if (!status.ok()) state.SkipWithError(status.ToString().c_str());
    arguments.clear();
    for (size_t i = 0; i < donated.size(); ++i) buffers[donated[i]] = outputs[i];
  };
  for (int i = 0; i < 3; ++i) launch();
  for (auto _ : state) launch();
  state.SetBytesProcessed(state.iterations() * bytes);
}

constexpr int64_t kMega = 1 << 20;

void Gelu(benchmark::State& state) {
  Run(state,
      R"(func.func @fragment(%x: tensor<4096x1024xf32>, %b: tensor<1024xf32>, %s: tensor<f64>, %r: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
    %bb = tpu.broadcast %b [1] : (tensor<1024xf32>) -> tensor<4096x1024xf32>
    %0 = tpu.add %x, %bb : tensor<4096x1024xf32>
    %half = tpu.constant dense<0.5> : tensor<4096x1024xf32>
    %one = tpu.constant dense<1.0> : tensor<4096x1024xf32>
    %k = tpu.constant dense<0.70710678> : tensor<4096x1024xf32>
    %1 = tpu.mul %0, %k : tensor<4096x1024xf32>
    %2 = tpu.erf %1 : tensor<4096x1024xf32>
    %3 = tpu.add %2, %one : tensor<4096x1024xf32>
    %4 = tpu.mul %0, %half : tensor<4096x1024xf32>
    %5 = tpu.mul %4, %3 : tensor<4096x1024xf32>
    %s1 = tpu.convert %s : (tensor<f64>) -> tensor<f32>
    %s2 = tpu.broadcast %s1 [] : (tensor<f32>) -> tensor<4096x1024xf32>
    %6 = tpu.mul %5, %s2 : tensor<4096x1024xf32>
    %7 = tpu.add %6, %r : tensor<4096x1024xf32>
    return %7 : tensor<4096x1024xf32> })",
      48 * kMega);
}
BENCHMARK(Gelu)->UseRealTime()->Unit(benchmark::kMillisecond);

void GeluBFloat16(benchmark::State& state) {
  Run(state,
      R"(func.func @fragment(%x: tensor<4096x1024xbf16>, %b: tensor<1024xbf16>, %r: tensor<4096x1024xbf16>) -> tensor<4096x1024xbf16> {
    %bb = tpu.broadcast %b [1] : (tensor<1024xbf16>) -> tensor<4096x1024xbf16>
    %00 = tpu.add %x, %bb : tensor<4096x1024xbf16>
    %0 = tpu.convert %00 : (tensor<4096x1024xbf16>) -> tensor<4096x1024xf32>
    %half = tpu.constant dense<0.5> : tensor<4096x1024xf32>
    %one = tpu.constant dense<1.0> : tensor<4096x1024xf32>
    %k = tpu.constant dense<0.70710678> : tensor<4096x1024xf32>
    %1 = tpu.mul %0, %k : tensor<4096x1024xf32>
    %2 = tpu.erf %1 : tensor<4096x1024xf32>
    %3 = tpu.add %2, %one : tensor<4096x1024xf32>
    %4 = tpu.mul %0, %half : tensor<4096x1024xf32>
    %5 = tpu.mul %4, %3 : tensor<4096x1024xf32>
    %6 = tpu.convert %5 : (tensor<4096x1024xf32>) -> tensor<4096x1024xbf16>
    %7 = tpu.add %6, %r : tensor<4096x1024xbf16>
    return %7 : tensor<4096x1024xbf16> })",
      24 * kMega);
}
BENCHMARK(GeluBFloat16)->UseRealTime()->Unit(benchmark::kMillisecond);

void Softmax(benchmark::State& state) {
  Run(state, R"(func.func @fragment(%x: tensor<4096x1024xf32>) -> tensor<4096x1024xf32> {
    %0 = tpu.reduce max %x [1] : (tensor<4096x1024xf32>) -> tensor<4096xf32>
    %1 = tpu.broadcast %0 [0] : (tensor<4096xf32>) -> tensor<4096x1024xf32>
    %2 = tpu.sub %x, %1 : tensor<4096x1024xf32>
    %3 = tpu.exp %2 : tensor<4096x1024xf32>
    %4 = tpu.reduce sum %3 [1] : (tensor<4096x1024xf32>) -> tensor<4096xf32>
    %5 = tpu.broadcast %4 [0] : (tensor<4096xf32>) -> tensor<4096x1024xf32>
    %6 = tpu.div %3, %5 : tensor<4096x1024xf32>
    return %6 : tensor<4096x1024xf32> })",
      32 * kMega);
}
BENCHMARK(Softmax)->UseRealTime()->Unit(benchmark::kMillisecond);

void LayerNorm(benchmark::State& state) {
  Run(state,
      R"(func.func @fragment(%x: tensor<4096x1024xf32>, %g: tensor<1024xf32>, %b: tensor<1024xf32>) -> tensor<4096x1024xf32> {
    %n = tpu.constant dense<9.765625e-04> : tensor<4096xf32>
    %e = tpu.constant dense<1.0e-05> : tensor<4096xf32>
    %0 = tpu.reduce sum %x [1] : (tensor<4096x1024xf32>) -> tensor<4096xf32>
    %1 = tpu.mul %0, %n : tensor<4096xf32>
    %2 = tpu.broadcast %1 [0] : (tensor<4096xf32>) -> tensor<4096x1024xf32>
    %3 = tpu.sub %x, %2 : tensor<4096x1024xf32>
    %4 = tpu.mul %3, %3 : tensor<4096x1024xf32>
    %5 = tpu.reduce sum %4 [1] : (tensor<4096x1024xf32>) -> tensor<4096xf32>
    %6 = tpu.mul %5, %n : tensor<4096xf32>
    %7 = tpu.add %6, %e : tensor<4096xf32>
    %8 = tpu.rsqrt %7 : tensor<4096xf32>
    %9 = tpu.broadcast %8 [0] : (tensor<4096xf32>) -> tensor<4096x1024xf32>
    %10 = tpu.mul %3, %9 : tensor<4096x1024xf32>
    %gg = tpu.broadcast %g [1] : (tensor<1024xf32>) -> tensor<4096x1024xf32>
    %bb = tpu.broadcast %b [1] : (tensor<1024xf32>) -> tensor<4096x1024xf32>
    %11 = tpu.mul %10, %gg : tensor<4096x1024xf32>
    %12 = tpu.add %11, %bb : tensor<4096x1024xf32>
    return %12 : tensor<4096x1024xf32> })",
      32 * kMega);
}
BENCHMARK(LayerNorm)->UseRealTime()->Unit(benchmark::kMillisecond);

// x [rows, 16 heads, 64]: x / rms(x over 1024) * w, then halves of each head rotated by cos, sin [rows, 64].
void RmsNormRope(benchmark::State& state) {
  Run(state,
      R"(func.func @fragment(%x: tensor<4096x1024xf32>, %w: tensor<1024xf32>, %c: tensor<4096x64xf32>, %s: tensor<4096x64xf32>) -> tensor<4096x16x64xf32> {
    %n = tpu.constant dense<9.765625e-04> : tensor<4096xf32>
    %e = tpu.constant dense<1.0e-05> : tensor<4096xf32>
    %0 = tpu.mul %x, %x : tensor<4096x1024xf32>
    %1 = tpu.reduce sum %0 [1] : (tensor<4096x1024xf32>) -> tensor<4096xf32>
    %2 = tpu.mul %1, %n : tensor<4096xf32>
    %3 = tpu.add %2, %e : tensor<4096xf32>
    %4 = tpu.rsqrt %3 : tensor<4096xf32>
    %5 = tpu.broadcast %4 [0] : (tensor<4096xf32>) -> tensor<4096x1024xf32>
    %6 = tpu.mul %x, %5 : tensor<4096x1024xf32>
    %7 = tpu.broadcast %w [1] : (tensor<1024xf32>) -> tensor<4096x1024xf32>
    %8 = tpu.mul %6, %7 : tensor<4096x1024xf32>
    %9 = tpu.reshape %8 : (tensor<4096x1024xf32>) -> tensor<4096x16x64xf32>
    %lo = tpu.slice %9 [0, 0, 0] to [4096, 16, 32] by [1, 1, 1] : (tensor<4096x16x64xf32>) -> tensor<4096x16x32xf32>
    %hi = tpu.slice %9 [0, 0, 32] to [4096, 16, 64] by [1, 1, 1] : (tensor<4096x16x64xf32>) -> tensor<4096x16x32xf32>
    %nh = tpu.neg %hi : tensor<4096x16x32xf32>
    %rot = tpu.concat %nh, %lo along 2 : (tensor<4096x16x32xf32>, tensor<4096x16x32xf32>) -> tensor<4096x16x64xf32>
    %cc = tpu.broadcast %c [0, 2] : (tensor<4096x64xf32>) -> tensor<4096x16x64xf32>
    %ss = tpu.broadcast %s [0, 2] : (tensor<4096x64xf32>) -> tensor<4096x16x64xf32>
    %10 = tpu.mul %9, %cc : tensor<4096x16x64xf32>
    %11 = tpu.mul %rot, %ss : tensor<4096x16x64xf32>
    %12 = tpu.add %10, %11 : tensor<4096x16x64xf32>
    return %12 : tensor<4096x16x64xf32> })",
      34 * kMega);
}
BENCHMARK(RmsNormRope)->UseRealTime()->Unit(benchmark::kMillisecond);

void ColumnSum(benchmark::State& state) {
  Run(state, R"(func.func @fragment(%x: tensor<4096x1024xf32>) -> tensor<1024xf32> {
    %0 = tpu.reduce sum %x [0] : (tensor<4096x1024xf32>) -> tensor<1024xf32>
    return %0 : tensor<1024xf32> })",
      16 * kMega);
}
BENCHMARK(ColumnSum)->UseRealTime()->Unit(benchmark::kMillisecond);

void FullSum(benchmark::State& state) {
  Run(state, R"(func.func @fragment(%x: tensor<4194304xf32>) -> tensor<f32> {
    %0 = tpu.reduce sum %x [0] : (tensor<4194304xf32>) -> tensor<f32>
    return %0 : tensor<f32> })",
      16 * kMega);
}
BENCHMARK(FullSum)->UseRealTime()->Unit(benchmark::kMillisecond);

void Transpose(benchmark::State& state) {
  Run(state, R"(func.func @fragment(%x: tensor<2048x2048xf32>) -> tensor<2048x2048xf32> {
    %0 = tpu.transpose %x [1, 0] : (tensor<2048x2048xf32>) -> tensor<2048x2048xf32>
    return %0 : tensor<2048x2048xf32> })",
      32 * kMega);
}
BENCHMARK(Transpose)->UseRealTime()->Unit(benchmark::kMillisecond);

void AdamW(benchmark::State& state) {
  Run(state,
      R"(func.func @fragment(%p: tensor<10485760xf32>, %m: tensor<10485760xf32>, %v: tensor<10485760xf32>, %g: tensor<10485760xf32>)
      -> (tensor<10485760xf32>, tensor<10485760xf32>, tensor<10485760xf32>) {
    %wd = tpu.constant dense<0.999> : tensor<10485760xf32>
    %b1 = tpu.constant dense<0.9> : tensor<10485760xf32>
    %c1 = tpu.constant dense<0.1> : tensor<10485760xf32>
    %b2 = tpu.constant dense<0.999> : tensor<10485760xf32>
    %c2 = tpu.constant dense<0.001> : tensor<10485760xf32>
    %e = tpu.constant dense<1.0e-08> : tensor<10485760xf32>
    %lr = tpu.constant dense<0.001> : tensor<10485760xf32>
    %p1 = tpu.mul %p, %wd : tensor<10485760xf32>
    %m1 = tpu.mul %m, %b1 : tensor<10485760xf32>
    %g1 = tpu.mul %g, %c1 : tensor<10485760xf32>
    %m2 = tpu.add %m1, %g1 : tensor<10485760xf32>
    %v1 = tpu.mul %v, %b2 : tensor<10485760xf32>
    %gg = tpu.mul %g, %g : tensor<10485760xf32>
    %g2 = tpu.mul %gg, %c2 : tensor<10485760xf32>
    %v2 = tpu.add %v1, %g2 : tensor<10485760xf32>
    %s = tpu.sqrt %v2 : tensor<10485760xf32>
    %d = tpu.add %s, %e : tensor<10485760xf32>
    %u = tpu.div %m2, %d : tensor<10485760xf32>
    %ul = tpu.mul %u, %lr : tensor<10485760xf32>
    %p2 = tpu.sub %p1, %ul : tensor<10485760xf32>
    return %p2, %m2, %v2 : tensor<10485760xf32>, tensor<10485760xf32>, tensor<10485760xf32> })",
      280 * kMega, {0, 1, 2});
}
BENCHMARK(AdamW)->UseRealTime()->Unit(benchmark::kMillisecond);

// The bounds: a[i] = b[i] + s * c[i] on two threads, and the same with stores around the caches.
template <bool kNonTemporal>
void Triad(benchmark::State& state) {
  constexpr int64_t n = 4 << 20;
  BufferRef a = *TheDevice().Allocate(n * 4), b = *TheDevice().Allocate(n * 4), c = *TheDevice().Allocate(n * 4);
  std::memset(a->data(), 0, n * 4), std::memset(b->data(), 0, n * 4), std::memset(c->data(), 0, n * 4);
  for (auto _ : state) {
    oneapi::tbb::parallel_for(oneapi::tbb::blocked_range<int64_t>(0, n / 8, 1 << 13), [&](const auto& range) {
      auto* to = static_cast<float*>(a->data());
      const auto *x = static_cast<const float*>(b->data()), *y = static_cast<const float*>(c->data());
      for (int64_t i = range.begin() * 8; i < range.end() * 8; i += 8) {
        for (int64_t j = i; j < i + 8; j += 4) {
          __m128 v = _mm_add_ps(_mm_load_ps(x + j), _mm_mul_ps(_mm_load_ps(y + j), _mm_set1_ps(3.0f)));
          kNonTemporal ? _mm_stream_ps(to + j, v) : _mm_store_ps(to + j, v);
        }
      }
      if (kNonTemporal) _mm_sfence();
    });
  }
  state.SetBytesProcessed(state.iterations() * n * 12);
}
BENCHMARK(Triad<false>)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(Triad<true>)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace tpu::host

BENCHMARK_MAIN();
