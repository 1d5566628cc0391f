"""Two sides put together: which runs are compared with which, and what a history
adds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from generator import write_run
from generator.__main__ import shipped
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


def compared(
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
def place(tmp_path: Path) -> StoreLocation:
    """A history with a run of each of 20 nights, on nodes."""
    place = StoreLocation("h.db", tmp_path / "h.db")
    outcomes = nights([7.33 * (1 + 0.002 * (night % 3)) for night in range(20)])
    write(
        place,
        document(*({**told, "jobs": [{"nodes": ["n1", "n2"]}]} for told in outcomes)),
    )
    return place


@pytest.mark.slow
def test_a_folder_within_the_other_leaves_nothing_of_it(tmp_path: Path) -> None:
    write_side(tmp_path / "all" / "tonight", 1)
    write_side(tmp_path / "all" / "before", 5, 6)
    found = compared(tmp_path / "all" / "tonight", tmp_path / "all")
    assert found.comparisons == ()
    assert [run.text for run in found.no_data] == [
        "both sides contain it, so it cannot show a difference"
    ] * 2
    assert found.b.counted == 2


@pytest.mark.slow
def test_a_copy_within_a_side_is_listed_and_counts_once(tmp_path: Path) -> None:
    write_side(tmp_path / "a", 1, 2)
    write_side(tmp_path / "b", 11, 12)
    shutil.copytree(tmp_path / "b", tmp_path / "b" / "again")
    found = compared(tmp_path / "a", tmp_path / "b")
    assert found.comparisons[0].estimate.runs == (2, 2)
    assert [(run.side, run.reason) for run in found.no_data] == [
        ("B", Reason.COPIED)
    ] * 2
    assert {run.configuration for run in found.no_data} == {GROK}


@pytest.mark.parametrize(
    ("seconds", "rounding"),
    [((24.0,) * 34, 0.05 / 24), ((24.0, 24.1) * 17, 0.0), ((1 / 3,) * 34, 0.0)],
)
def test_stored_step_times_tell_how_far_they_may_be_rounded(
    tmp_path: Path, seconds: tuple[float, ...], rounding: float
) -> None:
    place = StoreLocation("h.db", tmp_path / "h.db")
    mean = sum(seconds) / len(seconds)
    outcomes = [
        {**told, "window_seconds": list(seconds)} for told in nights([mean] * 4)
    ]
    write(place, document(*outcomes))
    (comparison,) = compared(
        "2025-11-01..2025-11-02", "2025-11-03..2025-11-04", place
    ).comparisons
    assert comparison.estimate.rounding == pytest.approx(2 * rounding)


@pytest.mark.slow
def test_a_folder_and_nights_of_a_history_are_compared(
    tmp_path: Path, place: StoreLocation
) -> None:
    write_side(tmp_path / "b", 40, 41, factor=1.1)
    (comparison,) = compared(
        "2025-11-01..2025-11-04", tmp_path / "b", place
    ).comparisons
    assert comparison.configuration == GROK
    assert comparison.estimate.answer == "slower"
    assert (
        comparison.estimate.noise.source
        == "6 groups of both sides and 16 nights of history"
    )
    assert {run.nodes for run in comparison.a} == {frozenset({"n1", "n2"})}
    assert {run.nodes for run in comparison.b} == {frozenset()}
    assert comparison.estimate.same_nodes is None


@pytest.mark.slow
def test_the_history_tells_the_nodes_of_runs_that_lie_in_a_folder(
    tmp_path: Path,
) -> None:
    write_side(tmp_path / "a", 1)
    write_side(tmp_path / "b", 9, factor=1.1)
    place = StoreLocation("h.db", tmp_path / "h.db")
    for day, node in ((1, "n1"), (9, "n9")):
        told = outcome(7.33, day, job=str(1000 + day))
        told["jobs"] = [{"nodes": [node]}]
        told["run"]["started"] = (START + timedelta(days=day)).isoformat()
        write(place, document(told))
    (comparison,) = compared(tmp_path / "a", tmp_path / "b", place).comparisons
    assert [run.nodes for run in (*comparison.a, *comparison.b)] == [
        frozenset({"n1"}),
        frozenset({"n9"}),
    ]
    assert comparison.estimate.same_nodes is False
    assert "nodes" in [fact.name for fact in comparison.differences.between]


@pytest.mark.slow
def test_the_nights_of_the_sides_tell_their_noise_once(
    tmp_path: Path, place: StoreLocation
) -> None:
    (comparison,) = compared("2025-11-01", "2025-11-02", place).comparisons
    assert comparison.estimate.noise.source == "18 nights of history"
    (longer,) = compared(
        "2025-11-01..2025-11-07", "2025-11-08..2025-11-14", place
    ).comparisons
    assert (
        longer.estimate.noise.source == "14 groups of both sides"
    )  # six nights are too few
    assert longer.estimate.degrees_of_freedom == 12


def test_runs_over_other_steps_are_not_compared(
    tmp_path: Path, place: StoreLocation
) -> None:
    told = outcome(7.33, 30)
    told["window"]["first"] = 35
    write(place, document(told))
    found = compared("2025-11-01", "2025-12-01", place)
    assert found.comparisons == ()
    assert [each.text for each in found.not_compared] == [
        "A and B were measured over other steps, or in another way"
    ]
    assert not found.complete


@pytest.mark.slow
def test_of_several_windows_the_one_of_most_runs_counts(place: StoreLocation) -> None:
    found = compared("2025-11-01..2025-11-03", "2025-11-04", place)
    (runs,) = found.a.runs.values()
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
def test_every_run_that_does_not_count_is_listed_with_its_configuration(
    tmp_path: Path, place: StoreLocation
) -> None:
    invalid = outcome(7.33, 30)
    write(
        place,
        document(
            {
                **invalid,
                "verdict": "INVALID",
                "reason": "diverged",
                "text": "the loss is no number",
            }
        ),
    )
    found = compared("2025-11-01", "2025-12-01", place)
    (run,) = found.no_data
    assert (run.side, run.configuration, run.reason, run.text) == (
        "B",
        GROK,
        "diverged",
        "the loss is no number",
    )
    assert [each.text for each in found.not_compared] == [
        "only in A: B has no run of it that counts"
    ]


@pytest.mark.parametrize("text", ["2025-11-01", "20251101-0300-0123456789ab"])
def test_a_folder_that_is_called_as_a_day_is_one_without_a_history_or_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: StoreLocation, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / text).mkdir()
    assert parse_side("A", text, None, tmp_path).path == tmp_path / text
    assert parse_side("A", text, place, tmp_path).path is None
    assert parse_side("A", f"./{text}", place, tmp_path).path == tmp_path / text


def test_a_link_to_a_side_is_that_side(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(SettingsError, match="A and B are the same"):
        refuse_same(
            *(SideRequest(name.upper(), name, tmp_path / name) for name in "ab")
        )
