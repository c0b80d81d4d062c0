// Which build of the compiler this is: part of every cache key. Any thread.
#pragma once

#include <string>

namespace tpu {

// A hash of the bytes of the library that holds the compiler: another build may compile the same fragment otherwise.
const std::string& BuildId();

}  // namespace tpu
