#!/bin/bash
# Makes a checkout ready: Debian packages, .venv, and the build. Does only what is missing.
#
#   scripts/setup.sh environment    packages and .venv
#   scripts/setup.sh build          ... and the extension module
#   scripts/setup.sh test           ... and the unit tests and tools
#   scripts/setup.sh bench          ... and the benchmarks
#
# TORCH_TPU_VENV names another virtual environment than .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
goal=${1:-build}
venv=${TORCH_TPU_VENV:-.venv}

debian_packages() {
  local wanted missing=() root="" name
  wanted=$(sed 's/#.*//' scripts/debian-packages.txt)
  for name in $wanted; do
    dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" -ne 0 ]; then
    root="sudo DEBIAN_FRONTEND=noninteractive"
    if ! command -v sudo >/dev/null; then
      echo "These Debian packages are missing, and there is no sudo here. As root: apt-get update &&" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  $root apt-get update -q
  $root apt-get install -qy --no-install-recommends "${missing[@]}"
}

environment() {
  # An environment without pip is one that was begun before python3.11-venv was there.
  "$venv/bin/python" -c 'import pip' 2>/dev/null || python3.11 -m venv "$venv"
  if ! cmp -s requirements.txt "$venv/requirements.installed"; then
    echo "installing Python packages into $venv (some minutes)"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -r requirements.txt $(torch_index)
    cp requirements.txt "$venv/requirements.installed"
  fi
  "$venv/bin/python" scripts/develop.py
}

torch_index() {
  # The CPU build of torch is a tenth of the default one. A configured mirror is left as it is, and an index that can't
  # be reached is not named: pip would ask it again and again for every package.
  local index=https://download.pytorch.org/whl/cpu
  if [ -z "${PIP_INDEX_URL:-}${PIP_EXTRA_INDEX_URL:-}" ] &&
    ! "$venv/bin/python" -m pip config list | grep -q index-url &&
    "$venv/bin/python" -c "import urllib.request; urllib.request.urlopen('$index/', timeout=10)" 2>/dev/null; then
    echo --extra-index-url $index
  fi
}

build() {
  export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD CCACHE_SLOPPINESS=pch_defines,time_macros
  local python
  python=$(readlink -f "$venv/bin")/python
  if [ ! -f build/build.ninja ] || ! grep -q "Python_EXECUTABLE:[^=]*=$python\$" build/CMakeCache.txt; then
    cmake -G Ninja -B build -S . -DPython_EXECUTABLE="$python"
  fi
  cmake --build build -j"$(nproc)" --target "$@"
}

debian_packages
environment
case $goal in
  environment) ;;
  build) build torch_tpu_C ;;
  test | bench) build all ;;
  *) echo "unknown goal: $goal" >&2; exit 2 ;;
esac
