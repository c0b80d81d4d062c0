"""python -m torch_tpu.aot --topology v5e:2x2 SCRIPT [ARGS]: compiles a program for TPUs that this machine has not.

The script runs on the embedded device. Every distinct fragment that it recorded is written as StableHLO and compiled by
libtpu for each topology, in a process of its own (a bad module can abort the plugin). The report says of each: compiles
or why not, memory, floating-point operations, bytes, the time that the chip's limits allow at best, donated bytes.

    --topology A,B     v4:2x2x1, v5e:2x2, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1, ...
    --output DIR       StableHLO of each fragment, report.json, report.html (default: torch_tpu_aot)
    --modules DIR      compiles the *.mlir files of DIR instead of running a script
"""

import argparse
import html
import json
import os
import pathlib
import queue
import runpy
import subprocess
import sys
import threading

# Of one chip, from its data sheet: bf16 operations a second, bytes a second of its memory, and its bytes.
CHIPS = {
    "v4": (275e12, 1228e9, 32 << 30),
    "v5e": (197e12, 819e9, 16 << 30),
    "v5p": (459e12, 2765e9, 95 << 30),
    "v6e": (918e12, 1640e9, 32 << 30),
    "tpu7x": (2307e12, 7380e9, 192 << 30),
}
SECONDS_PER_MODULE = 300


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.aot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--plugin", help="path of the compiler (default: libtpu)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("torch_tpu_aot"))
    parser.add_argument("--modules", type=pathlib.Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(options.plugin, options.topology)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.modules:
        fragments = read_modules(options.modules)
    elif options.script:
        fragments = record(options.script, options.arguments, options.output)
    else:
        parser.error("a SCRIPT or --modules")
    plugin = options.plugin or libtpu()
    results = {t: compile_all(plugin, t, fragments) for t in options.topology.split(",")}
    return report(fragments, results, options.output)


def libtpu():
    from torch_tpu import _plugins

    path = _plugins.find("libtpu")
    if path is None:
        sys.exit("torch_tpu.aot: libtpu is not installed (pip install libtpu)")
    return path


def record(script, arguments, output):
    """Runs the script; its fragments, each with the path of its StableHLO or the reason why it has none."""
    import torch

    from torch_tpu import _C

    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leave:
        if leave.code not in (None, 0):
            print(f"torch_tpu.aot: the script left with {leave.code}; what it recorded is compiled", file=sys.stderr)
    torch.tpu.synchronize()
    fragments = []
    for number, fragment in enumerate(sorted(_C.fragments_as_stablehlo(), key=lambda f: -f["runs"])):
        text = fragment.pop("text")
        if not text and not fragment["error"]:
            continue  # computes nothing: its outputs are its inputs
        fragment["name"] = f"{number:04} {fragment['summary']}"
        if text:
            fragment["path"] = str(output / f"fragment{number:04}.mlir")
            pathlib.Path(fragment["path"]).write_text(text)
        fragments.append(fragment)
    return fragments


def read_modules(directory):
    return [
        {"name": path.stem, "path": str(path), "error": "", "runs": 1, "operations": 0, "where": ""}
        for path in sorted(directory.glob("*.mlir"))
    ]


# ---- compiling, in a process of its own --------------------------------------------------------------------------


def work(plugin, topology):
    """Reads paths from stdin, writes one line of JSON for each."""
    from torch_tpu import _C

    target = _C.Topology(plugin, topology)
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            result = target.compile(pathlib.Path(line.strip()).read_text())
            # The plugin's figures of the whole; those of single operands are left out.
            result["costs"] = {name: cost for name, cost in result["costs"].items() if "{" not in name}
        except Exception as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)
    return 0


class Worker:
    def __init__(self, plugin, topology):
        # libtpu asks Google's metadata server, for minutes, unless it is told not to.
        environment = os.environ | {
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_LOG_DIR": "disabled",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu.aot", "--worker", "--plugin", plugin, "--topology", topology],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = queue.Queue()
        self.complaints = []
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=lambda: self.complaints.extend(self.process.stderr), daemon=True).start()
        self.failure = self._answer()  # None: ready
        self.failure = None if self.failure == "ready" else self.failure["error"]

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def _answer(self):
        try:
            line = self.lines.get(timeout=SECONDS_PER_MODULE)
        except queue.Empty:
            self.process.kill()
            return {"error": f"no answer within {SECONDS_PER_MODULE} s"}
        if line is None:
            code = self.process.wait()
            said = [c.strip() for c in self.complaints if c.strip() and "I0000" not in c]
            return {"error": f"the compiler ended with status {code}: {' | '.join(said[-3:])}"}
        return line if line == "ready" else json.loads(line)

    def compile(self, path):
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        return self._answer()

    def alive(self):
        return self.process.poll() is None

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compile_all(plugin, topology, fragments):
    results, worker = [], None
    for fragment in fragments:
        if fragment["error"]:
            results.append({"error": fragment["error"]})
            continue
        if worker is None or not worker.alive():
            worker = Worker(plugin, topology)
            if worker.failure:
                return [{"error": worker.failure} for _ in fragments]
        results.append(worker.compile(fragment["path"]))
    if worker and worker.alive():
        worker.close()
    return results


# ---- the report ---------------------------------------------------------------------------------------------------


def figures(topology, result):
    """What the tables show of one compiled module."""
    flops, memory_speed, _ = CHIPS.get(topology.split(":")[0], (None, None, None))
    costs = result["costs"]
    operations, moved = costs.get("flops", 0.0), costs.get("bytes accessed", 0.0)
    peak = result["peak_bytes"] or sum(result[k] for k in ("argument_bytes", "output_bytes", "temporary_bytes"))
    best = max(operations / flops, moved / memory_speed) * 1e6 if flops else None
    return {
        "HBM peak": peak,
        "FLOPs": operations,
        "bytes": moved,
        "roofline us": best,
        "donated": result["donated_bytes"],
    }


def size(n):
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.4g} {unit}"
        n /= 1024
    return f"{n:.4g} GiB"


def row(topology, fragment, result):
    head = [fragment["name"][:60], topology, str(fragment["operations"] or ""), str(fragment["runs"])]
    if result.get("error"):
        return [*head, "NO: " + result["error"].splitlines()[0][:160], "", "", "", "", ""]
    f = figures(topology, result)
    time = "" if f["roofline us"] is None else f"{f['roofline us']:.2f}"
    return [*head, "yes", size(f["HBM peak"]), f"{f['FLOPs']:.3g}", size(f["bytes"]), time, size(f["donated"])]


HEADER = ["fragment", "chip", "ops", "runs", "compiles", "HBM peak", "FLOPs", "bytes", "roofline us", "donated"]


def report(fragments, results, output):
    rows = [row(t, f, r) for t, found in results.items() for f, r in zip(fragments, found, strict=True)]
    summary = [summarise(t, fragments, found) for t, found in results.items()]
    widths = [max(len(r[i]) for r in [HEADER, *rows]) for i in range(len(HEADER))]
    for cells in [HEADER, *rows]:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())
    print(*summary, sep="\n")
    (output / "report.json").write_text(json.dumps({"fragments": fragments, "results": results}, indent=1))
    (output / "report.html").write_text(page(summary, rows))
    print(f"{output / 'report.html'}")
    return int(any(r.get("error") for found in results.values() for r in found))


def summarise(topology, fragments, results):
    good = [(f, figures(topology, r)) for f, r in zip(fragments, results, strict=True) if not r.get("error")]
    line = f"{topology}: {len(good)} of {len(results)} fragments compile"
    if not good:
        return line
    operations = sum(f["runs"] * g["FLOPs"] for f, g in good)
    line += f", largest HBM peak {size(max(g['HBM peak'] for _, g in good))}, {operations:.3g} FLOPs in all runs"
    if good[0][1]["roofline us"] is not None:
        line += f", at best {sum(f['runs'] * g['roofline us'] for f, g in good) / 1e3:.3g} ms"
    return line


def page(summary, rows):
    def cells(kind, values):
        return "<tr>" + "".join(f"<{kind}>{html.escape(v)}</{kind}>" for v in values) + "</tr>"

    style = "body{font:14px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:3px 9px;text-align:left;"
    style += (
        "border-bottom:1px solid #ddd;font-variant-numeric:tabular-nums}th{background:#f4f4f4;position:sticky;top:0}"
    )
    body = "".join(f"<p>{html.escape(line)}</p>" for line in summary)
    table = cells("th", HEADER) + "".join(cells("td", r) for r in rows)
    return (
        f"<!doctype html><meta charset=utf-8><title>torch_tpu.aot</title><style>{style}</style>"
        f"<h1>Compiled ahead of time</h1>{body}<table>{table}</table>"
    )


if __name__ == "__main__":
    sys.exit(main())
