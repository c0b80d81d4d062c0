#include "compiler/build_id.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/xxhash.h"

namespace tpu {
namespace {

std::string HashOfThisLibrary() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&HashOfThisLibrary), &info) == 0 || info.dli_fname == nullptr) return "unknown";
  auto file = llvm::MemoryBuffer::getFile(info.dli_fname, /*IsText=*/false, /*RequiresNullTerminator=*/false);
  if (!file) return "unknown";
  return absl::StrCat(absl::Hex(llvm::xxh3_64bits((*file)->getBuffer())));
}

}  // namespace

const std::string& BuildId() {
  static const std::string id = HashOfThisLibrary();
  return id;
}

}  // namespace tpu
