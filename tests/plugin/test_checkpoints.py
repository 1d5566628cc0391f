"""Checkpoint budgets, from the baseline file to the reports."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fake_recipe import PURPOSED, PURPOSES, WELL, write_recipe
from support.sessions import Judge, JudgedSession, Write

from pytest_llmbench.baseline import write
from pytest_llmbench.core.baseline_records import Baseline, Budget, Recording

LLAMA = "llama3.1_8b-25.04-h100-bf16-16"
SAVE, LOAD = "checkpoint_save_seconds", "checkpoint_load_seconds"
START = datetime(2025, 7, 1, tzinfo=UTC)

Hold = Callable[..., JudgedSession]


@pytest.fixture
def hold(judged: Judge, tmp_path: Path, baselines: dict[str, Baseline]) -> Hold:
    """Return a function that judges generated runs against these budgets."""

    def judge(*arguments: str, **budgets: float) -> JudgedSession:
        published = baselines[LLAMA]
        seconds = published.step_seconds
        limits = tuple(Budget(name, largest) for name, largest in budgets.items())
        measured = Recording("2025-07-01", 1, seconds, seconds, 0.01, (seconds,), ())
        write.write_recorded(
            tmp_path / "own", [(replace(published, budgets=limits), measured)]
        )
        baselines_folder, runs = (
            f"--llmb-baselines={tmp_path / 'own'}",
            f"--llmb-logs={tmp_path / 'runs'}",
        )
        return judged(baselines_folder, runs, "-k", LLAMA, *arguments)

    return judge


@pytest.mark.slow
def test_failure_of_a_slow_checkpoint_save_names_file_and_line(
    hold: Hold, generated: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generated(LLAMA, checkpoint="save")  # in 4.389 s
    (log,) = tmp_path.rglob("log-*.out")
    line = next(
        n
        for n, text in enumerate(log.read_text().splitlines(), 1)
        if "Save duration: 4.389s" in text
    )
    session = hold(**{SAVE: 4.0})
    assert session.verdicts == {LLAMA: "REGRESSION"}
    outcome = session.described[LLAMA]
    assert outcome["reason"] == "over-budget"
    assert outcome["metrics"][SAVE]["value"] == 4.389
    own = (tmp_path / "own/llama3.1/25.04.yaml").read_text().splitlines()
    line_number = next(n for n, text in enumerate(own, 1) if SAVE in text)
    expected = f"checkpoint save took 4.389 s (line {line}); the budget is 4 s (25.04.yaml:{line_number})"
    assert outcome["text"].startswith(expected)
    under_its_line = capsys.readouterr().out.partition(" llmbench ==")[2]
    assert "checkpoint save took 4.389 s" in " ".join(under_its_line.split())
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "item"),
    [((), LLAMA), (("--llmb-runs=each",), f"{LLAMA}-2")],
    ids=["newest", "each"],
)
def test_newer_run_that_loads_a_checkpoint_fails_over_the_load_time_budget(
    hold: Hold, generated: Write, arguments: tuple[str, ...], item: str
) -> None:
    generated(LLAMA, job_id="1", started=START)
    generated(
        LLAMA, job_id="2", started=START + timedelta(days=1), checkpoint="load"
    )  # in 9.712 s
    session = hold(*arguments, **{LOAD: 9.0})
    assert (session.verdicts[item], session.statuses[item]) == ("REGRESSION", "failed")


@pytest.mark.slow
def test_every_report_names_the_launcher_of_a_run(hold: Hold, generated: Write) -> None:
    generated(LLAMA)
    session = hold()
    assert session.described[LLAMA]["run"]["launcher"] == "nemo-run"
    assert session.properties[LLAMA]["launcher"] == "nemo-run"


# --- what was launched ----------------------------------------------------------------

FAKE = "fake_8b-24.11-h100-bf16-8"
SAVED = "echo 'Global Checkpoint Save : Rank: 0 : Iteration: 50 : Start time: 1.000s : Save duration: {}s'\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "after", "expected"),
    [
        (
            "--llmb-save-checkpoint",
            SAVED.format("4.389"),
            ("NOT_COMPARABLE", "not-judged", "skipped"),
        ),
        ("--llmb-save-checkpoint", "", ("INVALID", "budget-unknown", "failed")),
        (
            "--llmb-load-checkpoint={}",
            "",
            ("REGRESSION", "over-budget", "failed"),
        ),  # in 9.712 s
    ],
)
def test_launched_run_fails_if_its_checkpoint_time_is_over_budget_or_unknown(
    judged: Judge,
    pytester: pytest.Pytester,
    option: str,
    after: str,
    expected: tuple[str, str, str],
) -> None:
    write_recipe(
        pytester.path,
        {"8b": f"{PURPOSED}{WELL}\n{after}"},
        kind="local",
        purposes=PURPOSES,
    )
    file = pytester.path / "baselines" / "fake.yaml"
    file.write_text(
        file.read_text().replace(
            "steps: 50\n", f"steps: 50\nbudgets: {{{SAVE}: 60, {LOAD}: 9}}\n"
        )
    )
    weights = (
        pytester.path
        / "stage"
        / "results"
        / "24.11"
        / "bf16"
        / "8b"
        / "8"
        / "checkpoints"
        / "x"
        / "weights"
    )
    if "load" in option:
        weights.mkdir(parents=True)
        (weights / "__0_0.distcp").touch()
    session = judged(
        "-k",
        "fake",
        "--llmb-launch",
        option.format(weights.parent.relative_to(pytester.path)),
    )
    assert (
        session.verdicts[FAKE],
        session.described[FAKE]["reason"],
        session.statuses[FAKE],
    ) == expected
