#include "runtime/tensor_type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tpu {

std::string TensorType::ToString() const {
  return absl::StrCat(std::string(NameOf(dtype)), "[", absl::StrJoin(dims, ","), "]");
}

}  // namespace tpu
