"""A suite file sets the number of runs that a launch makes and needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.fake_recipe import WELL, write_recipe
from support.sessions import Judge, JudgedSession

NAME = "fake_8b-24.11-h100-bf16-8"
SUITE = "config: {scale: 8, repeats: %d}\nworkloads: {h100: [{pretrain_fake_8b: {dtypes: [bf16]}}]}\n"

Launch = Callable[..., JudgedSession]


@pytest.fixture
def launch(pytester: pytest.Pytester, judged: Judge) -> Launch:
    """Launch a configuration whose suite file requires `asked` runs."""

    def run(*arguments: str, required: int = 3, resume: bool = False) -> JudgedSession:
        if not resume:  # a job may be just about to run the script
            write_recipe(
                pytester.path,
                {"8b": f"echo ran >> $STAGE_PATH/ran; {WELL}"},
                kind="local",
            )
        pytester.path.joinpath("exemplar.yaml").write_text(SUITE % required)
        started = () if resume else ("--llmb-launch", "--llmb-require=exemplar.yaml")
        return judged("-k", "fake", *started, *arguments)

    return run


@pytest.fixture
def ran(pytester: pytest.Pytester) -> Callable[[], int]:
    """Return the number of jobs that ran."""
    file = pytester.path / "stage" / "ran"
    return lambda: len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_passing_run_is_repeated_as_the_suite_requires(
    launch: Launch, ran: Callable[[], int]
) -> None:
    session = launch()
    assert (session.verdicts, session.ret, ran()) == (
        {NAME: "PASS"},
        pytest.ExitCode.OK,
        3,
    )
    assert session.described[NAME]["estimate"]["runs"] == 3
    assert "fewer-runs" not in [
        note["code"] for note in session.described[NAME]["notes"]
    ]


@pytest.mark.slow
def test_repeats_option_below_the_suite_requirement_is_noted(
    launch: Launch, ran: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    session = launch("--llmb-repeats=1")
    assert (session.verdicts, session.ret, ran()) == (
        {NAME: "PASS"},
        pytest.ExitCode.OK,
        1,
    )
    assert (
        "1 valid run, exemplar.yaml:2 requires 3 (--llmb-repeats=1)"
        in capsys.readouterr().out
    )


@pytest.mark.slow
def test_certification_needs_all_runs_of_the_suite_file(
    launch: Launch, ran: Callable[[], int]
) -> None:
    session = launch("--llmb-repeats=1", "--llmb-certify", "--llmb-tolerance=50%")
    report = session.described[NAME]
    assert (report["verdict"], report["reason"], report["status"]) == (
        "MISSING",
        "too-few-runs",
        "failed",
    )
    assert (session.ret, ran()) == (pytest.ExitCode.TESTS_FAILED, 1)


@pytest.mark.slow
def test_suite_is_missing_until_enough_runs_were_launched(
    launch: Launch, ran: Callable[[], int]
) -> None:
    session = launch(required=5)
    report = session.described[NAME]
    assert (report["verdict"], report["reason"], report["status"]) == (
        "MISSING",
        "too-few-runs",
        "failed",
    )
    assert report["text"].startswith(
        "3 valid runs, exemplar.yaml:2 requires 5; the newest: "
    )
    assert (session.ret, ran()) == (pytest.ExitCode.TESTS_FAILED, 3)
    again = launch("--llmb-logs=.llmbench/jobs", required=5)
    assert (again.verdicts, again.ret, ran()) == ({NAME: "PASS"}, pytest.ExitCode.OK, 6)


@pytest.mark.slow
def test_resume_launches_the_remaining_runs_of_a_suite_but_collect_does_not(
    launch: Launch, ran: Callable[[], int]
) -> None:
    for going_on, verdict, runs in (
        ("--llmb-collect", "MISSING", 1),
        ("--llmb-resume", "PASS", 1 + 3),
    ):
        launch("--llmb-submit-only")
        session = launch(going_on, "--llmb-require=exemplar.yaml", resume=True)
        assert (session.verdicts, ran()) == ({NAME: verdict}, runs)
