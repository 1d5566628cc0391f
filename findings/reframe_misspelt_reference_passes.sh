#!/bin/sh
# ReFrame 4.10.4: a test whose `reference` names a performance variable that the test
# does not have passes whatever is measured. With the reference {"step_time": (10 s, at
# most 5 % more)} a step time of 20 s fails; with the key written "steptime" the same run
# ends with OK and PASSED, exit code 0, and no word about the reference that nothing used
# or about the variable that has none.
#
# Seen:
#   reframe-hpc 4.10.4
#   reference for step_time: FAIL, exit 1
#   reference for steptime: OK, exit 0, the word "steptime" appears 0 times
#
# Exits with 1 if the behaviour changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    reframe-hpc==4.10.4

for name in step_time steptime; do
    cat >"$folder/$name.py" <<PYTHON
import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class Training(rfm.RunOnlyRegressionTest):
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "echo"
    executable_opts = ["seconds 20.0"]
    reference = {"*": {"$name": (10.0, None, 0.05, "s")}}

    @sanity_function
    def printed(self):
        return sn.assert_found("seconds", self.stdout)

    @performance_function("s")
    def step_time(self):
        return sn.extractsingle(r"seconds (\S+)", self.stdout, 1, float)
PYTHON
done

cat >"$folder/run.py" <<'PYTHON'
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

folder = Path(sys.argv[1])


def run(name):
    done = subprocess.run(
        [folder / "venv/bin/reframe", "--nocolor", "-c", f"{name}.py", "-r"],
        cwd=folder,
        env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    results = [line for line in said.splitlines() if "(1/1) Training" in line]
    word = results[0].split("]")[0].strip("[ ")
    named = said.replace(f"{name}.py", "").count("steptime")
    return word, done.returncode, named


print("reframe-hpc", version("reframe-hpc"))
right, wrong = run("step_time"), run("steptime")
print(f"reference for step_time: {right[0]}, exit {right[1]}")
print(
    f"reference for steptime: {wrong[0]}, exit {wrong[1]},"
    f' the word "steptime" appears {wrong[2]} times'
)
sys.exit((right[:2], wrong) != (("FAIL", 1), ("OK", 0, 0)))
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder"
