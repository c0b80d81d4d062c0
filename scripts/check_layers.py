"""Holds the table of layers: what each directory may include, where each library is at home, and how big a file may be.

python scripts/check_layers.py    exits 1 and names every offence
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Directory -> the project directories it may include besides its own. A directory is matched by its longest prefix.
# Devices and backends are not listed: rules() finds them.
LAYERS = {
    "runtime": [],
    "compiler": ["runtime"],
    "compiler/passes": ["runtime", "compiler"],
    "jit": ["runtime", "compiler"],
    "dispatcher": ["runtime", "compiler", "jit"],
    "collectives": ["runtime", "runtime/host"],
    "collectives/c10d": ["runtime", "compiler", "jit", "dispatcher", "collectives"],
    "bindings": ["runtime", "compiler", "jit", "dispatcher", "collectives", "collectives/c10d"],
}
# Files that may name concrete devices and backends.
COMPOSITION_ROOTS = {"bindings/composition.cc", "bindings/aot.cc", "tools/tpu-opt/main.cc"}
# Library -> its homes.
HOMES = {
    r"(ATen|c10|torch)/": ["dispatcher", "collectives/c10d", "bindings"],
    r"(mlir|llvm)/": ["compiler"],
    r".*pjrt_c_api\.h": ["runtime/pjrt"],
    r"pybind11/|Python\.h": ["bindings"],
}
MAX_LINES = 600
GETENV_HOME = "runtime/flags.cc"
LENGTH_REASON = re.compile(r"[Ll]onger than .* because")
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]')


def rules(paths):
    """A folder NAME of runtime with a NAME_device.h is a device, one of compiler with a NAME_backend.h a backend.
    Devices don't know each other, nor do backends; a backend knows the device whose programs it writes."""
    folders = {str(pathlib.PurePath(path).parent) for path in paths}

    def found(layer, kind):
        return [f for f in sorted(folders) if f"{f}/{f.removeprefix(layer + '/')}_{kind}.h" in paths]

    LAYERS.update({device: ["runtime"] for device in found("runtime", "device")})
    for backend in found("compiler", "backend"):
        written = {d for p in paths if p.startswith(backend + "/") for d in included_devices(p)}
        LAYERS[backend] = ["runtime", "compiler", "compiler/passes", *written]
        if len(written) > 1:
            yield f"{backend}: includes several devices: {', '.join(sorted(written))}"


def included_devices(path):
    layers = (layer_of(match[1]) for match in map(INCLUDE.match, (ROOT / path).read_text().splitlines()) if match)
    return {layer for layer in layers if layer.startswith("runtime/")}


def layer_of(path):
    parts = path.split("/")[:-1]
    while parts and "/".join(parts) not in LAYERS:
        parts.pop()
    return "/".join(parts)


def offences(path, text):
    layer = layer_of(path)
    lines = text.splitlines()
    if len(lines) > MAX_LINES and not LENGTH_REASON.search(" ".join(lines[:12])):
        yield f"{path}: {len(lines)} lines; over {MAX_LINES}, 'Longer than a file should be because ...' at its top"
    if "getenv(" in text and path != GETENV_HOME:
        yield f"{path}: getenv belongs in {GETENV_HOME}"
    for number, line in enumerate(lines, 1):
        if not (match := INCLUDE.match(line)):
            continue
        included = match[1]
        target = layer_of(included)
        if target and target != layer and target not in LAYERS[layer] and path not in COMPOSITION_ROOTS:
            yield f"{path}:{number}: {layer} may not include {included}"
        for library, homes in HOMES.items():
            if re.match(library, included) and not path.startswith(tuple(home + "/" for home in homes)):
                yield f"{path}:{number}: {included} is at home in {', '.join(homes)}"


def main():
    listed = subprocess.run(["git", "ls-files", "*.cc", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = listed.stdout.split()
    found = list(rules(set(paths)))
    for path in paths:
        if layer_of(path):
            found += offences(path, (ROOT / path).read_text())
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
