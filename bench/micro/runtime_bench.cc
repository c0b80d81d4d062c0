// The costs that every launch pays: memory, hand-over to the stream's thread, a launch of one small kernel, a product.
//
// TORCH_TPU_BENCH_BLAS=/path/to/libtorch_cpu.so takes sgemm_ from there (MKL) for the products; without it they run on
// the built-in loop.
#include <benchmark/benchmark.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/host/allocator.h"
#include "runtime/host/conv.h"
#include "runtime/host/gemm.h"
#include "runtime/host/host_device.h"
#include "runtime/host/matrix_library.h"
#include "runtime/host/plan.h"
#include "runtime/stream.h"
#include "tests/support/function_loader.h"

namespace tpu::host {
namespace {

void AllocateAndFree(benchmark::State& state) {
  Allocator allocator("tpu:0", int64_t{4} << 30);
  const size_t bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    auto block = allocator.Allocate(bytes);
    benchmark::DoNotOptimize(block->data);
    allocator.Free(block->handle);
  }
}
BENCHMARK(AllocateAndFree)->Arg(64)->Arg(4096)->Arg(100000)->Arg(16 << 20);

void AllocateBuffer(benchmark::State& state) {
  auto device = MakeHostDevice(0, int64_t{4} << 30, nullptr);
  for (auto _ : state) benchmark::DoNotOptimize(device->Allocate(static_cast<size_t>(state.range(0))));
}
BENCHMARK(AllocateBuffer)->Arg(64)->Arg(16 << 20);

// Enqueue and wait for the answer.
void StreamRoundTrip(benchmark::State& state) {
  Stream stream(nullptr, 0);
  for (auto _ : state) stream.WaitFor(stream.Enqueue([] {}));
}
BENCHMARK(StreamRoundTrip)->UseRealTime();

void ReportQuantiles(benchmark::State& state, std::vector<double>& us) {
  std::sort(us.begin(), us.end());
  state.counters["p50_us"] = us[us.size() / 2];
  state.counters["p99_us"] = us[us.size() * 99 / 100];
}

// What Enqueue costs its caller when a launch comes every range(0) us.
void StreamEnqueueEvery(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  Stream stream(nullptr, 0);
  const auto gap = std::chrono::microseconds(state.range(0));
  std::vector<double> enqueue_us;
  for (auto _ : state) {
    const auto start = Clock::now();
    stream.Enqueue([] {});
    const auto end = Clock::now();
    enqueue_us.push_back(std::chrono::duration<double, std::micro>(end - start).count());
    while (Clock::now() < end + gap) {
    }
  }
  ReportQuantiles(state, enqueue_us);
}
BENCHMARK(StreamEnqueueEvery)->Arg(5)->Arg(20)->Arg(200)->UseRealTime()->Iterations(5000);

// From Enqueue to the task's first instruction.
void StreamHandOver(benchmark::State& state) {
  using Clock = std::chrono::steady_clock;
  Stream stream(nullptr, 0);
  const auto gap = std::chrono::microseconds(state.range(0));
  std::vector<double> hand_over_us;
  for (auto _ : state) {
    Clock::time_point begun;
    const auto start = Clock::now();
    stream.WaitFor(stream.Enqueue([&] { begun = Clock::now(); }));
    hand_over_us.push_back(std::chrono::duration<double, std::micro>(begun - start).count());
    const auto end = Clock::now();
    while (Clock::now() < end + gap) {
    }
  }
  ReportQuantiles(state, hand_over_us);
}
BENCHMARK(StreamHandOver)->Arg(5)->Arg(20)->Arg(200)->UseRealTime()->Iterations(5000);

void StreamBurst(benchmark::State& state) {
  Stream stream(nullptr, 0);
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i) stream.Enqueue([] {});
    stream.Synchronize();
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(StreamBurst)->UseRealTime();

void Add(void** p, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    static_cast<float*>(p[2])[i] = static_cast<float*>(p[0])[i] + static_cast<float*>(p[1])[i];
  }
}

void LaunchOneKernel(benchmark::State& state) {
  FunctionLoader loader({{"add", Add}});
  auto device = MakeHostDevice(0, int64_t{4} << 30, &loader);
  const int64_t n = state.range(0);
  const uint64_t bytes = static_cast<uint64_t>(n) * 4;
  Plan plan;
  plan.num_inputs = 2;
  plan.slots = {
      {Slot::Kind::kInput, 0, 0, bytes}, {Slot::Kind::kInput, 1, 0, bytes}, {Slot::Kind::kOutput, 0, 0, bytes}};
  plan.kernels = {{"bench add", "add"}};
  plan.steps = {{.label = "add", .slots = {0, 1, 2}, .num_inputs = 2, .kernel = {0, n, 16384}}};
  plan.outputs = {{.bytes = bytes}};
  Program program{.format = "host", .bytes = plan.Serialize(), .inputs = {{}, {}}, .outputs = {{}}};
  auto executable = *device->Load(program);
  Argument inputs[] = {{.buffer = *device->Allocate(bytes)}, {.buffer = *device->Allocate(bytes)}};
  std::memset(inputs[0].buffer->data(), 0, bytes);
  std::memset(inputs[1].buffer->data(), 0, bytes);
  for (auto _ : state) {
    BufferRef output[1];
    benchmark::DoNotOptimize(executable->Launch(absl::MakeSpan(inputs), absl::MakeSpan(output), nullptr));
  }
}
BENCHMARK(LaunchOneKernel)->Arg(4)->Arg(1024)->Arg(1 << 20)->UseRealTime();

void CopyToDevice(benchmark::State& state) {
  auto device = MakeHostDevice(0, int64_t{4} << 30, nullptr);
  const size_t bytes = static_cast<size_t>(state.range(0));
  std::vector<char> source(bytes, 1);
  const TensorType type{DType::kUInt8, {state.range(0)}};
  for (auto _ : state) benchmark::DoNotOptimize(device->MakeValue(type, source.data()));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(CopyToDevice)->Arg(64 << 10)->Arg(1 << 20)->Arg(64 << 20)->UseRealTime();

struct Blas {
  MatrixLibrary library;
  void (*set_threads)(int) = nullptr;
};

const Blas& LoadBlas() {
  static const Blas blas = [] {
    Blas b;
    const char* path = std::getenv("TORCH_TPU_BENCH_BLAS");
    void* handle = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (handle == nullptr) return b;
    b.library.name = "MKL";
    b.library.sgemm = reinterpret_cast<SgemmFn>(dlsym(handle, "sgemm_"));
    b.library.dgemm = reinterpret_cast<DgemmFn>(dlsym(handle, "dgemm_"));
    b.library.set_threads_on_this_thread = reinterpret_cast<int (*)(int)>(dlsym(handle, "MKL_Set_Num_Threads_Local"));
    b.set_threads = reinterpret_cast<void (*)(int)>(dlsym(handle, "MKL_Set_Num_Threads"));
    return b;
  }();
  return blas;
}

struct Operands {
  explicit Operands(const GemmStep& g)
      : device(MakeHostDevice(0, int64_t{4} << 30, nullptr)),
        a(Filled(g.m * g.k * 4)),
        b(Filled(g.k * g.n * 4)),
        c(Filled(g.m * g.n * 4)) {}
  BufferRef Filled(int64_t bytes) {
    BufferRef buffer = *device->Allocate(static_cast<size_t>(bytes));
    std::memset(buffer->data(), 0, static_cast<size_t>(bytes));
    return buffer;
  }
  std::unique_ptr<Device> device;
  BufferRef a, b, c;
};

GemmStep StepOf(const benchmark::State& state) {
  GemmStep g{.trans_b = state.range(3) != 0, .m = state.range(0), .n = state.range(1), .k = state.range(2)};
  g.lda = g.k, g.ldb = g.trans_b ? g.k : g.n, g.ldc = g.n;
  return g;
}

void Report(benchmark::State& state, const GemmStep& g) {
  const double flops = 2.0 * static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  const double bytes = static_cast<double>(g.k * g.n) * static_cast<double>(SizeOf(g.dtype));
  state.counters["GFLOPS"] = benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["B_GBps"] = benchmark::Counter(bytes / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}

void Gemm(benchmark::State& state) {
  SetMatrixLibrary(LoadBlas().library);
  const GemmStep g = StepOf(state);
  Operands operands(g);
  for (auto _ : state) RunGemm(g, operands.a->data(), operands.b->data(), operands.c->data());
  Report(state, g);
}

void GemmBFloat16(benchmark::State& state) {
  SetMatrixLibrary(LoadBlas().library);
  GemmStep g = StepOf(state);
  g.dtype = g.out_dtype = DType::kBFloat16;
  Operands operands(g);
  for (auto _ : state) RunGemm(g, operands.a->data(), operands.b->data(), operands.c->data());
  Report(state, g);
}

// The library with threads of its own.
void LibraryGemm(benchmark::State& state) {
  const Blas& blas = LoadBlas();
  if (blas.library.sgemm == nullptr) {
    state.SkipWithError("no library: TORCH_TPU_BENCH_BLAS");
    return;
  }
  if (blas.set_threads != nullptr) blas.set_threads(static_cast<int>(std::thread::hardware_concurrency()));
  const GemmStep g = StepOf(state);
  Operands operands(g);
  const int m = static_cast<int>(g.m), n = static_cast<int>(g.n), k = static_cast<int>(g.k);
  const int lda = static_cast<int>(g.lda), ldb = static_cast<int>(g.ldb), ldc = static_cast<int>(g.ldc);
  const float one = 1, zero = 0;
  for (auto _ : state) {
    blas.library.sgemm(g.trans_b ? "T" : "N", "N", &n, &m, &k, &one, static_cast<float*>(operands.b->data()), &ldb,
                       static_cast<float*>(operands.a->data()), &lda, &zero, static_cast<float*>(operands.c->data()),
                       &ldc);
  }
  Report(state, g);
}

void Shapes(benchmark::internal::Benchmark* b) {
  b->UseRealTime()->Unit(benchmark::kMicrosecond)->ArgNames({"m", "n", "k", "tb"});
  b->Args({1024, 1024, 1024, 0})->Args({2048, 384, 384, 1})->Args({2048, 1536, 384, 1})->Args({256, 64, 64, 1});
  b->Args({1, 4096, 4096, 1})->Args({1, 4096, 4096, 0})->Args({1, 1152, 384, 1})->Args({8, 4096, 1024, 1});
  b->Args({4096, 1, 4096, 0})->Args({4, 2048, 512, 1})->Args({12, 4096, 1024, 1});
}
BENCHMARK(Gemm)->Apply(Shapes);
BENCHMARK(GemmBFloat16)->Apply(Shapes);
BENCHMARK(LibraryGemm)->Apply(Shapes);

// Three by three, of images of `size` x `size`.
void Convolution(benchmark::State& state) {
  ConvStep c{.kind = static_cast<ConvStep::Kind>(state.range(0)),
             .dtype = state.range(1) != 0 ? DType::kBFloat16 : DType::kFloat32,
             .batch = state.range(2)};
  c.in = state.range(3), c.out = state.range(4);
  c.rows = {.in = state.range(5), .out = state.range(5), .kernel = 3, .low = 1};
  c.cols = c.rows;
  if (!CanConvolve(c)) return state.SkipWithError("not on this processor");
  const int64_t positions = c.batch * c.rows.out * c.cols.out;
  // Of zeros; those of bf16 fill half of it.
  const std::vector<float> x(static_cast<size_t>(positions * c.in)), y(static_cast<size_t>(positions * c.out));
  const std::vector<float> w(static_cast<size_t>(c.in * c.out * 9));
  const bool forward = c.kind == ConvStep::Kind::kForward;
  std::vector<float> result(forward ? y.size() : w.size());
  for (auto _ : state) RunConv(c, x.data(), forward ? w.data() : y.data(), result.data());
  const double flops = 18.0 * static_cast<double>(positions * c.in * c.out);
  state.counters["GFLOPS"] = benchmark::Counter(flops / 1e9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Convolution)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond)
    ->ArgNames({"weight", "bf16", "batch", "in", "out", "size"})
    ->ArgsProduct({{0, 1}, {0, 1}, {8}, {64}, {32}, {64}})
    ->ArgsProduct({{0, 1}, {0, 1}, {8}, {32}, {32}, {64}})
    ->ArgsProduct({{0, 1}, {0, 1}, {8}, {64}, {64}, {32}})
    ->ArgsProduct({{0, 1}, {0, 1}, {16}, {128}, {128}, {16}})
    ->ArgsProduct({{0, 1}, {0, 1}, {16}, {256}, {256}, {4}})
    ->ArgsProduct({{0, 1}, {0, 1}, {16}, {512}, {512}, {2}});

}  // namespace
}  // namespace tpu::host

BENCHMARK_MAIN();
