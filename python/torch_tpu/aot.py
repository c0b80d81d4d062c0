"""python -m torch_tpu.aot --topology v5e:2x2 SCRIPT [ARGS]: compiles a program for TPUs that this machine has not.

The script runs on the embedded device. Every distinct fragment that it recorded is written as StableHLO and compiled by
libtpu for each topology, in processes of their own (a bad module can abort the plugin). The report says of each:
compiles or why not, memory, floating-point operations, bytes, the time that the chip's limits allow at best, donated
bytes.

    --topology A,B     v4:2x2x1, v5e:2x2, v5p:2x2x1, v6e:2x2, tpu7x:2x2x1, ...
    --output DIR       StableHLO of each fragment, report.json, report.html (default: torch_tpu_aot)
    --modules DIR      compiles the *.mlir files of DIR instead of running a script; one whose module says
                       mhlo.num_replicas = N for N of the topology's devices together
    --jobs N           compilers at a time (default: one a core)
    --seconds S        compiles what it can in S seconds: a sample of the fragments
"""

import argparse
import html
import json
import os
import pathlib
import queue
import re
import runpy
import subprocess
import sys
import threading
import time

# Of one chip, from its data sheet: bf16 operations a second, bytes a second of its memory, and its bytes.
CHIPS = {
    "v4": (275e12, 1228e9, 32 << 30),
    "v5e": (197e12, 819e9, 16 << 30),
    "v5p": (459e12, 2765e9, 95 << 30),
    "v6e": (918e12, 1640e9, 32 << 30),
    "tpu7x": (2307e12, 7380e9, 192 << 30),
}
SECONDS_PER_MODULE = 900


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m torch_tpu.aot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topology", default="v5e:2x2")
    parser.add_argument("--plugin", default="libtpu", help="the compiler: libtpu, cuda or a path")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("torch_tpu_aot"))
    parser.add_argument("--modules", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="?")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.worker:
        return work(options.plugin)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.modules:
        fragments = read_modules(options.modules)
    elif options.script:
        fragments = record(options.script, options.arguments, options.output)
    else:
        parser.error("a SCRIPT or --modules")
    results = compile_all(
        compiler(options.plugin), options.topology.split(","), fragments, options.jobs, options.seconds
    )
    return report(fragments, results, options.output)


def compiler(plugin):
    from torch_tpu import _plugins

    if plugin not in _plugins.NAMED:
        return plugin
    path = _plugins.find(plugin)
    if path is None:
        sys.exit(f"torch_tpu.aot: {plugin} is not installed ({_plugins.NAMED[plugin][2]})")
    return path


def record(script, arguments, output):
    """Runs the script; its fragments, each with the path of its StableHLO or the reason why it has none."""
    os.environ["TORCH_TPU_KNOWN_OPS"] = str(2**31 - 1)  # none is given up before it is written
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


# ---- compiling, in processes of their own ------------------------------------------------------------------------


def work(plugin):
    """Reads lines "topology<TAB>path" from stdin, writes one line of JSON for each."""
    from torch_tpu import _C

    targets = {}
    for line in sys.stdin:
        topology, path = line.rstrip("\n").split("\t")
        try:
            if topology not in targets:
                targets[topology] = _C.Topology(plugin, topology)
            text = pathlib.Path(path).read_text()
            replicas = re.search(r"mhlo.num_replicas = (\d+)", text)
            result = targets[topology].compile(text, int(replicas[1]) if replicas else 1)
            # The plugin's figures of the whole; those of single operands are left out.
            result["costs"] = {name: cost for name, cost in result["costs"].items() if "{" not in name}
        except Exception as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)
    return 0


class Worker:
    """A process that compiles one module after the other; a new one when it has died of a module."""

    def __init__(self, plugin):
        self.plugin = plugin
        self.process = None

    def _start(self):
        # libtpu asks Google's metadata server, for minutes, unless it is told not to.
        environment = os.environ | {
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_LOG_DIR": "disabled",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torch_tpu.aot", "--worker", "--plugin", self.plugin],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = queue.Queue()
        self.complaints = []
        threading.Thread(target=self._read, args=(self.process, self.lines), daemon=True).start()
        threading.Thread(target=self.complaints.extend, args=(self.process.stderr,), daemon=True).start()

    @staticmethod
    def _read(process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def compile(self, topology, path):
        if self.process is None or self.process.poll() is not None:
            self._start()
        try:
            self.process.stdin.write(f"{topology}\t{path}\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=SECONDS_PER_MODULE)
        except BrokenPipeError:
            line = None
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            return {"error": f"no answer within {SECONDS_PER_MODULE} s"}
        if line is not None:
            return json.loads(line)
        code = self.process.wait()
        said = [c.strip() for c in self.complaints if c.strip() and "I0000" not in c]
        return {"error": f"the compiler ended with status {code}: {' | '.join(said[-3:])}"}

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()


def compile_all(plugin, topologies, fragments, jobs, seconds):
    """By topology the result for each fragment: figures, an error, that the time was up before its turn, or why it is
    left to the host (what its lowering said: on the chip such operations are host kernels, counted by name)."""
    results = {t: [{"host": f["error"]} if f["error"] else {"skipped": True} for f in fragments] for t in topologies}
    waiting = queue.SimpleQueue()
    for number in in_turn(len(fragments)):
        for topology in topologies:
            if not fragments[number]["error"]:
                waiting.put((topology, number))
    deadline = time.monotonic() + seconds if seconds else None

    def run():
        worker = Worker(plugin)
        while deadline is None or time.monotonic() < deadline:
            try:
                topology, number = waiting.get_nowait()
            except queue.Empty:
                break
            start = time.monotonic()
            result = worker.compile(topology, fragments[number]["path"])
            results[topology][number] = result | {"seconds": time.monotonic() - start}
            said = f"{topology:12} {time.monotonic() - start:6.1f} s  {fragments[number]['name']}"
            print(said + ("  FAILED" if "error" in result else ""), file=sys.stderr, flush=True)
        worker.close()

    threads = [threading.Thread(target=run) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def in_turn(count):
    """0 .. count-1 so that those before any point are spread over all: a sample, when the time is up."""
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits))
    return [i for i in reversed_bits if i < count]


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
    if result.get("skipped"):
        return [*head, "not tried", "", "", "", "", ""]
    if result.get("host"):
        return [*head, "on the host: " + result["host"].splitlines()[0][:160], "", "", "", "", ""]
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
    tried = [(f, r) for f, r in zip(fragments, results, strict=True) if not r.get("skipped") and not r.get("host")]
    on_host = sum(bool(r.get("host")) for r in results)
    skipped = sum(bool(r.get("skipped")) for r in results)
    good = [(f, figures(topology, r)) for f, r in tried if not r.get("error")]
    line = f"{topology}: {len(good)} of {len(tried)} fragments compile"
    if skipped:
        line += f" ({skipped} not tried: the time was up)"
    if on_host:
        line += f", {on_host} run on the host"
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
