# The torch of the build's Python, as the target torch_wheel: its headers, and the three libraries that are linked.
#
# TorchConfig.cmake is not used: it searches for every library torch was ever built with and runs for seconds.
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util, importlib.metadata as m; print(importlib.util.find_spec('torch').submodule_search_locations[0], m.version('torch'), sep=';')"
  OUTPUT_VARIABLE TORCH_FOUND OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE TORCH_MISSING)
if(TORCH_MISSING)
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE} (pip install torch==2.13.0)")
endif()
list(GET TORCH_FOUND 0 TORCH_DIR)
list(GET TORCH_FOUND 1 TORCH_VERSION)
if(NOT TORCH_VERSION MATCHES "^2\\.13\\.")
  message(FATAL_ERROR "torch ${TORCH_VERSION} found in ${TORCH_DIR}; this project is built against 2.13")
endif()
message(STATUS "torch ${TORCH_VERSION}: ${TORCH_DIR}")

add_library(torch_wheel INTERFACE)
target_include_directories(torch_wheel SYSTEM INTERFACE
  ${TORCH_DIR}/include ${TORCH_DIR}/include/torch/csrc/api/include)
target_compile_definitions(torch_wheel INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
target_link_libraries(torch_wheel INTERFACE
  ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libtorch.so ${TORCH_DIR}/lib/libc10.so)
set(TORCH_PYTHON_LIBRARY ${TORCH_DIR}/lib/libtorch_python.so)
