# The PJRT C API's header, from the Python package xla-cpu-pjrt; nothing of it is kept here. Without it the devices
# behind PJRT plugins (runtime/pjrt) are left out of the build.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c
    "import importlib.util as u; print(u.find_spec('xla_plugins.xla_cpu_pjrt').submodule_search_locations[0], end='')"
  OUTPUT_VARIABLE PJRT_PACKAGE RESULT_VARIABLE PJRT_MISSING ERROR_QUIET)
if(PJRT_MISSING OR NOT EXISTS ${PJRT_PACKAGE}/include/pjrt_c_api.h)
  message(WARNING "xla-cpu-pjrt is not installed for ${Python_EXECUTABLE} (pip install xla-cpu-pjrt==0.0.1): "
    "this build has no devices behind PJRT plugins")
  set(PJRT_INCLUDE_DIR "")
else()
  set(PJRT_INCLUDE_DIR ${PJRT_PACKAGE}/include)
  set(PJRT_CPU_PLUGIN ${PJRT_PACKAGE}/xla_cpu_pjrt.so)
  message(STATUS "PJRT C API: ${PJRT_INCLUDE_DIR}")
endif()
