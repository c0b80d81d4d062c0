// A compiled module on one device, and the buffers that it reads and makes. A launch returns as soon as the plugin has
// taken it; at most Flights::kMost are in the air.
//
// Made by PjrtDevice::Load; owned by the caller; does not outlive its device. Launch may run on several threads at
// once.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "runtime/device.h"
#include "runtime/pjrt/client.h"
#include "runtime/pjrt/flight.h"
#include "runtime/pjrt/memory.h"
#include "runtime/pjrt/module.h"
#include "runtime/pjrt/padded.h"

namespace tpu::pjrt {

// Where buffers of one device live. Shared by the device, its executables and its buffers.
struct Place {
  std::shared_ptr<Client> client;
  PJRT_Device* device = nullptr;
  std::shared_ptr<Memory> memory;
  Flights flights;

  // The buffers of scalars that were used lately: a learning rate or an epsilon is uploaded once.
  absl::StatusOr<BufferRef> Scalar(DType dtype, uint64_t bits);

 private:
  std::mutex mutex_;
  absl::flat_hash_map<std::pair<DType, uint64_t>, BufferRef> scalars_;  // guarded by mutex_
};

// What the Buffer's data() points to.
struct Held {
  std::shared_ptr<Place> place;
  PJRT_Buffer* handle = nullptr;
  TensorType type;
  TensorType stored;    // of the handle: `type`, or one with larger dims, of which those of `type` come first
  int64_t charged = 0;  // bytes of `memory` that it gives back; moved to the output that is written over it
  FlightRef maker;      // the launch that it is a result of; null: an upload

  ~Held();
};
inline Held& HeldBy(const BufferRef& buffer) { return *static_cast<Held*>(buffer->data()); }
BufferRef MakeBuffer(std::shared_ptr<Place> place, PJRT_Buffer* handle, const TensorType& type,
                     const TensorType& stored, int64_t charged, FlightRef maker = nullptr);
// Its elements, row-major, once it has them.
absl::Status ToHost(const Held& held, void* destination);

// What a launch reads on one device.
struct Operands {
  absl::InlinedVector<BufferRef, 16> held;  // by input; scalars' buffers live as long as the launch
  absl::InlinedVector<PJRT_Buffer*, 16> handles;
  FlightRefs before;  // launches that made them and may not have ended
  FlightRef failed;   // one that has, with an error

  // More of them. Each is of the type that the program takes; those that are not stored as it takes them go by way of
  // the host.
  absl::Status Collect(const std::shared_ptr<Place>& place, absl::Span<const Argument> inputs,
                       absl::Span<const TensorType> types, absl::Span<const TensorType> stored);
};

// Parsed, and sound for the program's signature.
absl::StatusOr<Module> ModuleOf(const Program& program);
absl::StatusOr<std::unique_ptr<Executable>> LoadModule(std::shared_ptr<Place> place, const Program& program);
// Of format kPaddedFormat.
absl::StatusOr<PaddedModule> PaddedModuleOf(const Program& program);
absl::StatusOr<std::unique_ptr<ExecutableFamily>> LoadPaddedModule(std::shared_ptr<Place> place,
                                                                   const Program& program);

}  // namespace tpu::pjrt
