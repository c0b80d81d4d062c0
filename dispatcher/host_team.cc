#include "dispatcher/host_team.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>

#include "runtime/stream.h"

namespace tpu {
namespace {

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

 private:
  template <typename Fn>
  static void Find(void* library, const char* name, Fn*& function) {
    function = reinterpret_cast<Fn*>(dlsym(library, name));
  }
};

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
}

HostTeamLimit::~HostTeamLimit() {
  if (former_ > 0) OpenMp::Get().set_threads(former_);
}

}  // namespace tpu
