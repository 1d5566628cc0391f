#!/bin/sh
# Apache Otava 0.8.0: one value that is "nan" anywhere in the column of a metric hides
# every change of this metric. A step time that rises by 20 % at night 30 of 40 is
# reported; with the value of night 12 or of the last night written as nan, as a script
# writes it for a run without figures, the report is empty. There is no warning, `otava
# validate` says VALID, and the exit code is 0 in each case.
#
# Seen:
#   apache-otava 0.8.0
#   all values: change at night 30 by 20 percent, exit 0
#   night 12 is nan: no change, exit 0
#   night 39 is nan: no change, exit 0
#
# Exits with 1 if the behaviour changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    apache-otava==0.8.0

cat >"$folder/nights.py" <<'PYTHON'
import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from importlib.metadata import version
from pathlib import Path

folder = Path(sys.argv[1])
(folder / "otava.yaml").write_text(
    "tests:\n"
    "  nightly:\n"
    "    type: csv\n"
    f"    file: {folder}/nightly.csv\n"
    "    time_column: time\n"
    "    attributes: [commit]\n"
    "    metrics:\n"
    "      step_time: {column: step_time, direction: -1}\n"
)
otava = [str(folder / "venv/bin/otava"), "analyze", "nightly"]
options = ["--since", "2025-12-01", "--output", "json"]
environment = {**os.environ, "OTAVA_CONFIG": str(folder / "otava.yaml")}


def analyze(missing):
    lines = ["time,commit,step_time"]
    for night in range(40):
        day = datetime(2026, 1, 1) + timedelta(days=night)
        value = (10.0 if night < 30 else 12.0) + night * 7 % 5 / 100
        text = "nan" if night == missing else f"{value:.2f}"
        lines.append(f"{day:%Y-%m-%d %H:%M:%S} +0000,c{night},{text}")
    (folder / "nightly.csv").write_text("\n".join(lines) + "\n")
    done = subprocess.run(
        otava + options, env=environment, capture_output=True, text=True
    )
    found = json.loads(done.stdout[done.stdout.index("{") :])["nightly"]
    said = [
        f"change at night {change['index']} by {change['forward_change_percent']}"
        " percent"
        for group in found
        for change in group["changes"]
    ]
    return f"{', '.join(said) or 'no change'}, exit {done.returncode}"


print("apache-otava", version("apache-otava"))
seen = {night: analyze(night) for night in (None, 12, 39)}
for night, text in seen.items():
    print("all values:" if night is None else f"night {night} is nan:", text)
same = seen == {
    None: "change at night 30 by 20 percent, exit 0",
    12: "no change, exit 0",
    39: "no change, exit 0",
}
sys.exit(not same)
PYTHON
"$folder/venv/bin/python" "$folder/nights.py" "$folder"
