#!/bin/bash
# Builds the core's tests (runtime and conformance; no compiler, no torch) with the sanitizers, and runs them.
#
#   scripts/sanitize.sh                      address,undefined and then thread
#   scripts/sanitize.sh thread               one of them
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD CCACHE_SLOPPINESS=pch_defines,time_macros
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1

sanitize() {
  local tree=build-${1%%,*}
  [ -f "$tree/build.ninja" ] ||
    cmake -G Ninja -B "$tree" -S . -DTORCH_TPU_SANITIZE="$1" -DTORCH_TPU_WITH_COMPILER=OFF >/dev/null || return 1
  cmake --build "$tree" -j"$(nproc)" && ctest --test-dir "$tree" --output-on-failure --timeout 200 -j"$(nproc)"
}
[ $# -gt 0 ] || set -- address,undefined thread
for kind in "$@"; do
  export -f sanitize
  part "sanitizer: $kind" 900 bash -c "sanitize $kind"
done
parts_end
