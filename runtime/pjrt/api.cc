#include "runtime/pjrt/api.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tpu::pjrt {
namespace {

// The oldest minor version that has all that is called without asking.
constexpr int kOldestMinor = 40;

// A plugin may abort the process instead of failing: what is being loaded is told before it goes. Async-signal-safe.
char g_loading[1024];
void TellAbort(int) {
  const char before[] = "torch_tpu: the PJRT plugin ", after[] = " aborted the process while it was loaded\n";
  (void)!write(STDERR_FILENO, before, sizeof before - 1);
  (void)!write(STDERR_FILENO, g_loading, std::strlen(g_loading));
  (void)!write(STDERR_FILENO, after, sizeof after - 1);
}

class AbortGuard {
 public:
  explicit AbortGuard(const std::string& path) {
    std::strncpy(g_loading, path.c_str(), sizeof g_loading - 1);
    struct sigaction action = {};
    action.sa_handler = &TellAbort;
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGABRT, &action, &former_);
  }
  ~AbortGuard() { sigaction(SIGABRT, &former_, nullptr); }

 private:
  struct sigaction former_ = {};
};

}  // namespace

absl::Status Guarded(const std::string& path, int timeout_seconds, std::function<absl::Status()> work) {
  struct Attempt {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    absl::Status status;
  };
  auto attempt = std::make_shared<Attempt>();
  AbortGuard guard(path);
  std::thread([attempt, work = std::move(work)] {
    absl::Status status = work();
    std::lock_guard lock(attempt->mutex);
    attempt->status = std::move(status);
    attempt->done = true;
    attempt->changed.notify_all();
  }).detach();
  std::unique_lock lock(attempt->mutex);
  if (attempt->changed.wait_for(lock, std::chrono::seconds(timeout_seconds), [&] { return attempt->done; })) {
    return attempt->status;
  }
  return absl::DeadlineExceededError(
      absl::StrCat("PJRT plugin ", path, ": hangs; it was not ready after ", timeout_seconds, " s"));
}

absl::StatusOr<std::shared_ptr<const Api>> Api::Load(const std::string& path) {
  const auto refused = [&](auto... why) {
    return absl::FailedPreconditionError(absl::StrCat("PJRT plugin ", path, ": ", why...));
  };
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return refused("can't be loaded: ", dlerror());
  using GetApi = const PJRT_Api* (*)();
  auto get = reinterpret_cast<GetApi>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr) return refused("is no PJRT plugin: it has no function GetPjrtApi");
  std::shared_ptr<Api> api(new Api);
  api->path_ = path;
  api->api_ = get();
  if (api->api_ == nullptr) return refused("gives no function table");
  const PJRT_Api_Version& version = api->api_->pjrt_api_version;
  const bool older = version.major_version < PJRT_API_MAJOR ||
                     (version.major_version == PJRT_API_MAJOR && version.minor_version < kOldestMinor);
  if (older || version.major_version > PJRT_API_MAJOR) {
    return refused("speaks version ", version.major_version, ".", version.minor_version, " of the PJRT API and is too ",
                   older ? "old" : "new", ": this build works with ", PJRT_API_MAJOR, ".", kOldestMinor, " and later ",
                   PJRT_API_MAJOR, ".x");
  }
  if (absl::Status status = api->Initialize(); !status.ok()) return status;
  return std::shared_ptr<const Api>(std::move(api));
}

std::string Api::Version() const {
  return absl::StrCat(api_->pjrt_api_version.major_version, ".", api_->pjrt_api_version.minor_version);
}

absl::Status Api::Initialize() const {
  auto args = TPU_PJRT_ARGS(PJRT_Plugin_Initialize);
  return TPU_PJRT_CALL(*this, PJRT_Plugin_Initialize, args);
}

absl::Status Api::Missing(const char* name) const {
  return absl::UnimplementedError(absl::StrCat("PJRT plugin ", path_, ": has no function ", name));
}

absl::Status Api::ToStatus(PJRT_Error* error, const char* name) const {
  if (error == nullptr) return absl::OkStatus();
  auto message = TPU_PJRT_ARGS(PJRT_Error_Message);
  message.error = error;
  api_->PJRT_Error_Message(&message);
  const std::string text =
      absl::StrCat("PJRT plugin ", path_, ": ", name, ": ", absl::string_view(message.message, message.message_size));
  auto code = TPU_PJRT_ARGS(PJRT_Error_GetCode);
  code.error = error;
  PJRT_Error* of_code = api_->PJRT_Error_GetCode(&code);
  const auto status_code = of_code == nullptr ? static_cast<absl::StatusCode>(code.code) : absl::StatusCode::kUnknown;
  for (PJRT_Error* e : {error, of_code}) {
    if (e == nullptr) continue;
    auto destroy = TPU_PJRT_ARGS(PJRT_Error_Destroy);
    destroy.error = e;
    api_->PJRT_Error_Destroy(&destroy);
  }
  return absl::Status(status_code, text);
}

absl::Status Api::Await(PJRT_Event* event) const {
  if (event == nullptr) return absl::OkStatus();
  auto args = TPU_PJRT_ARGS(PJRT_Event_Await);
  args.event = event;
  absl::Status status = TPU_PJRT_CALL(*this, PJRT_Event_Await, args);
  Destroy(event);
  return status;
}

bool Api::Ready(PJRT_Event* event) const {
  if (event == nullptr) return true;
  auto args = TPU_PJRT_ARGS(PJRT_Event_IsReady);
  args.event = event;
  return TPU_PJRT_CALL(*this, PJRT_Event_IsReady, args).ok() && args.is_ready;
}

void Api::Destroy(PJRT_Event* event) const {
  auto args = TPU_PJRT_ARGS(PJRT_Event_Destroy);
  args.event = event;
  (void)TPU_PJRT_CALL(*this, PJRT_Event_Destroy, args);
}

}  // namespace tpu::pjrt
