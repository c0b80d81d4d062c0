// The composition root: the one place that names concrete devices, backends and libraries. Called by module.cc.
#pragma once

#include <string>

namespace tpu {

// Path of the PJRT plugin whose devices the process uses; empty: the embedded device. Before the first tensor.
void SetPlugin(std::string path);

// Says how the engine is made when the first device is needed, and connects the core to Python's interpreter lock.
void ComposeEngine();

}  // namespace tpu
