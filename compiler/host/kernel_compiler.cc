#include "compiler/host/kernel_compiler.h"

#include <fstream>
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

}  // namespace

absl::StatusOr<CompiledKernel> CompileKernel(const std::function<KernelShape(llvm::Module&)>& emit) {
  llvm::LLVMContext context;
  llvm::Module module("kernel", context);
  CompiledKernel kernel;
  kernel.shape = emit(module);
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  llvm::XXH128_hash_t hash =
      llvm::xxh3_128bits(llvm::ArrayRef(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  kernel.code.key = absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  Cache& cache = TheCache();
  {
    std::lock_guard<std::mutex> lock(cache.mutex);
    auto it = cache.objects.find(kernel.code.key);
    if (it != cache.objects.end()) {
      kernel.code.object = it->second;
      return kernel;
    }
  }
  auto object = EmitObject(module);
  if (!object.ok()) return object.status();
  kernel.code.object = *std::move(object);
  if (const std::string& dump = Flags::Get().dump; !dump.empty()) {
    std::ofstream(absl::StrCat(dump, "/kernel.", kernel.code.key, ".ll")) << text;
    std::ofstream(absl::StrCat(dump, "/kernel.", kernel.code.key, ".o"), std::ios::binary) << kernel.code.object;
  }
  std::lock_guard<std::mutex> lock(cache.mutex);
  if (cache.bytes > kCacheBytes) {
    cache.objects.clear();
    cache.bytes = 0;
  }
  cache.bytes += kernel.code.object.size();
  cache.objects[kernel.code.key] = kernel.code.object;
  return kernel;
}

absl::StatusOr<CompiledKernel> CompileKernel(const LoopNest& nest) {
  return CompileKernel([&](llvm::Module& module) { return EmitKernel(nest, module); });
}

}  // namespace tpu::host
