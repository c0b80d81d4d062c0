#include "compiler/host/kernel_compiler.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compiler/host/object_code.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/xxhash.h"
#include "runtime/flags.h"

namespace tpu::host {
namespace {

struct Cache {
  std::mutex mutex;
  absl::flat_hash_map<std::string, std::string> objects;  // by key
  size_t bytes = 0;
};
constexpr size_t kCacheBytes = 64 << 20;

Cache& TheCache() {
  static Cache* cache = new Cache();
  return *cache;
}

std::string TextOf(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

// `text` is the module's.
absl::StatusOr<KernelCode> CodeOf(llvm::Module& module, const std::string& text) {
  KernelCode code;
  llvm::XXH128_hash_t hash =
      llvm::xxh3_128bits(llvm::ArrayRef(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  code.key = absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  Cache& cache = TheCache();
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    auto it = cache.objects.find(code.key);
    if (it != cache.objects.end()) {
      code.object = it->second;
      return code;
    }
  }
  auto object = EmitObject(module);
  if (!object.ok()) return object.status();
  code.object = *std::move(object);
  if (const std::string& dump = Flags::Get().dump; !dump.empty()) {
    std::ofstream(absl::StrCat(dump, "/kernel.", code.key, ".ll")) << text;
    std::ofstream(absl::StrCat(dump, "/kernel.", code.key, ".o"), std::ios::binary) << code.object;
  }
  std::lock_guard<std::mutex> lock(cache.mutex);
  if (cache.bytes > kCacheBytes) {
    cache.objects.clear();
    cache.bytes = 0;
  }
  cache.bytes += code.object.size();
  cache.objects[code.key] = code.object;
  return code;
}

std::vector<int64_t> ParametersOf(const KernelNumbers& numbers) {
  std::vector<int64_t> parameters = numbers.begins;
  if (numbers.open) parameters.insert(parameters.begin(), *numbers.open);
  return parameters;
}

}  // namespace

KernelWriter NestWriter(LoopNest nest, const Tuning& tuning) {
  // Of a single loop nothing but its end depends on the size.
  const auto open = nest.loops.size() == 1 ? std::optional(nest.loops.front().size) : std::nullopt;
  return {[nest = std::move(nest), tuning](llvm::Module& module, KernelNumbers& numbers) {
            return EmitKernel(nest, module, tuning, numbers);
          },
          open};
}

absl::StatusOr<CompiledKernel> CompileKernel(const KernelWriter& writer) {
  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  CompiledKernel kernel;
  KernelNumbers numbers{.open = writer.open, .open_begins = true};
  kernel.shape = writer.write(module, numbers);
  kernel.parameters = ParametersOf(numbers);
  auto code = CodeOf(module, TextOf(module));
  if (!code.ok()) return code.status();
  kernel.code = *std::move(code);
  return kernel;
}

absl::StatusOr<std::vector<CompiledKernel>> CompileKernelFamily(const std::vector<KernelWriter>& writers) {
  const auto differ = [] { return absl::FailedPreconditionError("the kernel's code differs among the sizes"); };
  std::vector<std::vector<int64_t>> asked;  // by size
  for (const KernelWriter& at_size : writers) {
    llvm::LLVMContext context;
    llvm::Module module("kernel", context);
    KernelNumbers numbers{.many = true};
    at_size.write(module, numbers);
    asked.push_back(std::move(numbers.asked));
    if (asked.back().size() != asked.front().size()) return differ();
  }
  // Numbers that are the same at every size are one parameter.
  std::vector<CompiledKernel> kernels(writers.size());
  std::map<std::vector<int64_t>, int> known;
  std::vector<int> parameters;
  for (size_t place = 0; place < asked.front().size(); ++place) {
    std::vector<int64_t> values;
    for (const auto& numbers : asked) values.push_back(numbers[place]);
    if (std::equal(values.begin() + 1, values.end(), values.begin())) {
      parameters.push_back(-1);
      continue;
    }
    const auto [it, fresh] = known.try_emplace(values, static_cast<int>(known.size()));
    parameters.push_back(it->second);
    for (size_t i = 0; fresh && i < kernels.size(); ++i) kernels[i].parameters.push_back(values[i]);
  }
  const bool alike = known.empty();
  const std::optional<int64_t> open = alike ? writers.front().open : std::nullopt;
  std::string text;
  KernelCode code;
  for (size_t i = 0; i < writers.size(); ++i) {
    llvm::LLVMContext context;
    llvm::Module module("kernel", context);
    KernelNumbers numbers{{}, parameters, !alike, open, alike};
    kernels[i].shape = writers[i].write(module, numbers);
    if (alike) kernels[i].parameters = ParametersOf(numbers);
    if (i > 0) {
      if (TextOf(module) != text) return differ();
      continue;
    }
    text = TextOf(module);
    auto compiled = CodeOf(module, text);
    if (!compiled.ok()) return compiled.status();
    code = *std::move(compiled);
  }
  for (CompiledKernel& kernel : kernels) {
    kernel.code = code;
    kernel.shape.grain = kernels[kernels.size() / 2].shape.grain;
  }
  return kernels;
}

}  // namespace tpu::host
