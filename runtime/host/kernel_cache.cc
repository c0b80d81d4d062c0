#include "runtime/host/kernel_cache.h"

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "runtime/flags.h"

namespace tpu::host {
namespace {

struct Cache {
  using Key = std::pair<CodeLoader*, std::string>;
  std::mutex mutex;
  absl::flat_hash_map<Key, std::weak_ptr<LoadedKernel>> kernels;
  size_t sweep_at = 256;  // expired entries go when the table has grown to this

  static Cache& Get() {
    static Cache* cache = new Cache;  // executables may be dropped while the process exits
    return *cache;
  }
};

// Linux perf reads the names of such code there: "start size name" a line. The object's size bounds the code's.
void TellPerf(const KernelCode& code, const LoadedKernel& kernel) {
  std::ofstream(absl::StrFormat("/tmp/perf-%d.map", getpid()), std::ios::app) << absl::StreamFormat(
      "%x %x kernel.%s\n", reinterpret_cast<uintptr_t>(kernel.function()), code.object.size(), code.key);
}

}  // namespace

absl::StatusOr<std::shared_ptr<LoadedKernel>> LoadKernel(const KernelCode& code, CodeLoader* loader) {
  if (loader == nullptr) return absl::FailedPreconditionError("the host device has no code loader");
  Cache& cache = Cache::Get();
  const Cache::Key key(loader, code.key);
  {
    std::lock_guard lock(cache.mutex);
    auto it = cache.kernels.find(key);
    if (it != cache.kernels.end()) {
      if (std::shared_ptr<LoadedKernel> kernel = it->second.lock()) return kernel;
    }
  }
  // Loading takes milliseconds: not under the lock. Of two threads that load the same kernel the first to finish wins.
  absl::StatusOr<std::shared_ptr<LoadedKernel>> loaded = loader->Load(code.object);
  if (!loaded.ok()) return loaded;
  std::lock_guard lock(cache.mutex);
  if (cache.kernels.size() >= cache.sweep_at) {
    absl::erase_if(cache.kernels, [](const auto& entry) { return entry.second.expired(); });
    cache.sweep_at = std::max<size_t>(256, 2 * cache.kernels.size());
  }
  std::weak_ptr<LoadedKernel>& entry = cache.kernels[key];
  if (std::shared_ptr<LoadedKernel> other = entry.lock()) return other;
  entry = *loaded;
  if (!Flags::Get().dump.empty()) TellPerf(code, **loaded);
  return loaded;
}

}  // namespace tpu::host
