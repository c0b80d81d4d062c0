#include "dispatcher/host_team.h"

#include <dlfcn.h>

namespace tpu {
namespace {

using PauseFn = int (*)(int kind);  // OpenMP 5.0, omp_pause_resource_all
constexpr int kSoftPause = 1;       // omp_pause_soft

PauseFn FindPause() {
  void* openmp = dlopen("libgomp.so.1", RTLD_LAZY | RTLD_NOLOAD);  // torch's: it stays loaded
  if (openmp == nullptr) return nullptr;
  const auto pause = reinterpret_cast<PauseFn>(dlsym(openmp, "omp_pause_resource_all"));
  dlclose(openmp);
  return pause;
}

}  // namespace

void GiveUpHostTeam() {
  static const PauseFn pause = FindPause();
  if (pause != nullptr) pause(kSoftPause);
}

}  // namespace tpu
