#!/bin/bash
# The measurements of bench/, each interleaved with its peers; prints the ratios. Arguments go to bench/run.py.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${TORCH_TPU_VENV:-.venv}/bin/python" bench/run.py "$@"
