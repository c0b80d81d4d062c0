// Values and launches of tests that run one function on the embedded device and through PJRT (the CPU plugin).
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "compiler/host/host_backend.h"
#include "runtime/host/host_device.h"
#include "runtime/pjrt/pjrt_device.h"

namespace tpu {

using Bytes = std::vector<char>;

inline Device& HostDevice() {
  static Device* device = host::MakeHostDevice(0, 0, host::MakeObjectLoader().release()).release();
  return *device;
}
inline Device& PluginDevice() {
  static Device* device = [] {
    auto devices = pjrt::MakeDevices({.plugin = TORCH_TPU_CPU_PLUGIN, .devices = 1});
    if (!devices.ok()) throw std::runtime_error(devices.status().ToString());
    return devices->front().release();
  }();
  return *device;
}

// Indices are 0 or 1, numbers between 0 and 1: in the domain of all that the tests do. Integers that others may be
// divided by are 1 or 2: division by zero is an error of one device only.
inline Bytes RandomValue(const TensorType& type, bool divisors, std::mt19937& random) {
  Bytes bytes(type.bytes());
  const auto each = [&](auto make) {
    using T = decltype(make());
    for (int64_t i = 0; i < type.elements(); ++i) {
      const T value = make();
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  };
  std::uniform_real_distribution<double> unit(0.1, 0.9);
  switch (type.dtype) {
    case DType::kFloat32:
    case DType::kComplex64:
      for (size_t i = 0; i + 4 <= bytes.size(); i += 4) {
        const float value = static_cast<float>(unit(random));
        std::memcpy(bytes.data() + i, &value, 4);
      }
      break;
    case DType::kFloat64:
      each([&] { return unit(random); });
      break;
    case DType::kBFloat16:
      each([&] { return static_cast<uint16_t>(0x3f00 + random() % 0x70); });
      break;
    case DType::kFloat16:
      each([&] { return static_cast<uint16_t>(0x3800 + random() % 0x300); });
      break;
    default:
      const uint32_t least = divisors && type.dtype != DType::kBool ? 1 : 0;
      for (size_t i = 0; i < bytes.size(); i += SizeOf(type.dtype)) bytes[i] = static_cast<char>(least + random() % 2);
  }
  return bytes;
}

inline double NumberAt(const TensorType& type, const Bytes& bytes, int64_t i) {
  const char* at = bytes.data() + i * SizeOf(type.dtype);
  const auto as = [&](auto zero) {
    std::memcpy(&zero, at, sizeof zero);
    return zero;
  };
  if (type.dtype == DType::kFloat32) return as(float{});
  if (type.dtype == DType::kFloat64) return as(double{});
  if (type.dtype == DType::kBFloat16) {
    const uint32_t bits = static_cast<uint32_t>(as(uint16_t{})) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  uint64_t bits = 0;
  std::memcpy(&bits, at, std::min<size_t>(8, SizeOf(type.dtype)));
  return static_cast<double>(bits);
}

inline absl::StatusOr<std::vector<Bytes>> Run(Device& device, const Program& program,
                                              const std::vector<Bytes>& inputs) {
  auto executable = device.Load(program);
  if (!executable.ok()) return executable.status();
  std::vector<Argument> arguments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    auto buffer = device.MakeValue(program.inputs[i], inputs[i].data());
    if (!buffer.ok()) return buffer.status();
    arguments.push_back({.buffer = *buffer});
  }
  std::vector<BufferRef> outputs(program.outputs.size());
  if (auto s = (*executable)->Launch(absl::MakeSpan(arguments), absl::MakeSpan(outputs), nullptr); !s.ok()) return s;
  std::vector<Bytes> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    results.emplace_back(program.outputs[i].bytes());
    if (auto s = device.CopyToHost(outputs[i], results.back().data(), results.back().size()); !s.ok()) return s;
  }
  return results;
}

inline void Compare(const TensorType& type, const Bytes& a, const Bytes& b) {
  const bool half = type.dtype == DType::kBFloat16 || type.dtype == DType::kFloat16;
  for (int64_t i = 0; i < type.elements(); ++i) {
    const double x = NumberAt(type, a, i), y = NumberAt(type, b, i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (x == y) continue;
    ASSERT_NEAR(x, y, (half ? 1e-2 : 2e-6) * std::max(1.0, std::abs(x)))
        << "element " << i << " of " << type.ToString();
  }
}

}  // namespace tpu
