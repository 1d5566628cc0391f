#!/bin/sh
# junit-xml 1.9 drops a failure that has a type but neither a message nor output: the test case is written without a
# <failure> element and the suite counts failures="0", so that a CI server shows the failed test as passed. An error is
# dropped in the same way; a skipped test is counted.
#
# Seen:
#   junit-xml 1.9
#   failures="0"
#   failure elements: 0
#
# Exits with 1 if the behaviour changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check junit-xml==1.9 six==1.17.0

cat >"$folder/write.py" <<'PYTHON'
import re
import sys
from importlib.metadata import version

from junit_xml import TestCase, TestSuite, to_xml_report_string

print("junit-xml", version("junit-xml"))
case = TestCase("step_time", "bench", elapsed_sec=1.0)
case.add_failure_info(failure_type="regression")
text = to_xml_report_string([TestSuite("nightly", [case])])
counted = re.findall(r'failures="\d+"', text)[0]
written = text.count("<failure")
print(counted)
print("failure elements:", written)
sys.exit(counted != 'failures="0"' or written != 0)
PYTHON
"$folder/venv/bin/python" "$folder/write.py"
