#!/usr/bin/env bash
# torchtitan 0.3.0: for a GPU that the driver calls "NVIDIA L40S", the peak behind the printed MFU is 312 TFLOP/s, that of an
# A100. torchtitan knows the peak of an L40S (362), but compares the name in lower case only. The MFU of an L40S is printed
# 16 % too high.
#
# Seen:
#   torchtitan 0.3.0
#   NVIDIA L40S: 312 TFLOP/s
#   l40s: 362 TFLOP/s
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torchtitan==0.3.0 torch==2.13.0 numpy 2>/dev/null
cd "$work"
"$work/venv/bin/python" - 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version

from torchtitan.tools.utils import get_peak_flops

names = ("NVIDIA L40S", "l40s")
peaks = [get_peak_flops(name) / 1e12 for name in names]
print(f"torchtitan {version('torchtitan')}")
for name, peak in zip(names, peaks):
    print(f"{name}: {peak:g} TFLOP/s")
sys.exit(peaks != [312, 362])
PYTHON
