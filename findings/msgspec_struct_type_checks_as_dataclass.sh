#!/usr/bin/env bash
# msgspec 0.22.0 with mypy 2.4.1: `dataclasses.replace`, `asdict` and `fields` of a `msgspec.Struct` pass the strict type
# check, because the class is declared with `dataclass_transform`, and all three raise TypeError when they run. A project
# that turns dataclasses into structs finds a forgotten call only by running it; `msgspec.structs` has the functions.
#
# Seen:
#   msgspec==0.22.0
#   mypy==2.4.1
#   Success: no issues found in 1 source file
#   TypeError: replace() should be called on dataclass instances
#   TypeError: asdict() should be called on dataclass instances
#   TypeError: must be called with a dataclass type or instance
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check msgspec==0.22.0 mypy==2.4.1 2>/dev/null
cat >"$work/point.py" <<'PYTHON'
import dataclasses
from collections.abc import Callable

from msgspec import Struct


class Point(Struct, frozen=True):
    x: int


def call(function: Callable[[], object]) -> bool:
    try:
        function()
    except TypeError as error:
        print(f"TypeError: {error}")
        return True
    return False


if __name__ == "__main__":
    point = Point(1)
    raised = [
        call(lambda: dataclasses.replace(point, x=2)),
        call(lambda: dataclasses.asdict(point)),
        call(lambda: dataclasses.fields(point)),
    ]
    raise SystemExit(0 if all(raised) else 1)
PYTHON
cd "$work"
"$work/venv/bin/pip" list --format freeze --disable-pip-version-check | grep -E '^(msgspec|mypy)=='
"$work/venv/bin/mypy" --strict point.py
"$work/venv/bin/python" point.py
