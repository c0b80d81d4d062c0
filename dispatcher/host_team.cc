#include "dispatcher/host_team.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>

#include "runtime/stream.h"

namespace tpu {
namespace {

template <typename Fn>
void Find(void* library, const char* name, Fn*& function) {
  function = reinterpret_cast<Fn*>(dlsym(library, name));
}

// Of GNU's OpenMP; null: it isn't there.
struct OpenMp {
  int (*pause)(int kind) = nullptr;  // omp_pause_resource_all
  int (*processors)() = nullptr;
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  void (*set_threads)(int threads) = nullptr;  // of the regions that the calling thread begins

  OpenMp() {
    void* library = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);  // torch's: it stays loaded
    if (library == nullptr) return;
    Find(library, "omp_pause_resource_all", pause);
    Find(library, "omp_get_num_procs", processors);
    Find(library, "GOMP_parallel", parallel);
    Find(library, "omp_set_num_threads", set_threads);
    dlclose(library);
  }
  static const OpenMp& Get() {
    static const OpenMp found;
    return found;
  }
};

// MKL's own number of threads for the calling thread, which goes before OpenMP's; 0: OpenMP's. Returns the former one.
// torch.set_num_threads sets both. Null: torch has no MKL.
using SetMklThreads = int(int threads);
SetMklThreads* MklThreads() {
  static SetMklThreads* const found = [] {
    SetMklThreads* function = nullptr;
    if (void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD); library != nullptr) {
      Find(library, "MKL_Set_Num_Threads_Local", function);
      dlclose(library);
    }
    return function;
  }();
  return found;
}

constexpr int kSoftPause = 1;  // omp_pause_soft
thread_local bool holds = false;

}  // namespace

void HoldHostTeam() {
  GiveUpHostTeamLater();
  const OpenMp& openmp = OpenMp::Get();
  if (holds || openmp.pause == nullptr || openmp.processors == nullptr || openmp.parallel == nullptr) return;
  holds = true;
  // The calling thread isn't counted, nor is one of the user's team.
  const int users = at::get_num_threads();
  const int threads = std::max(2, openmp.processors() - users + 2);
  if (users > 1) openmp.parallel([](void*) {}, nullptr, static_cast<unsigned>(threads), 0);
}

void GiveUpHostTeamLater() {
  Stream::CallLater([] {
    const OpenMp& openmp = OpenMp::Get();
    if (openmp.pause != nullptr) openmp.pause(kSoftPause);
    holds = false;
  });
}

HostTeamLimit::HostTeamLimit(int most) {
  const OpenMp& openmp = OpenMp::Get();
  const int usual = at::get_num_threads();  // from now on what this thread's regions have
  most = std::max(most, 1);
  if (openmp.set_threads == nullptr || usual <= most) return;
  former_ = usual;
  openmp.set_threads(most);
  if (MklThreads() != nullptr) former_mkl_ = MklThreads()(most);
}

HostTeamLimit::~HostTeamLimit() {
  if (former_ == 0) return;
  OpenMp::Get().set_threads(former_);
  if (MklThreads() != nullptr) MklThreads()(former_mkl_);
}

bool TeamChoice::Alone() {
  constexpr uint32_t kFirst = 16, kRetry = 128;  // few kernels run that often before they are compiled
  const uint32_t run = runs_.fetch_add(1, std::memory_order_relaxed);
  if (run < kFirst) return false;
  const int64_t team = took_[0].load(std::memory_order_relaxed), alone = took_[1].load(std::memory_order_relaxed);
  const bool better = alone != 0 && alone < team;
  return run % kRetry == kFirst ? !better : better;
}

void TeamChoice::Took(bool alone, int64_t nanoseconds) {
  constexpr int64_t kWeight = 4, kMostTimes = 2;
  std::atomic<int64_t>& took = took_[alone];
  const int64_t before = took.load(std::memory_order_relaxed);
  // One run that something else held up says little.
  const int64_t counted = before == 0 ? nanoseconds : std::min(nanoseconds, kMostTimes * before);
  took.store(std::max<int64_t>(1, before == 0 ? counted : before + (counted - before) / kWeight),
             std::memory_order_relaxed);
}

}  // namespace tpu
