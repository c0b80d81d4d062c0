# MLIR and LLVM from their static archives, with none of their symbols visible outside what links them.
#
# LLVM's exported targets name the shared libLLVM; linking those beside the archives would give two copies of LLVM in
# one process, so `LLVM` is kept off the link line (tpu_link_mlir).
find_package(MLIR 22.1 REQUIRED CONFIG HINTS /usr/lib/llvm-22/lib/cmake/mlir)
list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)
