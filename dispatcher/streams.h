// The current device and the current stream of each thread, and the way between c10::Stream and tpu::Stream.
//
// Used by every hook of this layer that queues work or names a device. The current device is thread-local and starts
// at 0; the current stream of a device is thread-local and starts at the device's default stream (id 0). Streams are
// the engine's and live for ever. The first call that needs a stream creates the devices; asking for numbers does not.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "runtime/stream.h"

namespace tpu {

// How many devices there are or will be; creates none.
int DeviceCount();
// Raises unless 0 <= device < DeviceCount().
void CheckDevice(int device);

int CurrentDevice();
int ExchangeDevice(int device);  // returns the former one

Stream& CurrentStream(int device);
inline Stream& CurrentStream() { return CurrentStream(CurrentDevice()); }
// Makes `stream` current for its device; returns the one that was.
Stream& ExchangeStream(Stream& stream);

c10::Stream ToTorch(const Stream& stream);
Stream& FromTorch(const c10::Stream& stream);

// Raises in a process forked after the devices were made, with what to do about it.
void CheckFork();

}  // namespace tpu
