// The devices that the conformance suite (device_test.cc) runs on. Each adds a file that registers itself.
//
// A device brings the few programs that the suite runs, in its own format. What it cannot do by its nature it excludes
// by test name, with the reason; an exclusion that names no test fails the suite.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace tpu::conformance {

struct DeviceCase {
  std::string name;
  // memory_bytes: the device's memory size.
  std::function<std::unique_ptr<Device>(int64_t memory_bytes)> make;
  // f32[n] + f32[n] -> f32[n], which may be written over the second input.
  std::function<Program(int64_t n)> add;
  // f32[n], i64[m] -> f32[m]: elements of the first by index; an index out of range is an error.
  std::function<Program(int64_t n, int64_t m)> take;
  // f32[n] -> the input unchanged, and the same once more.
  std::function<Program(int64_t n)> identity;
  // f32[n] -> node 3's result for it, f32[n], by the caller's runner.
  std::function<Program(int64_t n)> call;
  std::map<std::string, std::string> excluded;  // test name -> reason
};

std::vector<DeviceCase>& Cases();
bool Register(DeviceCase device_case);

}  // namespace tpu::conformance
