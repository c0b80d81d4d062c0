// The composition root: the one place that names concrete devices, backends and libraries. Called by module.cc.
#pragma once

namespace tpu {

// Says how the engine is made when the first device is needed, and connects the core to Python's interpreter lock.
void ComposeEngine();

}  // namespace tpu
