// One plugin's client: its devices, compiling, buffers. What every PjrtDevice of the process shares.
//
// Made once by MakeDevices; lives as long as its devices. Any thread (so says the PJRT C API).
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "runtime/device.h"
#include "runtime/pjrt/api.h"

namespace tpu::pjrt {

PJRT_Buffer_Type BufferType(DType dtype);
// StableHLO text as the API takes it; `text` outlives the result.
PJRT_Program ProgramOf(const std::string& text);

// A plugin's own options, "name=value,name=value", as the API takes them; a value is an integer, true, false or a
// string.
class PluginOptions {
 public:
  explicit PluginOptions(const std::string& options);
  PluginOptions(const PluginOptions&) = delete;
  PluginOptions& operator=(const PluginOptions&) = delete;
  const std::vector<PJRT_NamedValue>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, std::string>> texts_;
  std::vector<PJRT_NamedValue> values_;  // point into texts_
};

// A CompileOptionsProto for a program of so many replicas on the platform; `devices`: where each runs, by the plugin's
// ids (may be left to the plugin).
std::string CompileOptionsFor(const std::string& platform, int replicas, absl::Span<const int> devices);

class Client {
 public:
  // `options`: see PluginOptions.
  static absl::StatusOr<std::shared_ptr<Client>> Create(std::shared_ptr<const Api> api, const std::string& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const Api& api() const { return *api_; }
  const std::vector<PJRT_Device*>& devices() const { return devices_; }  // of this process
  const std::string& platform() const { return platform_; }
  const std::string& platform_version() const { return platform_version_; }
  const std::string& compile_options() const { return compile_options_; }  // a CompileOptionsProto
  std::string KindOf(PJRT_Device* device) const;

  // The plugin's own serialisation of the compiled text; empty where it can't serialise.
  absl::StatusOr<std::string> Compile(const std::string& text);
  absl::StatusOr<PJRT_LoadedExecutable*> Load(const std::string& serialized);
  absl::StatusOr<PJRT_LoadedExecutable*> CompileAndLoad(const std::string& text) const;
  // A program that these devices run together, each as one of its replicas.
  absl::StatusOr<PJRT_LoadedExecutable*> CompileAndLoadJoint(const std::string& text,
                                                             absl::Span<PJRT_Device* const> devices) const;
  // Held while the plugin is given a launch of several devices: every device has them in the same order.
  std::mutex& joint_launch() { return joint_launch_; }
  void Destroy(PJRT_LoadedExecutable* executable) const;

  // Waits until `source` may change. A null source: zeros.
  absl::StatusOr<PJRT_Buffer*> Upload(const void* source, const TensorType& type, PJRT_Device* device) const;
  void Destroy(PJRT_Buffer* buffer) const;

 private:
  explicit Client(std::shared_ptr<const Api> api) : api_(std::move(api)) {}
  absl::Status Describe();
  absl::StatusOr<PJRT_LoadedExecutable*> CompileAndLoad(const std::string& text, const std::string& options) const;
  absl::StatusOr<std::string> Serialized(PJRT_LoadedExecutable* executable) const;

  std::shared_ptr<const Api> api_;
  PJRT_Client* client_ = nullptr;
  std::vector<PJRT_Device*> devices_;
  std::string platform_, platform_version_, compile_options_;
  std::mutex joint_launch_;
};

}  // namespace tpu::pjrt
