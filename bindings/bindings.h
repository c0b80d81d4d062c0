// The topics of the extension module torch_tpu._C, one function and one file each. Called once, by module.cc, with the
// interpreter lock held.
#pragma once

#include <pybind11/pybind11.h>

namespace tpu {

void BindDevices(pybind11::module_& m);
void BindMemory(pybind11::module_& m);
void BindGenerators(pybind11::module_& m);
void BindInsight(pybind11::module_& m);
void BindModes(pybind11::module_& m);
void BindAot(pybind11::module_& m);
void BindGraphs(pybind11::module_& m);
void BindDistributed(pybind11::module_& m);

// Until the compile pool is idle, or a signal's handler raises, which this throws. Other threads run Python meanwhile.
void WaitForCompiles();

}  // namespace tpu
