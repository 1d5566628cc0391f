"""Each target accepts its seeds and earlier findings; the drivers find, save and count."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from fuzz import plain
from fuzz.laws import Finding, find_misfit
from fuzz.mutate import Shape, mutate
from fuzz.targets import TARGETS
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import BaselineError, LogError
from pytest_llmbench.logs.log_reader import parse_blocks

NAMES = list(TARGETS)
SLOW = (
    "store",
    "unsaved",
    "journal",
    "session",
    "document",
    "archive",
    "growing",
    "option",
    "compare",
)
"""Targets of whose seeds only the first ones are cut off here: each input takes some
hundredths of a second."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fuzz_seeds_and_stored_findings_pass_the_checks_of_their_targets(
    name: str,
) -> None:
    """Unchanged, and with a few changes."""
    target = TARGETS[name]
    for number in range(len(target.seeds) + (3 if name in SLOW else 12)):
        target.check(plain.make_input(target, 0, number))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_truncated_fuzz_seeds_pass_the_checks_of_their_targets(name: str) -> None:
    for data in TARGETS[name].seeds[: 4 if name in SLOW else 30]:
        for eighths in (3, 7):
            TARGETS[name].check(data[: len(data) * eighths // 8])


def test_log_seeds_contain_steps() -> None:
    seeds = TARGETS["log"].seeds
    assert sum(bool(parse_blocks([data]).segments) for data in seeds) >= len(seeds) // 2


# --- laws -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "error"),
    [("metadata", LogError("a\x00b")), ("baseline", BaselineError("no file"))],
)
def test_fuzz_targets_check_error_messages(
    target: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("fuzz.runs.parse", fail)
    monkeypatch.setattr("fuzz.documents.read_recipe", fail)
    with pytest.raises(Finding):
        TARGETS[target].check(b"anything")


KEY = Key("grok1", "314b", "25.05", "gb200", "bf16", 128)


@pytest.mark.parametrize(
    ("value", "hint", "problem"),
    [
        (KEY, Key, ""),
        (replace(KEY, gpus=True), Key, "Key.gpus is of bool"),
        ((1, None), tuple[int | None, ...], ""),
        ((1, "a"), tuple[int, int], "value is of str"),
        ({"a": 1}, dict[str, str], "value is of int"),
        (1.5, int | None, "value is of float"),
    ],
)
def test_fuzz_target_detects_a_value_of_another_type(
    value: object, hint: object, problem: str
) -> None:
    assert find_misfit(value, hint) == problem


# --- inputs ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store", "unsaved", "cluster", "log"])
def test_number_of_a_fuzz_input_reproduces_it(name: str) -> None:
    target = TARGETS[name]
    numbers = range(len(target.seeds), len(target.seeds) + 8)
    made = [plain.make_input(target, 0, number) for number in numbers]
    assert made == [plain.make_input(target, 0, number) for number in numbers]
    assert len(set(made)) >= 7


def test_sqlite_mutator_often_preserves_header_and_page_size() -> None:
    changed = [
        mutate(TARGETS["store"].seeds[1:2], (), Shape.SQLITE, Random(number))
        for number in range(20)
    ]
    assert (
        sum(
            data.startswith(b"SQLite format 3") and len(data) % 512 == 0
            for data in changed
        )
        >= 5
    )


# --- the plain driver -----------------------------------------------------------------


def check_badly(data: bytes) -> None:
    """Fail in every way."""
    if data.startswith(b"raise"):
        raise KeyError(data)
    if data.startswith(b"law"):
        raise Finding("a law")
    while data.startswith(b"hang"):
        pass


@pytest.mark.slow
def test_fuzz_input_that_fails_or_hangs_is_saved_as_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [b"raise, long", b"raise", b"law", b"hang", b"good"]
    target = dataclasses.replace(
        TARGETS["secret"],
        name="bad",
        check=check_badly,
        make_seeds=lambda: seeds,
        what="",
    )
    monkeypatch.setitem(TARGETS, "bad", target)
    monkeypatch.setattr(plain, "LONGEST_SECONDS", 3.0)
    tally = plain.fuzz(["bad"], 6, None, jobs=2, seed=0, keep=tmp_path)["bad"]
    texts = [path.read_text() for path in tmp_path.glob("*.txt")]
    assert {path.read_bytes() for path in tmp_path.glob("bad-*.bin")} == {
        b"raise",
        b"law",
        b"hang",
    }, texts
    assert (
        tally.tried == 6
    )  # the one that hangs has not come to an end: another one takes its place
    assert "KeyError" in "".join(texts)


@pytest.mark.slow
def test_fuzz_command_reports_counts_by_target(tmp_path: Path) -> None:
    script = Path(plain.__file__).with_name("run.py")
    arguments = [
        "hosts",
        "status",
        "--inputs",
        "60",
        "--jobs",
        "2",
        "--keep",
        str(tmp_path),
    ]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, last = done.stdout.splitlines()
    assert re.match(r"hosts +30 inputs", first)
    assert re.match(r"status +30 inputs.* peak \d+ MiB", second)
    assert last == "2 targets: 60 inputs tried, 0 findings"
