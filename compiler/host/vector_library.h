// The C library's vector functions: glibc's libmvec of 2.35 or later, by the x86 vector function ABI.
//
// At most 4 ulp, right at NaN, infinities, zeros and denormals. Looked up once in the process; where they are missing,
// code calls the scalar functions. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace tpu::host {

bool HasVectorLibrary();
// The function that is `name` ("atan2", "atan2f") of `arguments` vectors of `bits` in all, so many lanes each; "" where
// there is none.
std::string VectorFunction(const std::string& name, size_t arguments, unsigned lanes, int bits);
// Its address by that name; nullptr where there is none.
void* VectorFunctionAddress(const std::string& symbol);

}  // namespace tpu::host
