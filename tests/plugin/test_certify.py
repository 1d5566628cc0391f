"""--llmb-certify, and sessions that must not pass without evidence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from generator.plan import STARTED
from support.sessions import Judge, Write

GROK = "grok1_314b-25.05-gb200-bf16-128"
LLAMA = "llama3.1_8b-25.04-h100-bf16-8"


def logs(path: Path) -> str:
    return f"--llmb-logs={path}"


@pytest.mark.slow
def test_missing_and_inconclusive_runs_fail_certification(
    judged: Judge, generated: Write
) -> None:
    folder = generated(GROK, factor=1.04)
    assert judged(logs(folder), "-k", f"{GROK} or {LLAMA}").statuses == {
        GROK: "passed",
        LLAMA: "skipped",
    }
    session = judged(logs(folder), "-k", f"{GROK} or {LLAMA}", "--llmb-certify")
    assert session.statuses == {GROK: "failed", LLAMA: "failed"}
    assert session.verdicts == {GROK: "INCONCLUSIVE", LLAMA: "MISSING"}
    assert "measured <= limit is met" in session.messages[GROK]
    assert session.described[GROK]["tolerance"] == "5 % of performance (+5.26 % time)"
    assert session.described[GROK]["bound_seconds"] == pytest.approx(7.325 / 0.95)


@pytest.mark.slow
def test_run_within_the_limit_is_certified(judged: Judge, generated: Write) -> None:
    session = judged(logs(generated(GROK)), "-k", GROK, "--llmb-certify")
    assert (session.verdicts, session.ret) == ({GROK: "PASS"}, pytest.ExitCode.OK)


@pytest.mark.slow
def test_certification_obeys_the_command_line_tolerance_and_ignores_the_ini_file(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    folder = generated(GROK, factor=1.08)
    pytester.makeini("[pytest]\nllmb_tolerance = 20%\n")
    assert judged(logs(folder), "-k", GROK, "--llmb-certify").statuses == {
        GROK: "failed"
    }
    assert judged(
        logs(folder), "-k", GROK, "--llmb-certify", "--llmb-tolerance=20%"
    ).statuses == {GROK: "passed"}


@pytest.mark.slow
def test_recorded_baseline_does_not_certify_a_published_value(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    folder = generated(GROK)
    recorded = tmp_path / "own"
    assert (
        judged(logs(folder), "-k", GROK, f"--llmb-record={recorded}").ret
        == pytest.ExitCode.OK
    )
    path = recorded / "grok1" / "25.05.yaml"
    path.write_text(path.read_text().replace("25.05", "25.99"))
    path.rename(recorded / "grok1" / "25.99.yaml")
    name = GROK.replace("25.05", "25.99")
    options = (
        logs(folder),
        "-k",
        name,
        f"--llmb-baselines={recorded}",
        "--llmb-baseline-release=25.99",
    )
    assert judged(*options).verdicts == {name: "PASS"}
    session = judged(*options, "--llmb-certify")
    assert session.statuses == {name: "failed"}
    assert "there is no published baseline" in session.described[name]["text"]


@pytest.mark.slow
def test_session_with_only_skipped_inconclusive_runs_fails(
    judged: Judge, generated: Write
) -> None:
    session = judged(
        logs(generated(GROK, factor=1.06)), "-k", GROK, "--llmb-inconclusive=skip"
    )
    assert session.statuses == {GROK: "skipped"}
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_run_judged_against_published_and_recorded_baseline_fails_if_one_fails(
    judged: Judge, generated: Write, tmp_path: Path
) -> None:
    recorded = tmp_path / "own"
    assert (
        judged(
            logs(generated(GROK, factor=0.985)), "-k", GROK, f"--llmb-record={recorded}"
        ).ret
        == pytest.ExitCode.OK
    )
    later = datetime(2026, 7, 1, tzinfo=UTC)
    folder = generated(GROK, factor=1.045, job_id="77", started=later)
    options = (logs(folder), "-k", GROK, f"--llmb-baselines={recorded}")
    one = {
        kind: judged(*options, f"--llmb-against={kind}")
        for kind in ("published", "recorded", "both")
    }
    assert {
        kind: session.verdicts[GROK] for kind, session in one.items()
    } == dict.fromkeys(one, "INCONCLUSIVE")
    assert {kind: session.statuses[GROK] for kind, session in one.items()} == {
        "published": "passed",
        "recorded": "failed",
        "both": "failed",
    }


@pytest.mark.slow
def test_repeats_are_averaged_only_with_a_known_build(
    judged: Judge, generated: Write
) -> None:
    """NeMo-Run metadata contains the image; older layouts do not."""
    for name, known in ((GROK, True), (LLAMA, False)):
        for hour, factor in enumerate((1.03, 1.02)):
            folder = generated(
                name,
                factor=factor,
                job_id=f"9{hour}",
                started=STARTED + timedelta(hours=hour),
            )
        session = judged(logs(folder), "-k", name, "-ollmb_repeat_window=3h")
        outcome = session.described[name]
        assert bool(outcome["repeats"]) is known
        assert any(
            note["code"] == ("repeats" if known else "build-unknown")
            for note in outcome["notes"]
        )
        if known:
            assert outcome["metrics"]["step_time_seconds"]["value"] == pytest.approx(
                7.325 * 1.025, rel=1e-3
            )


@pytest.mark.slow
def test_repeats_are_judged_separately_if_each_run_has_its_own_item(
    judged: Judge, generated: Write
) -> None:
    for hour, factor in enumerate((1.02, 1.12)):
        folder = generated(
            GROK,
            factor=factor,
            job_id=f"9{hour}",
            started=STARTED + timedelta(hours=hour),
        )
    session = judged(
        logs(folder), "-k", GROK, "--llmb-runs=each", "-ollmb_repeat_window=3h"
    )
    assert session.verdicts[f"{GROK}-91"] == "REGRESSION"


@pytest.mark.slow
def test_step_of_many_hours_does_not_break_the_session(
    judged: Judge, generated: Write
) -> None:
    seconds = tuple(900_000.0 if step == 20 else 7.325 for step in range(50))
    session = judged(logs(generated(GROK, seconds=seconds)), "-k", GROK)
    assert session.statuses == {GROK: "failed"}
