"""What a trace says in sum as a small file: kept beside a recorded baseline, it is what later traces are held against.

The same document is what `--format json` prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.ingest.nccl.changes import TraceComparison
from pytest_llmbench.ingest.nccl.read import read_trace
from pytest_llmbench.ingest.nccl.records import Kind
from pytest_llmbench.ingest.nccl.trace import Trace, TraceRow
from pytest_llmbench.ingest.sources.stores import Stores

SCHEMA = 1
# Bytes of a saved trace: its KINDS rows take less.
LARGEST = 1 << 25

Typed = TypeVar("Typed")

_HEAD = re.compile(rb'\s*\{\s*"llmbench_nccl"')
_SCALARS = {"ranks": int, "hosts": int, "limited": bool, "unnamed": int, "calls": int, "from_calls": bool}
_SCALARS |= {"files": int, "traced": int, "bytes": int, "cut": int}


def build_document(trace: Trace, comparison: TraceComparison | None = None) -> dict[str, Any]:
    """Return a trace as JSON holds it, with what changed where it was compared."""
    rows = [{**row.kind._asdict(), "records": row.records, "bytes": row.bytes} for row in trace.rows]
    values = {"llmbench_nccl": SCHEMA, **asdict(trace), "rows": rows}
    if comparison:
        listed = [change._asdict() for change in comparison.changes]
        values["comparison"] = {"scale": comparison.scale, "tolerance": comparison.tolerance, "changes": listed}
    return values


def read_saved(paths: Sequence[Path]) -> Trace:
    """Return a trace that was saved, or what the files of one say; LogError where there is none."""
    if len(paths) == 1 and paths[0].is_file():
        stores = Stores()
        if _HEAD.match(stores.read_small(paths[0], 64)):
            return _parse_trace(paths[0], stores.read_small(paths[0], LARGEST))
    return read_trace(paths)


def _parse_trace(path: Path, text: bytes) -> Trace:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"no whole JSON text ({error})")
    if values["llmbench_nccl"] != SCHEMA:
        _refuse(path, f"schema {values['llmbench_nccl']!r}, and this version reads {SCHEMA}")
    try:
        return Trace(
            rows=tuple(
                TraceRow(_parse_kind(row), _check_type(int, row["records"]), _check_type(int, row["bytes"]))
                for row in values["rows"]
            ),
            damaged=tuple((_check_type(str, name), _check_type(int, number)) for name, number in values["damaged"]),
            communicators=tuple(
                (_check_type(int, nranks), _check_type(int, number)) for nranks, number in values["communicators"]
            ),
            **{name: _check_type(kind, values[name]) for name, kind in _SCALARS.items()},
        )
    except (KeyError, TypeError, ValueError) as error:
        _refuse(path, f"a value that is missing or of another type ({type(error).__name__}: {error})")


def _parse_kind(row: dict[str, Any]) -> Kind:
    return Kind(
        _check_type(str, row["operation"]),
        _check_type(int, row["nranks"]),
        _check_type(str, row["datatype"]),
        _check_type(int, row["from_bytes"]),
    )


def _check_type(kind: type[Typed], value: object) -> Typed:
    if type(value) is not kind:
        raise TypeError(f"found {str(value)[:40]!r}, expected {kind.__name__}")
    return value


def _refuse(path: Path, why: str) -> NoReturn:
    raise LogError(f"{path} is no saved trace: {why}; save it again with `llmbench nccl LOG --save {path.name}`")
