#!/bin/bash
# Formats, Python lint, layers and sizes. Changes nothing.
#
#   scripts/lint.sh                  seconds
#   scripts/lint.sh tidy [PATH...]   and clang-tidy over these directories or files, else over everything: half a minute
#                                    a file that includes torch or MLIR; needs a build
set -uo pipefail
cd "$(dirname "$0")/.."
venv=${TORCH_TPU_VENV:-.venv}
failed=0

run() {
  echo "lint: $1"
  shift
  "$@" || failed=1
}

mapfile -t sources < <(git ls-files '*.cc' '*.h')
mapfile -t scripts < <(git ls-files '*.sh' .ci/run)
run "clang-format" clang-format-22 --dry-run --Werror "${sources[@]}"
run "ruff" "$venv/bin/ruff" check -q .
run "ruff format" "$venv/bin/ruff" format -q --check .
run "bash" bash -n "${scripts[@]}"
run "layers" "$venv/bin/python" scripts/check_layers.py
if [ "${1:-}" = tidy ]; then
  mapfile -t units < <(git ls-files -- "${@:2}" | grep '\.cc$' | grep -v ^tests/)
  tidy() { printf '%s\n' "${units[@]}" | xargs -P "$(nproc)" -n 1 clang-tidy-22 -p build --quiet; }
  run "clang-tidy" tidy
fi
exit $failed
