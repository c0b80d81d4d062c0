// Device memory as PyTorch asks for it by c10::Allocator, and its statistics as torch.accelerator reads them.
//
// Tensors of this device do not come through here (their memory is a Value's buffer); what does are callers that want
// plain bytes on the device. One allocator for the process, registered at load. Any thread.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include "runtime/device.h"

namespace tpu {

c10::DeviceAllocator& TorchAllocator();

// Device::MakeValue on `device`; waits for queued work and drops caches before it gives up. Raises
// c10::OutOfMemoryError.
BufferRef MakeValueOrRaise(int device, const TensorType& type, const void* source);

// Of the device's memory, what may be allocated: a share, between 0 and 1.
void AllowMemory(int device, double fraction);

// The device's figures after everything recorded so far has run: recording is ahead of the device, and a figure that
// depends on how far would be no figure. Counted since the accumulated statistics were last reset.
MemoryStats SettledMemoryStats(int device);

}  // namespace tpu
