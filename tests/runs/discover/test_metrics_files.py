"""Metrics files are runs if no log is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.runs.discover.metrics_files import is_metrics
from pytest_llmbench.runs.discover.path_patterns import make_pattern


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def find_logs(*paths: Path) -> dict[str, list[str]]:
    """Return the names of the logs of each run."""
    return {
        run.id: [metrics_run.log.name for metrics_run in run.attempts]
        for run in find_runs(paths).runs
    }


@pytest.mark.parametrize(
    "name",
    [
        "trainer_state.json",
        "trainer_log.jsonl",
        "logging.jsonl",
        "metrics.csv",
        "events.out.tfevents.17.node.1",
    ],
)
def test_metrics_file_in_a_folder_without_logs_is_a_run(
    tmp_path: Path, name: str
) -> None:
    write(tmp_path, f"a/{name}", "a/config.json", "b/other.jsonl")
    assert list(find_logs(tmp_path).values()) == [[name]]


@pytest.mark.parametrize("log", ["train.out", "a/train.log", "b/c/slurm-1.out"])
def test_metrics_file_near_a_log_is_listed_apart_from_the_runs(
    tmp_path: Path, log: str
) -> None:
    write(tmp_path, "a/trainer_state.json", log)
    discovery = find_runs([tmp_path])
    assert [
        [metrics_run.log.name for metrics_run in run.attempts] for run in discovery.runs
    ] == [[Path(log).name]]
    assert [
        metrics_run.log.name
        for run in discovery.metrics
        for metrics_run in run.attempts
    ] == ["trainer_state.json"]
    assert list(find_logs(tmp_path / "a" / "trainer_state.json").values()) == [
        ["trainer_state.json"]
    ]


def test_most_informative_kind_of_metrics_file_is_chosen(tmp_path: Path) -> None:
    write(tmp_path, "a/trainer_state.json", "a/trainer_log.jsonl")
    assert list(find_logs(tmp_path).values()) == [["trainer_log.jsonl"]]
    assert [path.name for path, _ in find_runs([tmp_path]).ignored] == [
        "trainer_state.json"
    ]


@pytest.mark.parametrize(
    ("other", "read"),
    [
        ("trainer_state.json", "trainer_state.json"),
        ("metrics.csv", "events.out.tfevents.17.node.1"),
    ],
)
def test_trainer_event_files_are_ignored(tmp_path: Path, other: str, read: str) -> None:
    """Trainer's state contains the duration of the run; other frameworks use event
    files."""
    write(tmp_path, "a/events.out.tfevents.17.node.1", f"a/{other}")
    assert list(find_logs(tmp_path).values()) == [[read]]


def test_checkpoint_state_is_ignored(tmp_path: Path) -> None:
    write(tmp_path, "a/checkpoint-500/trainer_state.json", "a/trainer_state.json")
    (run,) = find_runs([tmp_path]).runs
    assert run.folder == tmp_path / "a"


@pytest.mark.parametrize(
    "name",
    [
        "state.json",
        "my_trainer_state.json",
        "trainer_state.json.bak",
        "log.jsonl",
        "events.out.tfevents.1.n.profile-empty",
    ],
)
def test_file_of_another_name_is_no_metrics_file(name: str) -> None:
    assert not is_metrics(name)


def test_event_files_of_one_folder_are_the_attempts_of_one_run(tmp_path: Path) -> None:
    """A restart writes another file, whose name begins with the time."""
    write(
        tmp_path,
        "a/tb/events.out.tfevents.1800000002.n2.7",
        "a/tb/events.out.tfevents.1800000001.n1.9",
    )
    (run,) = find_runs([tmp_path]).runs
    assert [metrics_run.log.name for metrics_run in run.attempts] == [
        "events.out.tfevents.1800000001.n1.9",
        "events.out.tfevents.1800000002.n2.7",
    ]


def test_event_file_pattern_ignores_node_and_process() -> None:
    assert (
        make_pattern(("elm", "tb", "events.out.tfevents.1800000001.n1.9"))
        == "elm/tb/events.out.tfevents.*"
    )
