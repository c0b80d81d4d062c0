#!/bin/bash
# Every test of a built checkout: unit tests, IR tests, Python, examples. Runs them all, then says which failed.
set -uo pipefail
cd "$(dirname "$0")/.."
venv=${TORCH_TPU_VENV:-.venv}
python=$venv/bin/python
failed=()

run() {
  echo "== $1"
  local start=$SECONDS
  "${@:2}" || failed+=("$1")
  echo "== $1: $((SECONDS - start)) s"
}

# A cache of its own: results don't depend on what ran before on this machine.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export TORCH_TPU_CACHE=$cache

run "core (ctest)" ctest --test-dir build --output-on-failure -j"$(nproc)"
run "python" "$python" -m pytest tests/python
run "operator sweep" "$python" tests/python/op_sweep.py --output build/op_sweep
run "examples: digits_cnn" "$python" examples/digits_cnn.py --device tpu
run "examples: char_gpt" "$python" examples/char_gpt.py --device tpu --smoke
run "examples: char_gpt, cpu and tpu" "$python" examples/char_gpt.py --compare --steps 20 --batch 2 --report 10

if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "all passed"
