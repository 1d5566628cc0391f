"""Fuzz target of `llmbench compare`: two sides of hostile logs, and the comparison."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
from fuzz.laws import empty_folder, make_path, require, require_printable
from fuzz.log_seeds import logs
from generator import write_run
from generator.__main__ import shipped
from jsonschema import Draft202012Validator, FormatChecker

from pytest_llmbench.comparison.compare_sides import compare_sides
from pytest_llmbench.comparison.comparison_document import describe
from pytest_llmbench.comparison.comparison_page import render_sides
from pytest_llmbench.comparison.comparison_records import SidesCompared
from pytest_llmbench.comparison.comparison_text import format_text
from pytest_llmbench.comparison.sides import SideRequest, read_paths
from pytest_llmbench.report import document
from pytest_llmbench.session.catalog import Catalog, load
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)
PARTED = b"\n--- "
"""Stands before each file: the side, its path below it, and what it holds."""

LLAMA = "llama3.1_8b-25.04-h100-bf16-16"

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

SCHEMA = Draft202012Validator(
    json.loads(
        resources.files("pytest_llmbench.report")
        .joinpath("comparison.schema.json")
        .read_text("utf-8")
    ),
    format_checker=FormatChecker(),
)


@cache
def _load() -> Catalog:
    return load(Settings())


def _write_side(folder: Path, factors: Sequence[float], first: int) -> bytes:
    """Write the files of one run per day, as a launcher does."""
    baseline = shipped()[LLAMA]
    for day, factor in enumerate(factors, first):
        write_run(
            folder,
            baseline,
            factor=factor,
            job_id=f"{1000 + day}",
            started=NOW - timedelta(days=99 - day),
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"".join(
        PARTED + f"{path.relative_to(folder.parent)}\n".encode() + path.read_bytes()
        for path in files
    )


@cache
def compare_seeds() -> list[bytes]:
    """Return sides with one run, several runs, other steps, no steps, and logs of any
    framework."""
    seeds = []
    for a, b in (((1.0,), (1.1,)), ((1.0, 1.002), (1.05, 1.051)), ((1.0,), ())):
        with empty_folder() as folder:
            seeds.append(
                _write_side(folder / "A", a, 0) + _write_side(folder / "B", b, 10)
            )
    some = logs()
    pairs = zip(some[::4], some[1::4], strict=False)
    return [
        *seeds,
        *(
            PARTED + b"A/x/log_1.out\n" + a + PARTED + b"B/x/log_2.out\n" + b
            for a, b in pairs
        ),
    ]


def check_compare(data: bytes) -> None:
    """Any two sides are compared, or refused with a printable reason.

    The document conforms to its schema, and the page contains no markup or control
    character of a log.
    """
    with empty_folder() as folder:
        for label in "AB":
            (folder / label).mkdir()
        for piece in data.split(PARTED)[:20]:
            name, _, content = piece.partition(b"\n")
            if name.startswith((b"A/", b"B/")) and (path := make_path(folder, name)):
                path.write_bytes(content)
        compared = _compare(folder)
    described = describe(compared, NOW, strict=bool(len(data) % 2))
    plain = msgspec.to_builtins(described)
    SCHEMA.validate(json.loads(document.render(plain)))
    require_printable(format_text(described), "a comparison")
    page = render_sides(described, NOW)
    require(page.count("<script") == 1, "a page with markup of a log")
    require(not CONTROL.search(page), "a page with a sign that moves a cursor")


def _compare(folder: Path) -> SidesCompared:
    requests = [SideRequest(label, label, path=folder / label) for label in "AB"]
    a, b = read_paths(requests, Settings(), _load(), NOW)
    return compare_sides(a, b, Settings(), None, 0.01)
