#!/bin/bash
# Every test of a built checkout: unit and text tests, Python, operators, examples. Runs them all, says which failed.
#
#   scripts/test.sh          the sweep draws ten samples of every operator
#   scripts/test.sh quick    ... one (CI)
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh
python=${TORCH_TPU_VENV:-.venv}/bin/python
samples=10
[ "${1:-}" = quick ] && samples=1

# A cache of its own: results don't depend on what ran before on this machine.
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
export TORCH_TPU_CACHE=$cache

part "core: unit and text tests" 600 ctest --test-dir build --output-on-failure --timeout 120 -j"$(nproc)"
part "python" 1200 bash -o pipefail -c '"$0" -m pytest tests/python | tee build/pytest.log' "$python"
part "distributed" 600 "$python" -m pytest tests/distributed
part "operator sweep" 2400 "$python" tests/python/op_sweep.py --output build/op_sweep --samples $samples
part "operators on the CPU plugin" 600 env TORCH_TPU_PLUGIN=cpu TORCH_TPU_CACHE="$cache/plugin" \
  "$python" -m pytest tests/python/test_reached_ops.py
part "soak" 300 "$python" tests/soak.py --seconds 60 --seed 1
part "digits_cnn for v5e" 300 "$python" -m torch_tpu.aot --topology v5e:2x2 --output build/aot/digits_cnn \
  examples/digits_cnn.py --device tpu --smoke
part "digits_cnn on the CPU plugin" 300 env TORCH_TPU_PLUGIN=cpu "$python" examples/digits_cnn.py --device tpu --smoke
part "digits_cnn --smoke" 300 "$python" examples/digits_cnn.py --device tpu --smoke
part "char_gpt --smoke" 300 "$python" examples/char_gpt.py --device tpu --smoke
torchrun=$(dirname "$python")/torchrun
fsdp="examples/fsdp_gpt.py --smoke --checkpoint $cache/fsdp_gpt"
part "fsdp_gpt --smoke" 300 bash -c "$torchrun --nproc-per-node 2 $fsdp && $torchrun --nproc-per-node 3 $fsdp --resume"
part "char_gpt --compare" 600 "$python" examples/char_gpt.py --compare --steps 20 --batch 2 --report 10
parts_end
status=$?
echo "== pytest: $(tail -n 1 build/pytest.log)"
exit $status
