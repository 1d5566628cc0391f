#!/usr/bin/env bash
# cosmic-ray 8.7.0: the operator core/AddNot puts `not` in front of a condition that is an assignment expression without
# brackets. The result is no valid Python program, so that every test fails at import and the mutant counts as killed: the
# score is too high by one for each `if name := ...`, `while name := ...` of the module.
#
# Seen:
#   cosmic-ray 8.7.0
#   if not value := read():
#   SyntaxError: cannot use assignment expressions with expression
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check cosmic-ray==8.7.0 2>/dev/null
"$work/venv/bin/python" - <<'PYTHON'
import ast
import sys
from importlib.metadata import version

from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator

print("cosmic-ray", version("cosmic-ray"))
source = "if value := read():\n    print(value)\n"
ast.parse(source)
mutant = MutationVisitor.mutate_code(source, get_operator("core/AddNot")(), 0)
print(mutant.splitlines()[0])
try:
    ast.parse(mutant)
except SyntaxError as error:
    print(f"SyntaxError: {error.msg}")
    sys.exit(0)
sys.exit(1)
PYTHON
