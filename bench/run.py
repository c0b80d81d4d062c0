"""Runs the topics of bench/ and prints their ratios.

python bench/run.py                       every topic
python bench/run.py recording kernels     some of them
python bench/run.py --json out.json       also writes every row
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

from harness import Row

TOPICS = pathlib.Path(__file__).resolve().parent / "topics"


def main():
    names = sorted(path.stem for path in TOPICS.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", help=", ".join(names))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    unknown = set(args.topics) - set(names)
    if unknown:
        parser.error(f"no such topic: {', '.join(sorted(unknown))}")
    rows, failed = [], []
    for name in args.topics or names:
        print(f"== {name}", flush=True)
        command = [sys.executable, TOPICS / f"{name}.py", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as topic:
            for row in map(json.loads, topic.stdout):
                print(Row(**{field.name: row[field.name] for field in dataclasses.fields(Row)}), flush=True)
                rows.append({"topic": name} | row)
        if topic.returncode:
            failed.append(name)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
