#include "bindings/python_frames.h"

#include <pybind11/pybind11.h>

#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tpu {
namespace {

// Set at import, before any other thread can ask; never destroyed (threads may ask during exit).
struct LibraryDirectories {
  std::string torch, own;
};
LibraryDirectories* directories = nullptr;

bool IsUsers(std::string_view file) {
  if (directories == nullptr) return true;
  return !file.starts_with(directories->torch) && !file.starts_with(directories->own) && !file.starts_with("<frozen");
}

bool HoldsInterpreterLock() { return Py_IsInitialized() != 0 && PyGILState_Check() != 0; }

// While it lives no garbage is collected. Frame objects count as what may be: their making would run finalizers, which
// record in the middle of what asks.
class NoCollection {
 public:
  NoCollection() : was_enabled_(PyGC_Disable() != 0) {}
  ~NoCollection() {
    if (was_enabled_) PyGC_Enable();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

 private:
  const bool was_enabled_;
};

}  // namespace

void SetLibraryDirectories(std::string torch_directory, std::string own_directory) {
  delete directories;
  directories = new LibraryDirectories{std::move(torch_directory), std::move(own_directory)};
}

// PyTorch's bindings let Python's lock go around operators; a thread that Python knows takes it back for a look. The
// caller holds no lock of ours.
std::string UserFrame() {
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return "";
  const pybind11::gil_scoped_acquire acquire;
  const NoCollection no_collection;
  std::string found;
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  while (frame != nullptr) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    Py_ssize_t length = 0;
    const char* file = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
    if (file == nullptr) {
      PyErr_Clear();
    } else if (IsUsers(std::string_view(file, static_cast<size_t>(length)))) {
      found = absl::StrCat(absl::string_view(file, static_cast<size_t>(length)), ":", PyFrame_GetLineNumber(frame));
    }
    Py_DECREF(code);
    PyFrameObject* back = found.empty() ? PyFrame_GetBack(frame) : nullptr;
    Py_DECREF(frame);
    frame = back;
  }
  return found;
}

void WaitWithoutInterpreterLock(const std::function<void()>& wait) {
  if (!HoldsInterpreterLock()) {
    wait();
    return;
  }
  pybind11::gil_scoped_release release;
  wait();
}

}  // namespace tpu
