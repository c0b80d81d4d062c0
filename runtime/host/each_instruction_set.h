// Includes TPU_KERNELS, a file of functions that are marked TPU_LANES and use lanes.h, in a namespace of each
// instruction set. Included, in a namespace of its own, once for each such file.
namespace avx2 {
using namespace host::avx2;
#define TPU_LANES TPU_AVX2
#include TPU_KERNELS
#undef TPU_LANES
}  // namespace avx2

namespace avx512 {
using namespace host::avx512;
#define TPU_LANES TPU_AVX512
#include TPU_KERNELS
#undef TPU_LANES
}  // namespace avx512
