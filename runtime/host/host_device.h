// The embedded device: this machine's CPU, with a memory size of its own, TBB for its loops and a caching allocator on
// huge pages. Runs programs of format "host" (plan.h).
//
// Made by the composition root, one for each TORCH_TPU_DEVICES. Any thread.
#pragma once

#include <memory>

#include "runtime/device.h"
#include "runtime/host/code_loader.h"

namespace tpu::host {

// memory_bytes: what live buffers may take together (0: the machine's memory). `loader` outlives the device.
std::unique_ptr<Device> MakeHostDevice(int index, int64_t memory_bytes, CodeLoader* loader);

}  // namespace tpu::host
