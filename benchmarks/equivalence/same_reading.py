"""Print the results of the package on PYTHONPATH for logs, one line of JSON per log.

    PYTHONPATH=TREE python benchmarks/equivalence/same_reading.py PATHS OUT

This half of `benchmarks.equivalence.same` runs with the package of either tree, so it
uses only what both contain.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import pytest_llmbench


def find_module(*names: str) -> Any:
    """Return the first of these modules that exists; commits use different names."""
    for name in names[:-1]:
        with suppress(ImportError):
            return import_module(f"pytest_llmbench.{name}")
    return import_module(f"pytest_llmbench.{names[-1]}")


models = find_module("core.baseline_records", "core.models.baselines")
parse = find_module("logs.log_reader", "ingest.parse.read")
archives = find_module(
    "logs.sources.archive", "logs.sources.packed", "ingest.sources.packed"
)
stores = find_module("logs.sources.stores", "ingest.sources.stores")

LEFT_OUT = ("sha256", "fingerprint")
"""Of these a change is meant."""

SIZES = (13, 509, 4096, 70_001, 1 << 20)
"""Bytes of the blocks that logs are cut into, one size for each log in turn."""

MOST_BLOCKS = 5000

DEFINITIONS = (
    models.RegexDialect(
        "regex:bars-1.0",
        "train_step_timing in s",
        r"global_step[=:] ?(?P<step>\d+).*train_step_timing in s[=:] ?(?P<seconds>[\d.e+]+)",
        start="restart_count=",
        end="`max_steps=",
    ),
    models.RegexDialect(
        "regex:lines-1.0",
        "step",
        r"step: +(?P<step>\d+).*?seconds: (?P<seconds>[\d.]+)",
        averages="interval",
    ),
    models.RegexDialect(
        "regex:lines-1.1",
        "step",
        r"step: +(?P<step>\d+).*?seconds: (?P<seconds>[\d.]+)",
        averages="interval",
    ),
    models.RegexDialect(
        "regex:blocks-1.0",
        "NCCL INFO",
        r"opCount (?P<step>\d+)(?P<seconds>) never",
        unit="ms",
    ),
)
"""Every third log is read with these too: one that often finds steps, two alike, one
that finds none."""


def list_fields(value: Any) -> tuple[str, ...]:
    """Return the field names of a record, empty for another value.

    Records of earlier commits are dataclasses.
    """
    if is_dataclass(value):
        return tuple(field.name for field in fields(value))
    return getattr(value, "__struct_fields__", ())


def plain(value: Any) -> Any:
    """Convert records to dictionaries and columns to lists.

    Equal JSON means equal bits; NaN equals NaN.
    """
    if names := list_fields(value):
        return {
            name: plain(getattr(value, name)) for name in names if name not in LEFT_OUT
        }
    if isinstance(value, np.ndarray):
        return {"type": str(value.dtype), "values": value.tolist()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


def capture(action: Callable[[], object]) -> Any:
    """Return the result of an action, or its exception, which must be the same too."""
    try:
        return plain(action())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a result here
        return {"raised": f"{type(error).__name__}: {error}"}


def read_file(path: Path, number: int) -> Any:
    """Return the results for a file as it is, for its bytes in blocks, and as a
    standard error."""
    extra = () if number % 3 else DEFINITIONS
    data = path.read_bytes()
    size = max(SIZES[number % len(SIZES)], len(data) // MOST_BLOCKS)
    blocks = (data[begin : begin + size] for begin in range(0, len(data), size))
    return {
        "file": capture(lambda: parse.read_log(path, extra)),
        f"blocks of {size}": capture(lambda: parse.parse_blocks(blocks, extra)),
        "standard error": capture(lambda: parse.read_ending(path)),
    }


def read_archive(path: Path) -> Any:
    """Return the results for the members of an archive, in one pass as in a session."""
    opened = stores.Stores()
    opened.open_archive(path, lambda name: True)
    members = list(_members(opened, path))
    # Earlier commits call the method `read_packed`.
    has_new_name = hasattr(opened, "read_from_archives")
    read_members = opened.read_from_archives if has_new_name else opened.read_packed
    read = {
        str(one): capture(lambda text=text: parse.read_log(text))  # type: ignore[misc]
        for one, text in read_members(members)
    }
    return {"members": list(map(str, members)), **read}


def _members(opened: Any, folder: Path) -> Iterator[Path]:
    for entry in opened.scan(folder):
        if entry.is_dir():
            yield from _members(opened, Path(entry.path))
        else:
            yield Path(entry.path)


def main() -> None:
    """Write a line for each path in a file of paths. The first line names the package."""
    paths = [
        Path(line)
        for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    ]
    with Path(sys.argv[2]).open("w", encoding="utf-8") as out:
        print(pytest_llmbench.__file__, file=out)
        for number, path in enumerate(paths):
            found = (
                read_archive(path)
                if archives.NAME.fullmatch(path.name)
                else read_file(path, number)
            )
            print(json.dumps(found, default=repr), file=out)


if __name__ == "__main__":
    main()
