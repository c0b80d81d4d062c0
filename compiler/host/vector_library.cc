#include "compiler/host/vector_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tpu::host {

void* VectorFunctionAddress(const std::string& symbol) {
  static void* const library = dlopen("libmvec.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, symbol.c_str());
}

bool HasVectorLibrary() {
  static const bool has = VectorFunctionAddress("_ZGVbN4v_atanf") != nullptr;  // of the functions that came last
  return has;
}

std::string VectorFunction(const std::string& name, size_t arguments, unsigned lanes, int bits) {
  const char* registers = bits == 512 ? "e" : bits == 256 ? "d" : "b";
  std::string symbol = absl::StrCat("_ZGV", registers, "N", lanes, std::string(arguments, 'v'), "_", name);
  return HasVectorLibrary() && VectorFunctionAddress(symbol) != nullptr ? symbol : std::string();
}

}  // namespace tpu::host
