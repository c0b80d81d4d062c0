"""PyTorch's own tests on tpu: what fails there and passes on the CPU.

    .venv/bin/python tests/pytorch_tests.py ~/pytorch/test test_indexing nn/test_pooling -k "not gradgrad"

`~/pytorch` is a checkout of PyTorch at the release that is installed (of another one, tests fail on the CPU, too, and
are left out of the report by that). A test is run on the CPU only if it failed on tpu. Some files want hypothesis; of
some no test is for devices that PyTorch doesn't name (`only_for`), which counts as something to look at.
Reports are kept in build/pytorch_tests; the exit status is 1 if there is anything to look at.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPORTS = ROOT / "build" / "pytorch_tests"


def failures(file, directory, device, report, selected):
    """The tests of the file that fail with `device`, as pytest names them; the file, where it crashed or had none."""
    environment = dict(os.environ, PYTORCH_TESTING_DEVICE_ONLY_FOR=device)
    options = ["-q", "--tb=short", "-rfE", "--timeout=300", "-p", "no:cacheprovider", "--noconftest", "-k", selected]
    with report.open("w") as out:
        command = [sys.executable, "-m", "pytest", file, *options]
        ran = subprocess.run(command, cwd=directory, env=environment, stdout=out, stderr=subprocess.STDOUT)
    lines = re.findall(r"^(?:FAILED|ERROR|SUBFAILED.*?) ([^\s:]+\.py\S*)", report.read_text(), re.MULTILINE)
    found = list(dict.fromkeys(lines))  # a test whose subtests fail is there for each
    complete = ran.returncode == 0 or (ran.returncode == 1 and found)
    return found if complete else [*found, file]


def on_the_cpu(test):
    return re.sub(r"_tpu(?=_|$)", "_cpu", re.sub(r"(PRIVATEUSE1|TPU)(?=::)", "CPU", test))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, help="PyTorch's directory `test`")
    parser.add_argument("files", nargs="+", help="below it, with or without .py")
    parser.add_argument("-k", default="", help="pytest's expression of tests to run")
    arguments = parser.parse_args()
    REPORTS.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for file in arguments.files:
        file = file.removesuffix(".py") + ".py"
        if not (arguments.directory / file).is_file():
            parser.error(f"{arguments.directory / file} is no file")
        name = file.removesuffix(".py").replace("/", "_")
        print(f"{file}: ", end="", flush=True)
        failed = failures(file, arguments.directory, "tpu", REPORTS / f"{name}.tpu", arguments.k)
        again = " or ".join(on_the_cpu(test).split("::")[-1] for test in failed if "::" in test)
        both = set(failures(file, arguments.directory, "cpu", REPORTS / f"{name}.cpu", again) if again else [])
        only = [test for test in failed if on_the_cpu(test) not in both]
        print(f"{len(failed)} fail, {len(only)} of them on tpu alone; see {REPORTS / name}.tpu")
        for test in only:
            print("   ", test)
        wrong += len(only)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
