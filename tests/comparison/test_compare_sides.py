"""Comparison of two sides: pairing of runs, and the use of a history."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from generator import write_run
from generator.__main__ import shipped
from msgspec.structs import replace
from support.remembered import document, nights, outcome

from pytest_llmbench.comparison.compare_sides import choose_windows, compare_paths
from pytest_llmbench.comparison.comparison_records import ComparedSide, SidesCompared
from pytest_llmbench.comparison.sides import SideRequest, parse_side, refuse_same
from pytest_llmbench.core.baseline_records import Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.session.settings import Settings

GROK = "grok1_314b-25.05-gb200-bf16-128"
START = datetime(2025, 11, 1, 2, tzinfo=UTC)
NOW = datetime(2025, 12, 20, tzinfo=UTC)


def write_side(root: Path, *days: int, name: str = GROK, factor: float = 1.0) -> None:
    for day in days:
        options = {
            "factor": factor * (1 + 0.001 * (day % 3)),
            "job_id": str(1000 + day),
        }
        write_run(root, shipped()[name], started=START + timedelta(days=day), **options)


def compare(
    a: str | Path, b: str | Path, history: StoreLocation | None = None
) -> SidesCompared:
    requests = tuple(
        parse_side(label, str(text), history, Path.cwd())
        for label, text in (("A", a), ("B", b))
    )
    paths = tuple(request.path for request in requests if request.path)
    return compare_paths(
        (requests[0], requests[1]), Settings(logs=paths), history, 0.01, NOW
    )


@pytest.fixture
def history_location(tmp_path: Path) -> StoreLocation:
    """A history with one run on each of 20 days, with nodes."""
    history_location = StoreLocation("h.db", tmp_path / "h.db")
    outcomes = nights([7.33 * (1 + 0.002 * (day % 3)) for day in range(20)])
    write(
        history_location,
        document(
            *(
                {**stored_outcome, "jobs": [{"nodes": ["n1", "n2"]}]}
                for stored_outcome in outcomes
            )
        ),
    )
    return history_location


@pytest.mark.slow
def test_folder_nested_in_the_other_compared_folder_counts_on_neither_side(
    tmp_path: Path,
) -> None:
    write_side(tmp_path / "all" / "tonight", 1)
    write_side(tmp_path / "all" / "before", 5, 6)
    comparison = compare(tmp_path / "all" / "tonight", tmp_path / "all")
    assert comparison.comparisons == ()
    assert [run.text for run in comparison.no_data] == [
        "both sides contain it, so it cannot show a difference"
    ] * 2
    assert comparison.b.counted == 2


@pytest.mark.slow
def test_copied_run_within_one_compared_folder_is_listed_and_not_counted(
    tmp_path: Path,
) -> None:
    write_side(tmp_path / "a", 1, 2)
    write_side(tmp_path / "b", 11, 12)
    shutil.copytree(tmp_path / "b", tmp_path / "b" / "again")
    comparison = compare(tmp_path / "a", tmp_path / "b")
    assert comparison.comparisons[0].estimate.runs == (2, 2)
    assert [(run.side, run.reason) for run in comparison.no_data] == [
        ("B", Reason.COPIED)
    ] * 2
    assert {run.configuration for run in comparison.no_data} == {GROK}


@pytest.mark.parametrize(
    ("seconds", "rounding"),
    [((24.0,) * 34, 0.05 / 24), ((24.0, 24.1) * 17, 0.0), ((1 / 3,) * 34, 0.0)],
)
def test_rounding_is_estimated_from_stored_step_times(
    tmp_path: Path, seconds: tuple[float, ...], rounding: float
) -> None:
    history_location = StoreLocation("h.db", tmp_path / "h.db")
    mean = sum(seconds) / len(seconds)
    outcomes = [
        {**stored_outcome, "window_seconds": list(seconds)}
        for stored_outcome in nights([mean] * 4)
    ]
    write(history_location, document(*outcomes))
    (comparison,) = compare(
        "2025-11-01..2025-11-02", "2025-11-03..2025-11-04", history_location
    ).comparisons
    assert comparison.estimate.rounding == pytest.approx(2 * rounding)


@pytest.mark.slow
def test_folder_is_compared_with_stored_days(
    tmp_path: Path, history_location: StoreLocation
) -> None:
    write_side(tmp_path / "b", 40, 41, factor=1.1)
    (comparison,) = compare(
        "2025-11-01..2025-11-04", tmp_path / "b", history_location
    ).comparisons
    assert comparison.configuration == GROK
    assert comparison.estimate.answer == "slower"
    assert (
        comparison.estimate.noise.source
        == "6 groups of both sides and 16 days of history"
    )
    assert {run.nodes for run in comparison.a} == {frozenset({"n1", "n2"})}
    assert {run.nodes for run in comparison.b} == {frozenset()}
    assert comparison.estimate.same_nodes is None


@pytest.mark.slow
def test_history_provides_nodes_of_runs_on_disk(
    tmp_path: Path,
) -> None:
    write_side(tmp_path / "a", 1)
    write_side(tmp_path / "b", 9, factor=1.1)
    history_location = StoreLocation("h.db", tmp_path / "h.db")
    for day, node in ((1, "n1"), (9, "n9")):
        stored_outcome = outcome(7.33, day, job=str(1000 + day))
        stored_outcome["jobs"] = [{"nodes": [node]}]
        stored_outcome["run"]["started"] = (START + timedelta(days=day)).isoformat()
        write(history_location, document(stored_outcome))
    (comparison,) = compare(
        tmp_path / "a", tmp_path / "b", history_location
    ).comparisons
    assert [run.nodes for run in (*comparison.a, *comparison.b)] == [
        frozenset({"n1"}),
        frozenset({"n9"}),
    ]
    assert comparison.estimate.same_nodes is False
    assert "nodes" in [fact.name for fact in comparison.differences.between]


@pytest.mark.slow
def test_history_days_of_the_compared_runs_are_not_counted_twice_for_noise(
    tmp_path: Path, history_location: StoreLocation
) -> None:
    (comparison,) = compare("2025-11-01", "2025-11-02", history_location).comparisons
    assert comparison.estimate.noise.source == "18 days of history"
    (longer,) = compare(
        "2025-11-01..2025-11-07", "2025-11-08..2025-11-14", history_location
    ).comparisons
    assert (
        longer.estimate.noise.source == "14 groups of both sides"
    )  # six days are too few
    assert longer.estimate.degrees_of_freedom == 12


def test_runs_measured_over_different_step_windows_are_not_compared(
    tmp_path: Path, history_location: StoreLocation
) -> None:
    stored_outcome = outcome(7.33, 30)
    stored_outcome["window"]["first"] = 35
    write(history_location, document(stored_outcome))
    comparison = compare("2025-11-01", "2025-12-01", history_location)
    assert comparison.comparisons == ()
    assert [pair.text for pair in comparison.not_compared] == [
        "A and B were measured over different steps, or with different statistics"
    ]
    assert not comparison.complete


@pytest.mark.slow
def test_comparison_uses_the_step_window_that_most_runs_of_both_sides_have(
    history_location: StoreLocation,
) -> None:
    comparison = compare("2025-11-01..2025-11-03", "2025-11-04", history_location)
    (runs,) = comparison.a.runs.values()
    few, most = Window(11, 44, "trimmed_mean"), Window(11, 44)
    sides = [
        ComparedSide(label, "", {("x", few): runs[:1], ("x", most): runs})
        for label in "AB"
    ]
    assert choose_windows(sides[0], sides[1]) == {"x": most}
    assert choose_windows(sides[0], replace(sides[1], runs={("x", few): runs})) == {
        "x": few
    }


@pytest.mark.slow
def test_unused_run_is_listed_with_its_configuration(
    tmp_path: Path, history_location: StoreLocation
) -> None:
    invalid = outcome(7.33, 30)
    write(
        history_location,
        document(
            {
                **invalid,
                "verdict": "INVALID",
                "reason": "diverged",
                "text": "the loss is no number",
            }
        ),
    )
    comparison = compare("2025-11-01", "2025-12-01", history_location)
    (run,) = comparison.no_data
    assert (run.side, run.configuration, run.reason, run.text) == (
        "B",
        GROK,
        "diverged",
        "the loss is no number",
    )
    assert [pair.text for pair in comparison.not_compared] == [
        "only in A: B has no usable run"
    ]


@pytest.mark.parametrize("text", ["2025-11-01", "20251101-0300-0123456789ab"])
def test_folder_named_like_a_date_is_used_without_history_or_by_its_path(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    history_location: StoreLocation,
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / text).mkdir()
    assert parse_side("A", text, None, tmp_path).path == tmp_path / text
    assert parse_side("A", text, history_location, tmp_path).path is None
    assert (
        parse_side("A", f"./{text}", history_location, tmp_path).path == tmp_path / text
    )


def test_comparing_a_folder_with_a_symlink_to_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(SettingsError, match="A and B are the same"):
        refuse_same(
            *(SideRequest(name.upper(), name, tmp_path / name) for name in "ab")
        )
