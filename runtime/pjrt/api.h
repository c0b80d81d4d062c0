// A loaded plugin: its function table behind checks, its errors as statuses, its events awaited.
//
// The contract of the PJRT C API: equal major version; a function is there if the table's struct_size covers it and it
// is not null; every argument struct carries its size; every error and event is destroyed. Loading initialises the
// plugin once; it stays loaded for the life of the process. Any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "pjrt_c_api.h"

namespace tpu::pjrt {

// An argument struct with its size set and all else zero.
template <typename Args>
Args Sized(size_t size) {
  Args args{};
  args.struct_size = size;
  return args;
}
#define TPU_PJRT_ARGS(Function) ::tpu::pjrt::Sized<Function##_Args>(Function##_Args_STRUCT_SIZE)

class Api {
 public:
  // Opens the shared library at `path` and initialises it; every failure names the path.
  static absl::StatusOr<std::shared_ptr<const Api>> Load(const std::string& path);

  const std::string& path() const { return path_; }
  std::string Version() const;  // "0.81"

  // Calls a function of the table; Unimplemented when the plugin lacks it.
  template <typename Args>
  absl::Status Call(PJRT_Error* (*PJRT_Api::*function)(Args*), Args& args, const char* name) const {
    if (!Covers(static_cast<const void*>(&(api_->*function)))) return Missing(name);
    if (api_->*function == nullptr) return Missing(name);
    return ToStatus((api_->*function)(&args), name);
  }
  // Waits for the event, destroys it, and gives its error. Null: done.
  absl::Status Await(PJRT_Event* event) const;
  bool Ready(PJRT_Event* event) const;  // Await would not block
  void Destroy(PJRT_Event* event) const;

 private:
  Api() = default;

  bool Covers(const void* member) const {
    return static_cast<const char*>(member) + sizeof(void*) <= reinterpret_cast<const char*>(api_) + api_->struct_size;
  }
  absl::Status Missing(const char* name) const;
  absl::Status ToStatus(PJRT_Error* error, const char* name) const;
  absl::Status Initialize() const;

  std::string path_;
  const PJRT_Api* api_ = nullptr;
};

// Runs `work`, which enters the plugin at `path` for the first time, on a thread of its own: one that hangs is given up
// after `timeout_seconds` (and its thread left behind: a plugin can't be interrupted), one that aborts is named before
// the process ends.
absl::Status Guarded(const std::string& path, int timeout_seconds, std::function<absl::Status()> work);

#define TPU_PJRT_CALL(api, Function, args) ((api).Call(&PJRT_Api::Function, args, #Function))

}  // namespace tpu::pjrt
