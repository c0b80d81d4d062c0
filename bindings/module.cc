// torch_tpu._C. Loading it registers the device with PyTorch and creates nothing.
#include "bindings/bindings.h"
#include "bindings/composition.h"
#include "compiler/operators.h"
#include "dispatcher/host_kernels.h"
#include "dispatcher/record.h"
#include "dispatcher/storage.h"

PYBIND11_MODULE(_C, m) {
  tpu::ComposeEngine();
  tpu::RegisterStorage();
  tpu::InstallHostAllocator();
  tpu::RegisterOperators(tpu::aten::LoweredOperators());
  m.def("set_plugin", &tpu::SetPlugin);
  tpu::BindDevices(m);
  tpu::BindMemory(m);
  tpu::BindGenerators(m);
  tpu::BindInsight(m);
  tpu::BindModes(m);
  tpu::BindAot(m);
  tpu::BindGraphs(m);
  tpu::BindDistributed(m);
}
