"""Makes the checkout's python/ directory the installed torch_tpu of this Python, entry points included.

    python scripts/develop.py            from the Makefile, after torch is installed

Writes python/torch_tpu.egg-info (metadata from pyproject.toml) and a .pth file in site-packages. `--metadata` writes
the metadata only: then PYTHONPATH=python is enough.
"""

import pathlib
import sys
import sysconfig
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def write(path, text):
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = ROOT / "python" / "torch_tpu.egg-info"
    write(info / "PKG-INFO", f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    entries = ""
    for group, names in project["entry-points"].items():
        entries += f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items()) + "\n"
    write(info / "entry_points.txt", entries)
    if "--metadata" not in sys.argv:
        write(pathlib.Path(sysconfig.get_paths()["purelib"]) / "torch_tpu.pth", f"{ROOT / 'python'}\n")


if __name__ == "__main__":
    main()
