"""Steps of the judged attempt, and log excerpts around a failure."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.builders import BASELINE, KEY, NOW, evidence, log, run, segment, steps
from support.written_archives import archive

from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.outcome_records import (
    Case,
    ConfigurationResult,
    Outcome,
    Status,
)
from pytest_llmbench.core.run_records import Attempt, AttemptFiles, Run
from pytest_llmbench.judge.decide import judge
from pytest_llmbench.logs import quoted_lines as quoting
from pytest_llmbench.logs.quoted_lines import MAX_CHARACTERS, Excerpt, read_excerpts
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.zstd import zstd
from pytest_llmbench.report.describe_outcome import describe
from pytest_llmbench.report.outcome_documents import (
    MOST_STEPS,
    ConfigurationOutcome,
    ReportedExcerpt,
)
from pytest_llmbench.runs.measure.measurement import measure


def outcome_of(
    content: Run, status: Status = Status.FAILED, folder: Path = Path("/runs")
) -> ConfigurationOutcome:
    judgement = judge(evidence(measure(content, BASELINE, NOW)))
    return describe(
        Outcome(ConfigurationResult(Case(KEY.id, KEY), judgement), status), NOW, folder
    )


def in_file(path: Path, *logs: ParsedLog) -> Run:
    """Return a run whose attempts all have this log."""
    whole = run(*logs)
    attempts = tuple(
        Attempt(
            AttemptFiles(attempt.files.number, str(path.parent), path.name), attempt.log
        )
        for attempt in whole.attempts
    )
    return Run(whole.found, attempts, whole.identity, whole.started, whole.started_from)


def numbered(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(1, count + 1))


# --- steps ----------------------------------------------------------------------------


def test_document_contains_all_steps_and_marks_slow_ones() -> None:
    charted = outcome_of(
        run(log(segment(steps([23.4, *[7.4] * 29, 9.0, *[7.4] * 19]))))
    ).steps
    assert charted is not None
    assert charted.index == tuple(range(50))
    assert charted.seconds == (23.4, *[7.4] * 29, 9.0, *[7.4] * 19)
    assert charted.slow == (
        30,
    )  # the first step is slow as well, but nothing counts it


def test_document_contains_steps_of_the_judged_attempt() -> None:
    truncated, whole = (
        log(segment(steps([9.0] * 20), finished=False)),
        log(segment(steps(7.4))),
    )
    judged = outcome_of(run(truncated, whole)).steps
    assert judged is not None
    assert judged.seconds == (7.4,) * 50
    two = log(segment(steps([9.0] * 20), finished=False), segment(steps(7.4)))
    assert outcome_of(run(two)).steps == judged


@pytest.mark.parametrize("count", [2000, 9001])
def test_json_report_of_a_thinned_long_run_still_contains_its_slow_steps(
    count: int,
) -> None:
    seconds = [7.4] * count
    seconds[33] = 9.5
    charted = outcome_of(run(log(segment(steps(seconds), total=count)))).steps
    assert charted is not None
    assert MOST_STEPS / 3 < len(charted.index) <= MOST_STEPS
    assert [charted.index[position] for position in charted.slow] == [33]
    assert charted.index[-1] > count - 6
    assert len(charted.seconds) == len(charted.index)


def excerpt(path: Path, line: int) -> Excerpt | None:
    return read_excerpts([(path, line)]).get((path, line))


# --- the excerpt ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "first", "last"), [(1, 1, 13), (50, 23, 62), (99, 72, 100)]
)
def test_excerpt_contains_surrounding_lines(
    tmp_path: Path, line: int, first: int, last: int
) -> None:
    (path := tmp_path / "a.out").write_text(numbered(100))
    excerpts = excerpt(path, line)
    assert excerpts == Excerpt(
        first, [f"line {number}" for number in range(first, last + 1)]
    )


def test_excerpt_escapes_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.out"
    path.write_bytes(b"a\tb\x1b[31m\r\n" + b"\xff\n" + b"x" * 1000 + b"\nlast")
    excerpts = excerpt(path, 2)
    assert excerpts is not None
    assert excerpts.lines == [
        "a       b\\x1b[31m",
        "\N{REPLACEMENT CHARACTER}",
        "x" * (MAX_CHARACTERS - 3) + "...",
        "last",
    ]


@pytest.mark.parametrize(
    "path", ["<stdin>", "/nowhere/logs.tar/a.out", "/", "s3:/bucket/a.out"]
)
def test_excerpt_is_skipped_for_unreadable_logs(path: str) -> None:
    assert excerpt(Path(path), 3) is None


@pytest.mark.slow
def test_excerpts_of_an_archive_are_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["runs/a.out", "runs/b.out", "runs/c.out.gz"]
    texts = [
        numbered(100).encode(),
        numbered(30_000).encode(),
        gzip.compress(numbered(500).encode()),
    ]
    data = archive([*zip(names, texts, strict=True), ("runs/d.out", b"")])
    path = tmp_path / "night.tar.zst"
    path.write_bytes(zstd.compress(data))
    opened = list[Path]()

    def blocks(path: Path) -> Iterator[bytes]:
        opened.append(path)
        yield path.read_bytes()

    monkeypatch.setattr(files, "read_blocks", blocks)
    offsets = [(path / names[1], 29_000), (path / names[2], 400), (path / names[0], 3)]
    excerpts = read_excerpts(
        [*offsets, (path / "runs" / "gone.out", 3), (path / "runs" / "d.out", 3)]
    )
    assert opened == [path]
    assert set(excerpts) == set(offsets)
    for location, one in excerpts.items():
        assert one.lines[location[1] - one.first_line] == f"line {location[1]}"


def test_excerpt_is_read_from_a_truncated_archive(tmp_path: Path) -> None:
    path = tmp_path / "night.tar"
    path.write_bytes(archive([("a.out", b"whole\n"), ("b.out", b"cut\n" * 999)])[:2000])
    assert list(read_excerpts([(path / "a.out", 1), (path / "b.out", 900)])) == [
        (path / "a.out", 1)
    ]


def test_excerpt_is_skipped_for_large_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the log is the first member: a later member may have the same name."""
    path = tmp_path / "night.tar.gz"
    path.write_bytes(
        gzip.compress(
            archive([("a.out", numbered(9).encode()), ("b.out", bytes(4 << 20))])
        )
    )
    assert read_excerpts([(path / "a.out", 1)])
    monkeypatch.setattr(quoting, "MAX_ARCHIVE_BYTES", 4 << 20)
    assert read_excerpts([(path / "a.out", 1)]) == {}


def test_excerpt_of_a_failure_shows_its_problem(tmp_path: Path) -> None:
    (path := tmp_path / "a.out").write_text(numbered(300))
    diverged = steps(loss=np.array([12.0] * 20 + [float("nan")] * 30))
    described = outcome_of(in_file(path, log(segment(diverged))), folder=tmp_path)
    assert described.reason == "diverged"
    assert described.excerpt == ReportedExcerpt(log="a.out", line=120, what="")


@pytest.mark.parametrize(
    ("slow", "what"),
    [
        ({}, "step 11, the first of the window"),
        ({30: 19.0, 31: 25.0}, "step 31, the slowest of the window: 25.00 s"),
        (
            {3: 40.0},
            "step 11, the first of the window",
        ),  # what the window leaves out explains nothing
    ],
)
def test_excerpt_of_a_slow_run_shows_its_slowest_step(
    tmp_path: Path, slow: dict[int, float], what: str
) -> None:
    (path := tmp_path / "a.out").write_text(numbered(300))
    content = segment(steps([slow.get(number, 9.9) for number in range(50)]))
    described = outcome_of(in_file(path, log(content)), folder=tmp_path)
    number = int(what.split()[1].removesuffix(","))
    assert described.verdict in ("REGRESSION", "INCONCLUSIVE")
    assert described.excerpt == ReportedExcerpt(
        log="a.out", line=int(content.steps.line[number]), what=what
    )


def test_passed_run_has_no_excerpt(tmp_path: Path) -> None:
    (path := tmp_path / "a.out").write_text(numbered(300))
    assert (
        outcome_of(in_file(path, log(segment(steps(7.3)))), Status.PASSED).excerpt
        is None
    )
    assert (
        outcome_of(in_file(path, log(segment(steps(9.9)))), Status.PASSED).excerpt
        is None
    )
    assert (
        outcome_of(in_file(path, log(segment(steps(5.0))))).excerpt is None
    )  # an IMPROVEMENT that fails: nothing is slow
