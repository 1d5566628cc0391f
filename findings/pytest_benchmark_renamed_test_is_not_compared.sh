#!/bin/sh
# pytest-benchmark 5.3.1: --benchmark-compare-fail says nothing about a benchmark that
# the saved run does not have. A benchmark that became a hundred times slower fails the
# session; if the same change renames it, the session passes with exit code 0 and no
# warning that nothing was compared.
#
# Seen:
#   pytest-benchmark 5.3.1
#   same name, slower: exit 1
#   other name, slower: exit 0, the word "warning" appears 0 times
#
# Exits with 1 if the behaviour changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    pytest-benchmark==5.3.1 pytest==9.1.1

cat >"$folder/run.py" <<'PYTHON'
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

folder = Path(sys.argv[1])


def run(name, size, *options):
    (folder / "test_step.py").write_text(
        f"def {name}(benchmark):\n    benchmark(sum, range({size}))\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "test_step.py", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = (done.stdout + done.stderr).lower()
    return done.returncode, said.count("warning")


print("pytest-benchmark", version("pytest-benchmark"))
run("test_step", 1000, "--benchmark-save=base")
limit = ("--benchmark-compare=0001", "--benchmark-compare-fail=mean:50%")
kept = run("test_step", 100_000, *limit)
renamed = run("test_one_step", 100_000, *limit)
print(f"same name, slower: exit {kept[0]}")
print(
    f"other name, slower: exit {renamed[0]},"
    f' the word "warning" appears {renamed[1]} times'
)
sys.exit((kept[0], renamed) != (1, (0, 0)))
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
