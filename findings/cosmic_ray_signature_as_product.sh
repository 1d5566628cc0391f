#!/usr/bin/env bash
# cosmic-ray 8.7.0: the operators core/ReplaceBinaryOperator_Mul_* take the `*` that begins the keyword-only parameters of a
# signature for a multiplication. Mul_Div makes it the `/` of positional-only parameters: a mutant that no computation
# differs in, and that most test suites cannot kill.
#
# Seen:
#   cosmic-ray 8.7.0
#   def judge(run, *, apart): -> def judge(run, /, apart):
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check cosmic-ray==8.7.0 2>/dev/null
"$work/venv/bin/python" - <<'PYTHON'
import sys
from importlib.metadata import version

from cosmic_ray.mutating import MutationVisitor
from cosmic_ray.plugins import get_operator

print("cosmic-ray", version("cosmic-ray"))
source = "def judge(run, *, apart):\n    return run\n"
mutant = MutationVisitor.mutate_code(source, get_operator("core/ReplaceBinaryOperator_Mul_Div")(), 0)
print(source.splitlines()[0], "->", mutant.splitlines()[0] if mutant else None)
sys.exit(mutant is None or mutant.splitlines()[0] != "def judge(run, /, apart):")
PYTHON
