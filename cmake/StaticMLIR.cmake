# MLIR and LLVM from their static archives, with none of their symbols visible outside what links them.
#
# LLVM's exported targets name the shared libLLVM; linking those beside the archives would give two copies of LLVM in
# one process, so `LLVM` is kept off the link line.
find_package(MLIR 22.1 REQUIRED CONFIG HINTS /usr/lib/llvm-22/lib/cmake/mlir)
list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
include(TableGen)
include(AddLLVM)
include(AddMLIR)

# `tpu_mlir`: headers and archives. The linker takes from the archives what is referenced, in whatever order they come.
find_program(LLVM_CONFIG_EXE NAMES llvm-config HINTS ${LLVM_TOOLS_BINARY_DIR} REQUIRED NO_DEFAULT_PATH)
execute_process(COMMAND ${LLVM_CONFIG_EXE} --link-static --libfiles x86 orcjit passes
  OUTPUT_VARIABLE llvm_archives OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(llvm_archives)
file(GLOB mlir_archives ${LLVM_LIBRARY_DIR}/libMLIR*.a)
list(FILTER mlir_archives EXCLUDE REGEX "libMLIR(CAPI|Test)|TestPasses|libMLIR.*Lsp")
add_library(tpu_mlir INTERFACE)
target_include_directories(tpu_mlir SYSTEM INTERFACE ${MLIR_INCLUDE_DIRS} ${LLVM_INCLUDE_DIRS})
target_compile_options(tpu_mlir INTERFACE -Wno-comment)
find_library(ZLIB_ARCHIVE libz.a REQUIRED)
find_library(ZSTD_ARCHIVE libzstd.a REQUIRED)
target_link_libraries(tpu_mlir INTERFACE
  ${mlir_archives} ${llvm_archives} ${ZLIB_ARCHIVE} ${ZSTD_ARCHIVE} ${CMAKE_DL_LIBS})
target_link_options(tpu_mlir INTERFACE -Wl,--exclude-libs,ALL)
