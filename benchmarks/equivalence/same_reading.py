"""Writes what the package on PYTHONPATH says of logs, one line of JSON for each.

This is the half of `benchmarks.equivalence.same` that runs with the package of either
tree, so it uses only what both have.

    PYTHONPATH=TREE python benchmarks/equivalence/same_reading.py PATHS OUT
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
    """Return the first module that the package has; other commits call it by another
    name."""
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


def plain(value: Any) -> Any:
    """Return records as dictionaries and columns as lists, of which equal JSON means
    equal bits, NaN equal to NaN."""
    if is_dataclass(value):
        return {
            one.name: plain(getattr(value, one.name))
            for one in fields(value)
            if one.name not in LEFT_OUT
        }
    if isinstance(value, np.ndarray):
        return {"type": str(value.dtype), "values": value.tolist()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return value


def said(action: Callable[[], object]) -> Any:
    """Return what an action returns; where it raises, what it raised: that has to be
    the same too."""
    try:
        return plain(action())
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a result here
        return {"raised": f"{type(error).__name__}: {error}"}


def of_file(path: Path, number: int) -> Any:
    """Return what is said of a file as it is given, of its bytes in blocks, and of it
    as a standard error."""
    extra = () if number % 3 else DEFINITIONS
    data = path.read_bytes()
    size = max(SIZES[number % len(SIZES)], len(data) // MOST_BLOCKS)
    blocks = (data[begin : begin + size] for begin in range(0, len(data), size))
    return {
        "file": said(lambda: parse.read_log(path, extra)),
        f"blocks of {size}": said(lambda: parse.parse_blocks(blocks, extra)),
        "standard error": said(lambda: parse.read_ending(path)),
    }


def of_archive(path: Path) -> Any:
    """Return what is said of the members of an archive, in one pass as a session reads
    them."""
    opened = stores.Stores()
    opened.open_archive(path, lambda name: True)
    members = list(_members(opened, path))
    read = {
        str(one): said(lambda text=text: parse.read_log(text))  # type: ignore[misc]
        for one, text in opened.read_packed(members)
    }
    return {"members": list(map(str, members)), **read}


def _members(opened: Any, folder: Path) -> Iterator[Path]:
    for entry in opened.scan(folder):
        if entry.is_dir():
            yield from _members(opened, Path(entry.path))
        else:
            yield Path(entry.path)


def main() -> None:
    """Write a line for each path of a file of paths; the first one says which package
    it is of."""
    paths = [
        Path(line)
        for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    ]
    with Path(sys.argv[2]).open("w", encoding="utf-8") as out:
        print(pytest_llmbench.__file__, file=out)
        for number, path in enumerate(paths):
            found = (
                of_archive(path)
                if archives.NAME.fullmatch(path.name)
                else of_file(path, number)
            )
            print(json.dumps(found, default=repr), file=out)


if __name__ == "__main__":
    main()
