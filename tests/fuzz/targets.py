"""What is fuzzed: functions of any bytes, which return where all is well and raise where a law is broken."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.errors import BaselineError, LogError
from pytest_llmbench.core.models import ParsedLog
from pytest_llmbench.ingest.discover.metadata import interpret, parse
from pytest_llmbench.ingest.parse.read import parse_blocks
from pytest_llmbench.pipeline.catalog import Catalog
from pytest_llmbench.pipeline.find_runs import ingest
from pytest_llmbench.pipeline.settings import Settings

Target = Callable[[bytes], None]

BLOCKS = 7


class Finding(Exception):  # noqa: N818 (it is what a fuzzer looks for, not something that goes wrong)
    """A law that an input breaks."""


def log(data: bytes) -> None:
    """No log is an error, its blocks do not matter, and what is found is consistent."""
    whole = parse_blocks([data])
    size = len(data) // BLOCKS + 1
    if repr(parse_blocks([data[begin : begin + size] for begin in range(0, len(data), size)])) != repr(whole):
        raise Finding("the blocks that the log comes in change what is read")
    for problem in problems(whole):
        raise Finding(problem)


def problems(found: ParsedLog) -> list[str]:
    """Return what in a parsed log contradicts itself."""
    laws = {
        "more lines than the log has": any(one.last_line > found.lines for one in found.segments),
        "a segment without a step": any(not len(one.steps) for one in found.segments),
        "steps out of order": any((np.diff(one.steps.index) <= 0).any() for one in found.segments),
        "a step outside its segment": any(
            not one.first_line <= one.steps.line.min() <= one.steps.line.max() <= one.last_line
            for one in found.segments
        ),
        "a step that is the mean of none": any((one.steps.mean_of < 1).any() for one in found.segments),
        "an example that cannot be printed": any(not each.shown.isprintable() for each in found.dropped),
        "something dropped no times or nowhere": any(each.count < 1 or each.first_line < 1 for each in found.dropped),
        "an ending outside the log": found.ending is not None and not 1 <= found.ending.line <= max(found.lines, 1),
    }
    return [problem for problem, broken in laws.items() if broken]


def metadata(data: bytes) -> None:
    """A launcher's record of a job is read, or a LogError says why not."""
    try:
        interpret(parse(data), "llmb-config_1.yaml", "1")
    except LogError as error:
        if not str(error).isprintable():
            raise Finding("a message that cannot be printed") from error


def baseline(data: bytes) -> None:
    """A baseline file is read, or a BaselineError says where it stands and what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "any.yaml")
        path.write_bytes(data)
        try:
            read_recipe(path)
        except BaselineError as error:
            if path.name not in str(error):
                raise Finding("a message that does not name the file") from error


SUFFIXES = (".tar", ".tar.gz", ".tar.zst", ".out.gz", ".out.zst", ".out", ".out.xz", ".out.bz2")
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def archive(data: bytes) -> None:
    """Archives and compressed logs, by the suffix that the first byte chooses, are read or noted."""
    if not data:
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"log-x_1{SUFFIXES[data[0] % len(SUFFIXES)]}").write_bytes(data[1:])
        found = ingest(Settings(logs=(Path(folder),)), Catalog((), {}), NOW)
    for run in found.runs:
        if not run.found.id.isprintable():
            raise Finding("a run whose id cannot be printed")


TARGETS: dict[str, Target] = {"log": log, "metadata": metadata, "baseline": baseline, "archive": archive}
