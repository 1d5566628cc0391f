"""Every target holds for what fuzzing starts from and for all that it found; the drivers find, keep and count."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fuzz import plain
from fuzz.guided import dictionary, summary
from fuzz.laws import Finding, find_misfit
from fuzz.mutate import Shape, mutate
from fuzz.targets import FINDINGS, TARGETS

from pytest_llmbench.core.errors import BaselineError, LogError
from pytest_llmbench.core.models import Key
from pytest_llmbench.ingest.parse.read import parse_blocks

NAMES = list(TARGETS)
SLOW = ("store", "unsaved", "journal", "session", "document", "archive", "growing", "option", "compare")
"""Targets of whose seeds only the first ones are cut off here: each input takes some hundredths of a second."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_findings_break_nothing(name: str) -> None:
    for data in TARGETS[name].seeds:
        TARGETS[name].check(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_seeds_cut_off_break_nothing(name: str) -> None:
    parts = (3, 7) if name in SLOW else range(1, 8)
    for data in TARGETS[name].seeds[: 4 if name in SLOW else None]:
        for part in parts:
            TARGETS[name].check(data[: len(data) * part // 8])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_changed_seeds_break_nothing(name: str) -> None:
    target = TARGETS[name]
    for number in range(len(target.seeds), len(target.seeds) + (3 if name in SLOW else 12)):
        target.check(plain.make_input(target, 0, number))


def test_seeds_of_logs_hold_steps() -> None:
    seeds = TARGETS["log"].seeds
    assert sum(bool(parse_blocks([data]).segments) for data in seeds) >= len(seeds) // 2


@pytest.mark.parametrize("name", NAMES)
def test_words_are_text_of_a_dictionary(name: str) -> None:
    words = TARGETS[name].words
    assert len(dictionary(words).splitlines()) == len(words)


def test_every_finding_belongs_to_a_target() -> None:
    assert sum(len(target.findings) for target in TARGETS.values()) == len(list(FINDINGS.glob("*.bin")))


def test_strange_bytes_in_a_dictionary_are_hexadecimal() -> None:
    assert dictionary([b'a"\\\r', b"", b"\xff"]) == '"a\\x22\\x5c\\x0d"\n"\\xff"\n'


def test_the_summary_says_how_many_inputs_were_tried() -> None:
    output = "stat::number_of_executed_units: 1234\nstat::peak_rss_mb:              99\n"
    assert summary("log", output, []) == "log: 1234 inputs tried, peak memory 99 MiB, 0 findings: none"


# --- laws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "error"), [("metadata", LogError("a\x00b")), ("baseline", BaselineError("no file"))]
)
def test_messages_are_looked_at(target: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
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
        (replace(KEY, gpus="128"), Key, "Key.gpus is of str"),  # type: ignore[arg-type]
        (replace(KEY, gpus=True), Key, "Key.gpus is of bool"),
        ((1, None), tuple[int | None, ...], ""),
        ((1, "a"), tuple[int, int], "value is of str"),
        ({"a": 1}, dict[str, str], "value is of int"),
        (1.5, int | None, "value is of float"),
    ],
)
def test_a_value_of_another_type_is_told(value: object, hint: object, problem: str) -> None:
    assert find_misfit(value, hint) == problem


# --- inputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store", "unsaved", "cluster", "log"])
def test_the_same_number_is_the_same_input_and_another_one_is_not(name: str) -> None:
    target = TARGETS[name]
    made = [plain.make_input(target, 0, number) for number in range(len(target.seeds), len(target.seeds) + 8)]
    again = [plain.make_input(target, 0, number) for number in range(len(target.seeds), len(target.seeds) + 8)]
    assert made == again
    assert len(set(made)) >= 7


def test_a_structure_is_changed_as_one() -> None:
    """Of a changed database many are sound to SQLite, and of a changed document many are JSON."""
    sound = [mutate(TARGETS["store"].seeds[1:2], (), Shape.SQLITE, Random(number)) for number in range(20)]
    assert sum(data.startswith(b"SQLite format 3") and len(data) % 512 == 0 for data in sound) >= 5


# --- the plain driver ------------------------------------------------------------------------------------------------


def check_badly(data: bytes) -> None:
    """Fail in every way."""
    if data.startswith(b"raise"):
        raise KeyError(data)
    if data.startswith(b"law"):
        raise Finding("a law")
    while data.startswith(b"hang"):
        pass


@pytest.mark.slow
def test_what_raises_breaks_a_law_or_hangs_is_kept_and_the_rest_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [b"raise, long", b"raise", b"law", b"hang", b"good"]
    target = replace(TARGETS["secret"], name="bad", check=check_badly, make_seeds=lambda: seeds, what="")
    monkeypatch.setitem(TARGETS, "bad", target)
    monkeypatch.setattr(plain, "LONGEST_SECONDS", 0.3)
    tally = plain.fuzz(["bad"], 6, None, jobs=2, seed=0, keep=tmp_path)["bad"]
    kept = {path.read_bytes() for path in tmp_path.glob("bad-*.bin")}
    assert kept == {b"raise", b"law", b"hang"}
    assert tally.tried == 6  # the one that hangs has not come to an end: another one takes its place
    assert "bad " in tally.describe("bad")
    assert "KeyError" in "".join(path.read_text() for path in tmp_path.glob("*.txt"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    script = str(Path(plain.__file__).with_name("run.py"))
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_counts_by_target(tmp_path: Path) -> None:
    done = run("hosts", "status", "--inputs", "60", "--jobs", "2", "--keep", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, last = done.stdout.splitlines()
    assert re.match(r"hosts +30 inputs", first)
    assert re.match(r"status +30 inputs.* peak \d+ MiB", second)
    assert last == "2 targets: 60 inputs tried, 0 findings"


@pytest.mark.slow
def test_an_unknown_target_is_refused() -> None:
    done = run("lgo")
    assert done.returncode == 2
    assert "found lgo, expected all or some of: log" in done.stderr
