// torch_tpu._C: the default generators.
#include <torch/csrc/utils/pybind.h>

#include "bindings/bindings.h"
#include "dispatcher/generator.h"

namespace tpu {

void BindGenerators(pybind11::module_& m) {
  m.def("default_generator", [](int device) { return DefaultGenerator(device); });
}

}  // namespace tpu
