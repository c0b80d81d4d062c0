#!/bin/bash
# The tests of a built checkout: unit and text tests, Python, operators, examples. Runs them all, says which failed.
#
#   scripts/test.sh          what CI runs too: one sample of every operator, ten minutes' soak, a part on the CPU plugin,
#                            for three TPUs the examples' fragments that compile in five minutes each, for a GPU in two
#   scripts/test.sh full     ten samples, an hour's soak, every Python test on the CPU plugin, every fragment of the
#                            examples for three TPUs and a GPU, and of the operator sweep for one TPU: hours
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/parts.sh
python=${TORCH_TPU_VENV:-.venv}/bin/python
kind=${1:-}
samples=1 soak=600
[ "$kind" = full ] && samples=10 soak=3600
chips=v5e:2x2,v6e:2x2,tpu7x:2x2x1
h100=$(cat tests/support/h100.txtpb)
on_plugin=(env TORCH_TPU_PLUGIN=cpu)
# Most of its time is XLA's compiles, and a third of theirs is what LLVM does to machine code that runs once.
on_plugin_quickly=("${on_plugin[@]}" XLA_FLAGS=--xla_backend_optimization_level=0)

# A cache of its own: results don't depend on what ran before on this machine.
cache=$(mktemp -d)
trap 'kill ${BESIDE[0]:-} 2>/dev/null; rm -rf "$cache"' EXIT
export TORCH_TPU_CACHE=$cache

part "core: unit and text tests" 600 ctest --test-dir build --output-on-failure --timeout 120 -j"$(nproc)"
# Its compiler waits for much, and neither it nor what follows uses two cores.
[ "$kind" = full ] || part_beside "python on the CPU plugin, some" 2400 "${on_plugin_quickly[@]}" "$python" -m pytest \
  tests/python/test_reached_ops.py \
  tests/python/test_{autograd,complex,distances,errors,failures,fragments,lowered_operators,matrices,memory}.py \
  tests/python/test_{offsets,optimizers,padded_sizes,random,ranks,signatures,sizes,streams}.py \
  "tests/python/test_views.py::test_random_programs[0]"
part "python" 1800 bash -o pipefail -c '"$0" -m pytest tests/python | tee build/pytest.log' "$python"
part "distributed" 900 "$python" -m pytest tests/distributed
[ "$kind" = full ] || part_await
# It takes its time whatever else runs, and uses little more than a core.
part_beside "soak" $((soak + 240)) "$python" tests/soak.py --seconds $soak --seed 1
part "operator sweep" $((1500 * samples)) "$python" tests/python/op_sweep.py --output build/op_sweep --samples $samples
if [ "$kind" = full ]; then
  part "python on the CPU plugin" 2400 "${on_plugin[@]}" "$python" -m pytest tests/python
  part "operator sweep on the CPU plugin" 5400 "${on_plugin[@]}" "$python" tests/python/op_sweep.py \
    --output build/op_sweep_plugin --samples 1
fi
for example in digits_cnn char_gpt; do
  part "$example on the CPU plugin" 600 "${on_plugin[@]}" "$python" examples/$example.py --device tpu --smoke
  part "$example --smoke" 300 "$python" examples/$example.py --device tpu --smoke
done
torchrun=$(dirname "$python")/torchrun
fsdp="examples/fsdp_gpt.py --smoke --checkpoint $cache/fsdp_gpt"
part "fsdp_gpt --smoke" 300 bash -c "$torchrun --nproc-per-node 2 $fsdp && $torchrun --nproc-per-node 3 $fsdp --resume"
[ "$kind" = full ] && part "char_gpt --compare on the CPU plugin" 900 "${on_plugin[@]}" "$python" examples/char_gpt.py \
  --compare --steps 20 --batch 2 --report 10
part "char_gpt --compare" 600 "$python" examples/char_gpt.py --compare --steps 20 --batch 2 --report 10
for example in digits_cnn char_gpt; do
  script=(examples/$example.py --device tpu --smoke) seconds=300 gpu_seconds=120 limit=900  # of compiling
  if [ "$kind" = full ]; then
    seconds=7200 gpu_seconds=1440 limit=9000
  elif [ $example = char_gpt ]; then
    script+=(--sample 4)  # each length that it samples at is four more fragments of the same operations
  fi
  # The soak: compilers for other devices use every core, and these programs are the larger ones.
  [ $example = char_gpt ] && part_await
  part "$example for three TPUs" $limit "$python" -m torch_tpu.aot --topology $chips --seconds $seconds \
    --output build/aot/$example "${script[@]}"
  part "$example for a GPU" $limit env TORCH_TPU_PLUGIN_OPTIONS="topology=1x1x1,target_config=$h100" "$python" \
    -m torch_tpu.aot --plugin cuda --topology h100 --seconds $gpu_seconds --output build/aot/${example}_gpu \
    --modules build/aot/$example
done
[ "$kind" = full ] && part "operator sweep for a TPU" 9000 "$python" -m torch_tpu.aot --topology v5e:2x2 --seconds 7200 \
  --output build/aot/op_sweep tests/python/op_sweep.py --in-process --samples 1
parts_end
status=$?
echo "== pytest: $(tail -n 1 build/pytest.log)"
exit $status
