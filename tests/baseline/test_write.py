"""A recorded baseline reads back to the measured numbers, and no file is lost."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from generator.__main__ import shipped
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import NOW, measurement

from pytest_llmbench.baseline import write
from pytest_llmbench.baseline.read import (
    find_shipped_baselines,
    list_shipped_baselines,
    read_file,
    read_recipe,
    read_recipes,
)
from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Baseline,
    BaselineKind,
    Budget,
    Recording,
    Tolerance,
)
from pytest_llmbench.core.errors import BaselineError, RecordError
from pytest_llmbench.core.tolerance import NAMES, get_metric_name, parse_tolerances
from pytest_llmbench.session.recordings import make_recording

SHIPPED = tuple(shipped().values())
GROK = tuple(
    baseline
    for baseline in SHIPPED
    if baseline.key.id.startswith("grok1_314b-25.05-gb200")
)


def make_recording_of(seconds: float = 7.402, runs: int = 2) -> Recording:
    return Recording(
        date="2025-11-20",
        runs=runs,
        mean_seconds=seconds + 0.01,
        trimmed_mean_seconds=seconds,
        standard_deviation_seconds=0.04,
        run_seconds=(seconds,) * runs,
        log_sha256=("0" * 64,) * runs,
    )


def parse_tolerance(text: str) -> Tolerance:
    (parsed,) = parse_tolerances(text, "baseline file")
    return parsed


seconds = st.floats(1e-3, 80_000)
texts = st.sampled_from(
    [
        "",
        "alice@example.com on login1",
        "driver 570: slower, # and stays",
        "'7.3'",
        "null",
        "ü 1.5",
    ]
)
dates = st.dates(date(2024, 1, 1)).map(date.isoformat)


@st.composite
def draw_recordings(draw: st.DrawFn) -> Recording:
    """Draw a consistent recording."""
    runs = draw(st.lists(seconds, min_size=1, max_size=4))
    deviation = draw(st.floats(0, 1000))
    mean = sum(runs) / len(runs)
    # Replaced values come first, and the newest run started before the recording.
    *days_before, newest, day = sorted(draw(st.lists(dates, min_size=2, max_size=5)))
    return Recording(
        date=day,
        runs=len(runs),
        mean_seconds=min(mean + draw(st.floats(0, 2)) * deviation, 86_400.0),
        trimmed_mean_seconds=mean,
        standard_deviation_seconds=deviation,
        run_seconds=tuple(runs),
        log_sha256=tuple(
            draw(
                st.lists(
                    st.text("0123456789abcdef", min_size=64, max_size=64),
                    max_size=len(runs),
                )
            )
        ),
        newest_run=draw(st.sampled_from(["", newest])),
        by=draw(texts),
        reason=draw(texts),
        environment=draw(
            st.sampled_from([(), (("build", "nemo 25.04 abc"), ("commit", "0123"))])
        ),
        earlier=tuple(
            AcceptedValue(day_before, draw(seconds), draw(texts), draw(texts))
            for day_before in days_before
        ),
        groups=draw(st.one_of(st.none(), st.integers(1, len(runs)))),
        levels=draw(texts),
    )


fractions = st.sampled_from([0.05, 0.025, 3.3 / 100, 0.1 + 0.2, 1e-4])
tolerances = st.lists(
    st.builds(
        lambda name, fraction: parse_tolerance(f"{name}:{fraction:.20f}"),
        st.sampled_from(NAMES),
        fractions,
    ),
    max_size=4,
    unique_by=get_metric_name,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_recorded_baselines_read_back_with_the_same_numbers(
    data: st.DataObject,
) -> None:
    chosen = data.draw(
        st.lists(
            st.sampled_from(SHIPPED),
            min_size=1,
            max_size=5,
            unique_by=lambda base: base.key,
        )
    )
    pairs = [
        (
            replace(baseline, tolerances=tuple(data.draw(tolerances))),
            data.draw(draw_recordings()),
        )
        for baseline in chosen
    ]
    with tempfile.TemporaryDirectory() as directory:
        written = write.write_recorded(Path(directory), pairs)
        read_back = {
            baseline.key: baseline
            for path, _ in written
            for baseline in read_recipe(path).baselines
        }
    assert len(read_back) == len(pairs)
    for published, measured in pairs:
        baseline = read_back[published.key]
        assert baseline.kind == "recorded"
        assert baseline.recording == measured
        assert baseline.step_seconds == measured.trimmed_mean_seconds
        assert baseline.resolution_seconds == 0
        assert str(baseline.window) == "trimmed mean of steps 11 to 44"
        assert set(baseline.tolerances) == set(published.tolerances)
        assert replace(
            baseline, source=published.source
        ) == write.make_recorded_baseline(published, measured)


@pytest.mark.slow
def test_every_shipped_configuration_can_be_recorded(
    tmp_path: Path,
) -> None:
    written = write.write_recorded(
        tmp_path, [(baseline, make_recording_of()) for baseline in SHIPPED]
    )
    names = [f"{path.parent.name}/{path.name}" for path, _ in written]
    assert names == [
        "grok1/24.11.yaml",
        "grok1/25.05.yaml",
        "llama3.1/25.04.yaml",
        "maxtext_llama2/24.11.yaml",
        "nemotron4/25.01.yaml",
    ]
    assert not any(replaced for _, replaced in written)
    assert len(read_recipes([*list_shipped_baselines(), tmp_path])) == 10


def test_recording_keeps_other_configurations_and_reports_replaced_values(
    tmp_path: Path,
) -> None:
    write.write_recorded(
        tmp_path,
        [(GROK[0], make_recording_of(7.331)), (GROK[1], make_recording_of(7.5))],
    )
    ((path, replaced),) = write.write_recorded(
        tmp_path,
        [(GROK[0], make_recording_of(7.402)), (GROK[2], make_recording_of(8.0))],
    )
    assert replaced == {GROK[0].key: "7.331 s -> 7.402 s (+1.0 %)"}
    step_seconds = {
        baseline.key.gpus: baseline.step_seconds
        for baseline in read_recipe(path).baselines
    }
    assert step_seconds == pytest.approx({128: 7.402, 256: 7.5, 512: 8.0})


def test_recording_keeps_keys_that_a_user_wrote(tmp_path: Path) -> None:
    """Without its names, runs with these names would no longer match a baseline."""
    owned = """names: [grok1, "0815"]   # what we call it
title: Grok on our cluster
errata:
- {where: the table, reason: a typing error, printed: "1", corrected: "2"}
launch:
  kind: script

  commands:
    # by hand
    script: {command: ./launch.sh, fixed: {VERSION: "1.10"}}
  gpus_per_node: {gb200: 4}
"""
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    head, between, remaining = path.read_text().partition("peak_tflops:")
    names, others = owned.split("\n", 1)
    path.write_text(f"{head}{names}\n{between}{remaining}{others}")
    for _ in range(2):
        write.write_recorded(tmp_path, [(GROK[1], make_recording_of())])
        assert path.read_text().endswith(owned)
    recipe = read_recipe(path)
    assert (recipe.names, recipe.title, len(recipe.baselines)) == (
        ("grok1", "0815"),
        "Grok on our cluster",
        2,
    )


def test_full_model_recorded_beside_its_proxy_keeps_its_own_flops_formula(
    tmp_path: Path,
) -> None:
    grok = {
        base.key.gpus: base
        for base in SHIPPED
        if base.key.id.startswith("grok1_314b-24.11-h100-bf16")
    }
    write.write_recorded(tmp_path, [(grok[8], make_recording_of())])
    ((path, _),) = write.write_recorded(tmp_path, [(grok[512], make_recording_of())])
    formulas = {
        base.key.gpus: base.configuration.architecture.formula
        for base in read_recipe(path).baselines
    }
    assert formulas == {8: "grok", 512: "grok:3"}


def test_recording_again_keeps_the_drift_budget_of_the_file(
    tmp_path: Path,
) -> None:
    ((path, _),) = write.write_recorded(
        tmp_path, [(replace(GROK[0], drift_budget=0.03), make_recording_of())]
    )
    write.write_recorded(
        tmp_path, [(replace(GROK[1], drift_budget=0.2), make_recording_of())]
    )
    assert {baseline.drift_budget for baseline in read_recipe(path).baselines} == {0.03}


def test_recorded_baseline_in_a_file_takes_precedence_over_that_of_the_session(
    tmp_path: Path,
) -> None:
    write.write_recorded(tmp_path, [(GROK[0], make_recording_of(7.331))])
    session_baselines = [
        write.make_recorded_baseline(baseline, make_recording_of(8.0))
        for baseline in GROK[:2]
    ]
    recorded = write.find_recorded(
        tmp_path,
        {baseline.key for baseline in GROK[:3]},
        [*GROK[:3], *session_baselines],
    )
    assert {key.gpus: baseline.step_seconds for key, baseline in recorded.items()} == {
        128: 7.331,
        256: 8.0,
    }


def test_recording_one_configuration_twice_in_a_session_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(RecordError, match="found two recordings"):
        write.write_recorded(
            tmp_path,
            [(GROK[0], make_recording_of()), (GROK[0], make_recording_of(8.0))],
        )


def change_baseline(baseline: Baseline, change: str) -> Baseline:
    if change == "window":
        return replace(baseline, window=baseline.window._replace(first=35))
    if change == "peak TFLOP/s":
        return replace(baseline, peak_tflops=2500.0)
    architecture = replace(baseline.configuration.architecture, hidden_size=6145)
    return replace(
        baseline,
        configuration=replace(baseline.configuration, architecture=architecture),
    )


@pytest.mark.parametrize("change", ["window", "peak TFLOP/s", "model"])
def test_recording_with_another_window_peak_or_model_is_not_merged(
    tmp_path: Path, change: str
) -> None:
    """Another window must not affect the configurations that exist already."""
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    before = path.read_bytes()
    with pytest.raises(RecordError, match=f"found {change} .*expected one"):
        write.write_recorded(
            tmp_path, [(change_baseline(GROK[1], change), make_recording_of())]
        )
    assert path.read_bytes() == before


def read_tolerances(path: Path) -> dict[int, list[str]]:
    return {
        base.key.gpus: [str(tolerance_read) for tolerance_read in base.tolerances]
        for base in read_recipe(path).baselines
    }


def read_budgets(path: Path) -> dict[int, list[tuple[str, float]]]:
    return {
        base.key.gpus: [(budget.metric, budget.largest) for budget in base.budgets]
        for base in read_recipe(path).baselines
    }


def test_configurations_added_to_a_baseline_file_use_its_time_budgets(
    tmp_path: Path,
) -> None:
    limited = replace(
        GROK[0], budgets=(Budget("checkpoint_save_seconds", 30.0, "published.yaml:7"),)
    )
    ((path, _),) = write.write_recorded(
        tmp_path, [(limited, make_recording_of()), (GROK[1], make_recording_of())]
    )
    assert read_budgets(path) == {128: [("checkpoint_save_seconds", 30)], 256: []}
    path.write_text(
        path.read_text().replace(
            "steps: 50", "steps: 50\nbudgets: {checkpoint_load_seconds: 90}"
        )
    )
    wide = replace(GROK[0], budgets=(Budget("checkpoint_save_seconds", 99.0),))
    write.write_recorded(
        tmp_path, [(wide, make_recording_of(7.5)), (GROK[2], make_recording_of())]
    )
    load = ("checkpoint_load_seconds", 90)
    assert read_budgets(path) == {
        128: [load, ("checkpoint_save_seconds", 30)],
        256: [load],
        512: [load],
    }
    assert [budget.metric for budget in read_file(path).budgets] == [
        "checkpoint_load_seconds"
    ]
    assert path.read_text().count("checkpoint_load_seconds") == 1


def test_adding_a_configuration_changes_no_tolerance_of_the_recorded_ones(
    tmp_path: Path,
) -> None:
    """A wider tolerance must not affect the configurations that exist already."""
    pairs = [
        (
            replace(
                GROK[0], tolerances=(parse_tolerance("3%"), parse_tolerance("mfu:2%"))
            ),
            make_recording_of(),
        ),
        (GROK[1], make_recording_of()),
    ]
    ((path, _),) = write.write_recorded(tmp_path, pairs)
    write.write_recorded(
        tmp_path,
        [(replace(GROK[2], tolerances=(parse_tolerance("20%"),)), make_recording_of())],
    )
    assert read_tolerances(path) == {
        128: ["3 %", "2 % of mfu (+2.04 % time)"],
        256: [],
        512: ["20 %"],
    }


def test_configurations_added_to_a_baseline_file_use_its_tolerances(
    tmp_path: Path,
) -> None:
    ((path, _),) = write.write_recorded(
        tmp_path, [(GROK[0], make_recording_of()), (GROK[1], make_recording_of())]
    )
    text = path.read_text().replace("steps: 50", "steps: 50\ntolerance: 3%, mfu:2%")
    path.write_text(text.replace("gpus: 256\n", "gpus: 256\n  tolerance: perf:1%\n"))
    before = read_tolerances(path)
    assert before == {
        128: ["3 %", "2 % of mfu (+2.04 % time)"],
        256: ["1 % of performance (+1.01 % time)", "2 % of mfu (+2.04 % time)"],
    }
    wide = (parse_tolerance("20%"), parse_tolerance("days_to_1t_tokens:9%"))
    write.write_recorded(
        tmp_path,
        [
            (GROK[1], make_recording_of()),
            (replace(GROK[2], tolerances=wide), make_recording_of()),
        ],
    )
    assert read_file(path).tolerances == (
        parse_tolerance("3%"),
        parse_tolerance("mfu:2%"),
    )
    assert read_tolerances(path) == {
        **before,
        512: ["3 %", "9 % of days_to_1t_tokens", "2 % of mfu (+2.04 % time)"],
    }


def rewrite_with_mean(path: Path) -> None:
    """Rewrite a recorded file as it was when the mean decided."""
    path.write_text(
        path.read_text()
        .replace("timed: trimmed_mean", "timed: mean")
        .replace("statistic: trimmed_", "statistic: ")
    )


def test_baseline_file_recorded_by_the_mean_is_read_with_its_mean(
    tmp_path: Path,
) -> None:
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of(7.4))])
    rewrite_with_mean(path)
    (baseline,) = read_recipe(path).baselines
    assert (baseline.window.statistic, baseline.step_seconds) == (
        "mean",
        make_recording_of(7.4).mean_seconds,
    )


@pytest.mark.parametrize(
    "added", [GROK[0], GROK[1]], ids=["the same configuration", "another configuration"]
)
def test_baseline_file_recorded_by_the_mean_is_not_extended(
    tmp_path: Path, added: Baseline
) -> None:
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    rewrite_with_mean(path)
    before = path.read_bytes()
    expected = r"25\.05\.yaml: the baselines in this file use the mean, but this session records the trimmed mean; move the file away"
    with pytest.raises(RecordError, match=expected):
        write.write_recorded(tmp_path, [(added, make_recording_of())])
    assert path.read_bytes() == before


def test_published_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grok1" / "25.05.yaml"
    path.parent.mkdir()
    path.write_bytes((find_shipped_baselines() / "grok1" / "25.05.yaml").read_bytes())
    before = path.read_bytes()
    with pytest.raises(
        RecordError,
        match=r"25\.05\.yaml: found a published baseline file, expected a recorded one; record into another folder",
    ):
        write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    assert path.read_bytes() == before


def test_invalid_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "grok1" / "25.05.yaml"
    path.parent.mkdir()
    path.write_text("schema: 1\nkind: recorded\n")
    with pytest.raises(
        RecordError,
        match=r"cannot add to this file; move it away(.|\n)*found no 'recipe'",
    ):
        write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    assert path.read_text() == "schema: 1\nkind: recorded\n"


def test_link_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """The file may be shared, and the link would be lost. Links among the folders are
    followed."""
    ((real, _),) = write.write_recorded(
        tmp_path / "shared", [(GROK[0], make_recording_of())]
    )
    before = real.read_bytes()
    link = tmp_path / "own" / "grok1" / real.name
    link.parent.mkdir(parents=True)
    link.symlink_to(real)
    with pytest.raises(
        RecordError,
        match=r"25\.05\.yaml: this is a link to .*; record into the folder of that file",
    ):
        write.write_recorded(tmp_path / "own", [(GROK[1], make_recording_of())])
    assert link.is_symlink()
    assert real.read_bytes() == before
    (tmp_path / "again").symlink_to("shared")
    write.write_recorded(tmp_path / "again", [(GROK[1], make_recording_of())])
    assert len(read_recipe(real).baselines) == 2


@pytest.mark.parametrize(
    "broken",
    [
        replace(make_recording_of(), trimmed_mean_seconds=float("nan")),
        replace(make_recording_of(), mean_seconds=float("inf")),
        replace(make_recording_of(), run_seconds=(0.0, 7.4)),
        replace(make_recording_of(), runs=3),
        replace(make_recording_of(), date="yesterday"),
        replace(make_recording_of(), log_sha256=("not a hash",)),
    ],
    ids=["nan", "inf", "zero", "runs", "date", "hash"],
)
def test_recording_with_invalid_numbers_writes_no_file(
    tmp_path: Path, broken: Recording
) -> None:
    with pytest.raises(RecordError, match="not written: it would not read back"):
        write.write_recorded(tmp_path, [(GROK[0], broken)])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_unwritable_path_is_reported(
    tmp_path: Path,
) -> None:
    (tmp_path / "grok1").write_text("a file in the way")
    with pytest.raises(RecordError, match=r"25\.05\.yaml: .*expected a writable path"):
        write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])


def test_full_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match="No space left on device"):
        write.write_recorded(tmp_path, [(GROK[0], make_recording_of(9.0))])
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_unreadable_recorded_file_is_not_treated_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a share fails once, all configurations recorded before would be lost."""
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    before = path.read_bytes()
    original_stat = os.stat

    def stat(place: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if os.fspath(place) == str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(place))
        return original_stat(place, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        with pytest.raises(RecordError, match=r"25\.05\.yaml: Input/output error"):
            write.write_recorded(tmp_path, [(GROK[1], make_recording_of())])
    assert path.read_bytes() == before
    write.write_recorded(tmp_path, [(GROK[1], make_recording_of())])
    assert len(read_recipe(path).baselines) == 2


def test_recording_writes_no_file_if_one_existing_file_is_invalid(
    tmp_path: Path,
) -> None:
    (tmp_path / "nemotron4").mkdir()
    (tmp_path / "nemotron4" / "25.01.yaml").write_text("schema: 2\n")
    nemotron = next(
        baseline for baseline in SHIPPED if baseline.key.recipe == "nemotron4"
    )
    with pytest.raises(RecordError):
        write.write_recorded(
            tmp_path, [(GROK[0], make_recording_of()), (nemotron, make_recording_of())]
        )
    assert not (tmp_path / "grok1").exists()


def test_written_file_is_readable_by_other_users(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    import numpy as np

    measured = replace(
        make_recording_of(7.15),
        trimmed_mean_seconds=np.float64(7.15),
        run_seconds=(np.float64(7.1), np.float64(7.2)),
    )
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], measured)])
    assert read_recipe(path).baselines[0].recording == measured


def test_unknown_peak_is_recorded_as_unknown(tmp_path: Path) -> None:
    """NaN is never equal, so a copied one (as between processes) must not look like a
    bad file."""
    without_peak = replace(GROK[0], peak_tflops=float("nan"))
    ((path, _),) = write.write_recorded(tmp_path, [(without_peak, make_recording_of())])
    assert "bf16: NA" in path.read_text()
    assert str(read_recipe(path).baselines[0].peak_tflops) == "nan"


def test_untimed_recipe_can_be_recorded(tmp_path: Path) -> None:
    untimed = replace(
        GROK[0],
        kind=BaselineKind.RECIPE,
        step_seconds=float("nan"),
        cells=(),
        resolution_seconds=0.0,
    )
    ((path, _),) = write.write_recorded(tmp_path, [(untimed, make_recording_of(7.5))])
    recorded = read_recipe(path).baselines[0]
    assert (recorded.kind, recorded.step_seconds, recorded.window.first) == (
        "recorded",
        7.5,
        11,
    )


CONTRADICTIONS = [
    (
        "trimmed_mean_seconds: 7.402",
        "trimmed_mean_seconds: 8.1",
        "found trimmed_mean_seconds 8.1 but the mean of run_seconds",
    ),
    (
        "run_seconds: [7.402, 7.402]",
        "run_seconds: [7.402, 7.202]",
        "the mean of run_seconds is 7.302",
    ),
    ("runs: 2", "runs: 3", "found 3 runs and 2 run_seconds"),
    ("runs: 2", "groups: 3\n    runs: 2", "found 3 groups of 2 runs"),
    (
        "mean_seconds: 7.412",
        "mean_seconds: 9.1",
        "found mean_seconds 9.1 with trimmed_mean_seconds 7.402",
    ),
    (
        "standard_deviation_seconds: 0.04",
        "standard_deviation_seconds: 0.0001",
        "a standard deviation of 0.0001 s allows",
    ),
    (
        "date: '2025-11-20'",
        "date: '2025-11-20'\n    newest_run: '2025-12-01'",
        "found a newest run of 2025-12-01",
    ),
    (
        "date: '2025-03-20'",
        "date: '2025-12-24'",
        "expected the replaced values oldest first",
    ),
    ("date: '2025-11-20'", "date: '2025-01-02'", "found 2025-09-20 before 2025-01-02"),
]


@pytest.mark.parametrize(
    ("old", "new", "message"), CONTRADICTIONS, ids=[new for _, new, _ in CONTRADICTIONS]
)
def test_baseline_file_whose_recorded_values_contradict_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Editing only the expected value would move the limit without leaving a trace."""
    measured = replace(
        make_recording_of(),
        earlier=(AcceptedValue("2025-03-20", 7.3), AcceptedValue("2025-09-20", 7.4)),
    )
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], measured)])
    text = path.read_text(encoding="utf-8")
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BaselineError, match=re.escape(message)) as raised:
        read_recipe(path)
    line = int(str(raised.value).split(":")[1])
    assert path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
    with pytest.raises(RecordError, match="cannot add to this file"):
        write.write_recorded(tmp_path, [(GROK[1], make_recording_of())])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("trimmed_mean_seconds: 7.402", "trimmed_mean_seconds: 7.4"),
        ("date: '2025-11-20'", "date: '2025-11-20'\n    newest_run: '2025-11-21'"),
        ("date: '2025-11-20'", "date: '2025-11-20T06:00:00+02:00'"),
    ],
)
def test_recorded_file_with_a_rounded_mean_or_a_zoned_date_is_read(
    tmp_path: Path, old: str, new: str
) -> None:
    ((path, _),) = write.write_recorded(tmp_path, [(GROK[0], make_recording_of())])
    path.write_text(
        path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8"
    )
    assert read_recipe(path).baselines


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.floats(0.1, 50), st.integers(1, 60)), min_size=1, max_size=40
    ),
    weighted=st.booleans(),
    runs=st.integers(1, 3),
)
def test_measurements_of_valid_runs_can_be_written(
    steps: list[tuple[float, int]], weighted: bool, runs: int
) -> None:
    """Slow steps, few steps, and means over different numbers of steps are
    consistent."""
    window, mean_of = (
        tuple(value for value, _ in steps),
        tuple(count for _, count in steps),
    )
    made = [
        measurement(1.0, window_seconds=window, mean_of=mean_of if weighted else ())
        for _ in range(runs)
    ]
    with tempfile.TemporaryDirectory() as directory:
        assert write.write_recorded(
            Path(directory), [(GROK[0], make_recording(made, NOW))]
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("grok1",),
        ("grok1", "1.0", "null"),
        tuple(f"a-name-of-it-{one}" for one in range(30)),
    ],
)
@pytest.mark.parametrize(
    "title",
    ["Grok", "a: b # c", "null", "word " * 60, "two\nlines", "ü '\"", "- x", "{a: b}"],
)
def test_recipe_title_with_yaml_syntax_reads_back_unchanged(
    tmp_path: Path, title: str, names: tuple[str, ...]
) -> None:
    title = title.strip()
    recipe = replace(
        read_recipe(find_shipped_baselines() / "grok1/25.05.yaml"),
        title=title,
        framework=title,
        names=names,
    )
    for baseline in GROK[:2]:  # the second call reads the file of the first
        ((path, _),) = write.write_recorded(
            tmp_path, [(baseline, make_recording_of())], [recipe]
        )
        read_back = read_recipe(path)
        assert (read_back.title, read_back.framework, read_back.names) == (
            title,
            title,
            names,
        )
    assert path.read_text(encoding="utf-8").count("\ntitle:") == 1
