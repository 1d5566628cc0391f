"""The compared programs of benchmarks/speed/ingest.py get the same results, and
failures are reported."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest
from source_trees import OURS, ROOT, check_package, prepare_trees
from speed import ingest_logs, ingest_today
from speed.ingest import Measured, measured, reading, searches, session, shell, show

from pytest_llmbench.logs.log_reader import read_log


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    ingest_logs.small(folder, 3)
    return folder


def written(script: str, *arguments: Path) -> list[list[str]]:
    """Return the words of each line that a script of today prints."""
    text = subprocess.run(
        ["bash", "-c", script, "bash", *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [line.split() for line in text.splitlines()]


@pytest.mark.slow
def test_shell_pipeline_and_python_loop_find_the_steps_of_the_log_reader(
    logs: Path,
) -> None:
    result = written(ingest_today.PIPELINE, logs)
    assert len(result) == 3
    for name, average, deviation in result:
        (segment,) = read_log(Path(name)).segments
        seconds = segment.steps.seconds.tolist()
        assert float(average) == pytest.approx(mean(seconds[11:45]), rel=1e-4)
        assert float(deviation) == pytest.approx(stdev(seconds[11:45]), rel=1e-2)
        rows = ingest_today.read(Path(name))
        assert [row[:2] for row in rows] == list(zip(range(50), seconds, strict=True))


@pytest.mark.slow
def test_benchmark_reader_process_reports_numbers_of_logs_and_steps(logs: Path) -> None:
    result = reading("tree", logs)()
    assert (result.said["logs"], result.said["steps"]) == (3, 150)
    assert 0 < result.seconds < 60
    assert reading("find", logs)().said["logs"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "needle", "steps"),
    [("large", ingest_today.NEEDLE, 50), ("trace", "train_step_timing", 5)],
)
def test_large_logs_have_the_requested_size(
    kind: str, needle: str, steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    ingest_logs.KINDS[kind](path, 3_000_000)
    assert path.stat().st_size == pytest.approx(3_000_000, rel=0.02)
    assert path.read_bytes().count(needle.encode()) == steps
    assert sum(len(piece.steps) for piece in read_log(path).segments) == steps


@pytest.mark.slow
def test_generated_logs_of_different_jobs_have_different_step_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ingest_logs, "MANY_SIZE", 200_000)
    ingest_logs.many(tmp_path, 3)
    logs = [read_log(path) for path in tmp_path.rglob("log-*.out")]
    assert len({tuple(log.segments[0].steps.seconds) for log in logs}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ingest_logs.SMALL)
def test_python_loop_finds_the_steps_of_every_dialect(
    dialect: str, tmp_path: Path
) -> None:
    ingest_logs.SMALL[dialect](tmp_path, 2)
    for path in tmp_path.rglob("log-*.out"):
        segments = read_log(path).segments
        seconds = [second for part in segments for second in part.steps.seconds]
        unit = 1000 if dialect == "megatron" else 1
        rows = ingest_today.read(path, dialect)
        assert [row[1] / unit for row in rows] == pytest.approx(seconds)
        assert all(row[2] > 0 for row in rows[2:])


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_other_commit_reads_and_judges_with_its_own_package(
    logs: Path, tmp_path: Path
) -> None:
    trees = prepare_trees(["HEAD"], tmp_path)
    assert list(trees) == [OURS, "HEAD"]
    tree = trees["HEAD"]
    runs = [reading("tree", logs, tree=tree), session(logs, tree=tree)]
    said, _ = (run().said for run in runs)
    assert (said["logs"], said["steps"]) == (3, 150)
    (tree / "pytest_llmbench" / "__init__.py").write_text("raise SystemExit(7)")
    for run in runs:
        with pytest.raises(RuntimeError, match="ended with"):
            run()
    assert reading("tree", logs)().said["logs"] == 3


def test_tree_of_a_package_imported_from_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="was imported instead of the package of"):
        check_package(ROOT / "pytest_llmbench" / "__init__.py", tmp_path)


def test_table_shows_medians_and_ranges_of_ratios(
    capsys: pytest.CaptureFixture[str],
) -> None:
    times = {"loop": (2.0, 1.0, 4.0), "HEAD": (2.0, 3.0, 8.0)}
    rounds = {
        name: [Measured(one, 2 * one, 1 << 20, {}) for one in column]
        for name, column in times.items()
    }
    show("title", rounds, "loop", 10**9)
    text = capsys.readouterr().out
    assert "| HEAD | 2 (1 to 3) | 2 (1 to 3) | 0.333 | 3 | 1 |" in text


def test_trace_operations_are_counted_by_type(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    ingest_logs.trace(path, 300_000)
    lines = [
        line.split() for line in path.read_text().splitlines() if " opCount " in line
    ]
    counted = {
        name: int(count) for name, count, _ in written(ingest_today.COUNTING, path)
    }
    assert counted == Counter(line[4] for line in lines)


def test_failed_command_gives_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 3:\nwhy"):
        measured([sys.executable, "-c", "import sys; print('why'); sys.exit(3)"])
    with pytest.raises(RuntimeError, match="ended with"):
        shell("for log in 1 2; do false; true; done")()


def test_grep_benchmark_reads_logs_beyond_the_first_match(logs: Path) -> None:
    """Its output is a pipe: with /dev/null it would stop at the first match."""
    assert searches(logs)["grep -c"]().seconds > 0
    counts = written(f"grep -rc '{ingest_today.NEEDLE}' \"$@\" | cat", logs)
    assert sum(int(line[0].rpartition(":")[2]) for line in counts) >= 150
