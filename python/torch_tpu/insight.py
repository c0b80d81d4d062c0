"""torch.tpu: what happened. metrics() counts, explain() tells."""

from torch_tpu import _C


def metrics():
    """Counters since the start of the process or the last reset_metrics(), by name."""
    return dict(_C.counters())


def reset_metrics():
    _C.reset_metrics()


def wait_for_compiles():
    """Blocks until nothing is left to compile (tests, benchmarks)."""
    _C.wait_for_compiles()


def explain():
    """A report of fragments (with the time they took since the process began), cuts (with the line that forced each),
    compiles, cache hits and host kernels.

    Print it, or show it in a notebook; `.counters`, `.fragments`, `.cuts`, `.compiles`, `.host_kernels` (calls by
    operator; with lines in `.host_kernel_lines`), `.uncaptured_graphs` are plain data: of fragments, `runs` and
    `milliseconds` are lists by tier, `tuning` is what tier 2 has chosen ("" for the untuned program), `decisions` are
    the candidates that were measured, in milliseconds, and `finished` says that none is left; `kernels` are the parts
    of the compiled program, with the milliseconds they took in all of `launches`, those of the fragment's launches
    that were timed so (one of 16, here or in an earlier process; none on devices that do not tell), and the bytes of
    their operands and results. `.clusters` are fragments that always followed one another and were compiled as one:
    `before` and `after` are milliseconds.
    """
    return Explanation(
        metrics(),
        _C.fragments(),
        _C.clusters(),
        _C.cuts(),
        _C.compiles(),
        _C.host_kernels(),
        _C.uncaptured_graphs(),
    )


class Explanation:
    """What explain() found at the moment it was called."""

    def __init__(self, counters, fragments, clusters, cuts, compiles, host_kernels, uncaptured_graphs):
        self.counters = counters
        self.fragments = sorted(fragments, key=lambda x: -sum(x["milliseconds"]))
        self.clusters = sorted(clusters, key=lambda x: -x["followed"])
        self.cuts = cuts
        self.compiles = compiles
        self.host_kernel_lines = sorted(host_kernels, key=lambda item: -item[0])
        self.host_kernels = {}
        for count, name, _ in self.host_kernel_lines:
            self.host_kernels[name] = self.host_kernels.get(name, 0) + count
        self.uncaptured_graphs = dict(sorted(uncaptured_graphs.items(), key=lambda item: -item[1]))

    def _kernels(self):
        """Rows of the report: kernels by their share of all compiled launches, where they were timed."""
        found = []
        for x in self.fragments:
            runs = x["runs"][1]
            for k in x["kernels"]:
                found.append((k["milliseconds"] / k["launches"], runs, k, x["summary"]))
        total = sum(each * runs for each, runs, _, _ in found) or 1
        found.sort(key=lambda row: -row[0] * row[1])
        return [
            (
                f"{each * runs / total:.1%}",
                f"{each:.3f} ms",
                f"{k['bytes'] / max(each, 1e-6) / 1e6:.1f}",
                k["kernel"],
                summary,
            )
            for each, runs, k, summary in found
            if runs
        ]

    def _sections(self, limit=20):
        """(title, header, rows) for each part of the report."""
        c = self.counters
        recorded, launched = c["recorded_ops"], c["fragments"]
        families = f" ({c['fragment_families']} but for their sizes)" if c["fragment_families"] else ""
        yield (
            "Recorded",
            None,
            [
                (
                    f"{recorded} operations in {launched} fragments, {c['fragments_distinct']} of them distinct"
                    f"{families}, {c['fragments_given_up']} given up (TORCH_TPU_KNOWN_OPS)",
                ),
                (f"{c['dropped_ops']} operations dropped because nobody could read their results",),
                (f"{c['reads']} reads; {c['inferences']} shape inferences",),
                (f"{c['launches_tier0']} launches op by op (tier 0), {c['launches_tier1']} compiled (tier 1)",),
                (
                    f"{c['compiles']} compiles in {c['compile_ms']:.0f} ms in the background, {c['compile_failures']} "
                    f"failed; the program waited {c['compile_wait_ms']:.0f} ms for them",
                ),
                (
                    f"{c['candidates_compiled']} candidates for tier 2 compiled, {c['candidates_measured']} measured, "
                    f"{c['candidates_adopted']} adopted; that cost {c['tune_ms']:.0f} ms (TORCH_TPU_TUNE_BUDGET)",
                ),
                (
                    f"cache: {c['cache_hits']} hits in memory, {c['disk_cache_hits']} on disk, "
                    f"{c['disk_cache_misses']} misses, {c['disk_cache_errors']} errors",
                ),
            ],
        )
        yield (
            "Fragments: where the device's time went",
            ("ms", "op by op", "compiled", "ops", "fragment", "first line"),
            [
                (
                    f"{sum(x['milliseconds']):.1f}",
                    *(f"{n} x {ms / max(n, 1):.3f} ms" for n, ms in zip(x["runs"], x["milliseconds"], strict=True)),
                    x["ops"],
                    x["summary"],
                    x["where"] or "-",
                )
                for x in self.fragments[:limit]
            ],
        )
        yield (
            "Kernels: where the time of compiled launches went (one of 16 is timed so)",
            ("share", "a launch", "GB/s", "kernel", "fragment"),
            self._kernels()[:limit],
        )
        if self.clusters:
            yield (
                "Clusters: fragments that follow one another, as one",
                ("times", "wrong", "parts", "ops", "ms apart", "ms as one", "outcome", "fragment", "first line"),
                [
                    (
                        x["followed"],
                        x["wrong_guesses"],
                        x["parts"],
                        x["ops"],
                        f"{x['before']:.3f}",
                        f"{x['after']:.3f}",
                        x["outcome"],
                        x["summary"],
                        x["where"] or "-",
                    )
                    for x in self.clusters[:limit]
                ],
            )
        yield (
            "Tier 2: candidates measured on launches, here or in earlier processes",
            ("before", "after", "", "candidate", "fragment"),
            [
                (
                    f"{d['before']:.3f} ms",
                    f"{d['after']:.3f} ms",
                    "adopted" if d["adopted"] else "dropped",
                    d["candidate"],
                    x["summary"],
                )
                for x in self.fragments
                for d in x["decisions"]
            ][:limit],
        )
        yield (
            "Cuts: what ended a fragment",
            ("times", "ops", "reason", "operator", "line"),
            [(x["count"], x["ops"], x["reason"], x["what"], x["where"] or "-") for x in self.cuts[:limit]],
        )
        slowest = sorted(self.compiles, key=lambda x: -x["milliseconds"])[:limit]
        yield (
            "Compiles",
            ("ms", "ops", "outcome", "fragment"),
            [(f"{x['milliseconds']:.1f}", x["ops"], x["outcome"], f"{x['key'][:8]} {x['summary']}") for x in slowest],
        )
        yield (
            "Host kernels: operators without a lowering",
            ("calls", "operator", "line"),
            [(count, name, line or "-") for count, name, line in self.host_kernel_lines[:limit]],
        )
        if c["graph_calls"]:
            yield (
                f"torch.compile: {c['graph_calls']} calls of graphs, {c['graph_captures']} captures; these graphs ran "
                "operation by operation",
                ("calls", "reason"),
                [(count, reason) for reason, count in list(self.uncaptured_graphs.items())[:limit]],
            )

    def __str__(self):
        lines = []
        for title, header, rows in self._sections():
            lines.append(title)
            table = ([header] if header else []) + rows
            if header:
                widths = [max(len(str(row[i])) for row in table) for i in range(len(header))]
                table = [tuple(str(cell).ljust(w) for cell, w in zip(row, widths, strict=True)) for row in table]
            lines += ["  " + "  ".join(str(cell) for cell in row).rstrip() for row in table]
            if not rows:
                lines.append("  none")
            lines.append("")
        return "\n".join(lines).rstrip()

    __repr__ = __str__

    def _repr_html_(self):
        import html

        parts = []
        for title, header, rows in self._sections(limit=100):
            parts.append(f"<h4>{html.escape(title)}</h4><table>")
            if header:
                parts.append("<tr>" + "".join(f"<th>{html.escape(h)}</th>" for h in header) + "</tr>")
            for row in rows:
                parts.append("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>")
            parts.append("</table>")
        return "".join(parts)
