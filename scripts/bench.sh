#!/bin/bash
# Every measurement of bench/, each interleaved with its peers; prints the ratios.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${TORCH_TPU_VENV:-.venv}/bin/python
for program in bench/*.py; do
  echo "== $program"
  "$python" "$program"
done
