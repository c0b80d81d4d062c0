// torch_tpu._C. Loading it registers the device with PyTorch and creates nothing.
#include "bindings/bindings.h"
#include "bindings/composition.h"

PYBIND11_MODULE(_C, m) {
  tpu::ComposeEngine();
  tpu::BindDevices(m);
  tpu::BindMemory(m);
  tpu::BindGenerators(m);
  tpu::BindInsight(m);
  tpu::BindModes(m);
}
