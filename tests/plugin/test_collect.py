"""Submitting in one folder with a secret, and collecting in another folder without it.

The printed command makes the remaining repeats.
"""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.fake_recipe import WELL, write_recipe
from support.sessions import Judge, JudgedSession

TOKEN, NEXT = "hf_53cr3t-of-m1ne", "hf_n3w-0f-t0day"

WAITED = (
    "steps 1.0 0 20; "
    'echo "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, url=https://$HF_TOKEN@hub)"; '
    "exit 1"
)
"""A job that dies as NCCL gives up, and prints its token."""


class TwoFolders:
    """A folder that submits, and another folder that collects."""

    def __init__(
        self, pytester: pytest.Pytester, judged: Judge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.submitting, self.collecting = (
            pytester.path / "evening",
            pytester.path / "morning",
        )
        self.collecting.mkdir()
        self._pytester, self._judged, self._monkeypatch = pytester, judged, monkeypatch

    def submit(self, behaviour: str) -> list[str]:
        """Submit a job with a token in its environment; return the options to collect
        it."""
        write_recipe(self.submitting, {"job": behaviour}, kind="local")
        cluster = self.submitting / "cluster.yaml"
        cluster.write_text(
            cluster.read_text().replace(
                "environment: {", 'environment: {HF_TOKEN: "${HF_TOKEN}", '
            )
        )
        with self._monkeypatch.context() as patch:
            patch.chdir(self.submitting)
            patch.setenv("HF_TOKEN", TOKEN)
            result = self._pytester.runpytest("-k", "fake", "--llmb-submit-only")
        assert result.ret == pytest.ExitCode.OK
        printed = result.stdout.str()
        assert TOKEN not in printed
        start = printed.index("  pytest -k fake --llmb-collect")
        return shlex.split(
            printed[start : printed.index("\n\n", start)].replace("\\\n", "")
        )[1:]

    def run(self, *arguments: str, token: str = "") -> JudgedSession:
        """Run pytest in the folder that collects."""
        with self._monkeypatch.context() as patch:
            patch.chdir(self.collecting)
            patch.delenv("HF_TOKEN", raising=False)
            if token:
                patch.setenv("HF_TOKEN", token)
            return self._judged(*arguments)

    def count_runs(self) -> int:
        return len((self.submitting / "stage" / "ran").read_text().splitlines())


@pytest.fixture
def folders(
    pytester: pytest.Pytester, judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> TwoFolders:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return TwoFolders(pytester, judged, monkeypatch)


CASE = "fake_job-24.11-h100-bf16-8"


@pytest.mark.slow
def test_failed_job_is_explained_without_its_token(
    folders: TwoFolders, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = folders.submit(WAITED)
    reports = (
        "--llmb-json=a.json",
        "--llmb-html=a.html",
        "--llmb-junit=a.xml",
        "--junitxml=b.xml",
    )
    session = folders.run(*collect, *reports, "-v")
    assert session.verdicts == {CASE: "INVALID"}
    message = " ".join(session.messages[CASE].split())
    assert (
        "NCCL gave up waiting for a collective operation: (not shown: may contain a secret) (log-"
        in message
    )
    assert ".out:22, rank 3)" in message
    assert "FAILED: exit code 1" in message
    texts = [
        capfd.readouterr().out,
        *(
            (folders.collecting / name.partition("=")[2]).read_text()
            for name in reports
        ),
    ]
    for text in texts:
        assert "NCCL gave up" in " ".join(text.split())
        assert TOKEN not in text
        assert "SeqNum" not in text
    assert not (folders.collecting / ".llmbench").exists()


@pytest.mark.slow
def test_inconclusive_run_is_repeated_by_the_printed_command(
    folders: TwoFolders,
) -> None:
    collect = folders.submit("echo ran >> $STAGE_PATH/ran; steps 1.045")
    session = folders.run(*collect)
    assert session.verdicts == {CASE: "INCONCLUSIVE"}
    resume = session.described[CASE]["resume"]
    assert (resume["due"], resume["secrets"]) == (True, ["HF_TOKEN"])
    assert folders.count_runs() == 1
    repeated_command = shlex.split(resume["command"])[1:]
    session = folders.run(*repeated_command, token=TOKEN)
    jobs = [(job["repeat"], job["attempt"]) for job in session.described[CASE]["jobs"]]
    assert len(jobs) == folders.count_runs() > 1
    assert jobs == [(repeat, 1) for repeat in range(1, len(jobs) + 1)]
    assert session.described[CASE]["estimate"]["runs"] == len(jobs)
    assert session.described[CASE]["resume"] is None
    made = folders.count_runs()
    assert folders.run(*repeated_command, token=TOKEN).verdicts == session.verdicts
    assert folders.run(*collect).described[CASE]["resume"]["due"] is False
    assert folders.count_runs() == made, (
        "a sequence has its number of looks, however often it is gone on with"
    )


@pytest.mark.slow
def test_reports_hide_an_earlier_token_after_a_resume_with_a_new_token(
    folders: TwoFolders,
) -> None:
    collect = folders.submit(WAITED)
    repeated_command = [
        word for word in collect if not word.startswith("--llmb-collect")
    ]
    reports = ("--llmb-json=a.json", "--llmb-html=a.html", "--llmb-junit=a.xml")
    session = folders.run(*repeated_command, "--llmb-resume", *reports, token=NEXT)
    first, second = session.described[CASE]["jobs"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert "(not shown: may contain a secret)" in first["text"]
    assert "https://***@hub" in second["text"]
    texts = [
        session.messages[CASE],
        *(
            (folders.collecting / name.partition("=")[2]).read_text()
            for name in reports
        ),
    ]
    for text in texts:
        assert TOKEN not in text
        assert NEXT not in text


@pytest.mark.slow
def test_repeating_a_launch_needs_the_token_but_collecting_does_not(
    folders: TwoFolders, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = folders.submit("echo ran >> $STAGE_PATH/ran; steps 1.045")
    repeated_command = shlex.split(
        folders.run(*collect).described[CASE]["resume"]["command"]
    )[1:]
    assert folders.run(*repeated_command).ret == pytest.ExitCode.USAGE_ERROR
    assert "HF_TOKEN" in capfd.readouterr().err
    assert folders.count_runs() == 1


@pytest.mark.slow
def test_collect_error_on_a_wrong_folder_suggests_the_session_folder(
    folders: TwoFolders, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = next(
        word for word in folders.submit(WELL) if word.startswith("--llmb-journal=")
    )
    assert journal == f"--llmb-journal={folders.submitting / '.llmbench'}"
    assert folders.run("--llmb-collect").ret == pytest.ExitCode.USAGE_ERROR
    errors = capfd.readouterr().err
    assert errors.startswith("ERROR: no session found: ")
    assert f"\n    {journal}\n" in errors
    assert list(folders.collecting.glob(".llmbench*")) == []


@pytest.mark.slow
def test_collecting_a_launch_without_its_baseline_file_is_a_usage_error(
    folders: TwoFolders, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = [
        word for word in folders.submit(WELL) if not word.startswith("--llmb-baselines")
    ]
    assert folders.run(*collect[2:]).ret == pytest.ExitCode.USAGE_ERROR
    assert (
        f"no baseline file contains {CASE} any more. Pass its folder with --llmb-baselines=DIR"
        in capfd.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["{", '{"cases": 7}'], ids=["cut", "changed"])
def test_collecting_with_a_damaged_launch_plan_is_a_usage_error(
    folders: TwoFolders, plan: str, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = folders.submit(WELL)
    with (
        closing(
            sqlite3.connect(folders.submitting / ".llmbench" / "launch.db")
        ) as database,
        database,
    ):
        database.execute("UPDATE note SET value = ?", (plan,))
    assert folders.run(*collect).ret == pytest.ExitCode.USAGE_ERROR
    errors = capfd.readouterr().err
    assert "the plan of session" in errors
    assert "Cancel its jobs manually (squeue --me), and start a new session" in errors


@pytest.mark.slow
def test_ini_file_sets_the_journal_folder(folders: TwoFolders) -> None:
    journal = folders.submitting.parent / "journal"
    write_recipe(folders.collecting, {"job": WELL}, kind="local")
    ini = folders.collecting / "pytest.ini"
    ini.write_text(f"{ini.read_text()}llmb_journal = ../journal\n")
    assert folders.run("-k", "fake", "--llmb-submit-only").ret == pytest.ExitCode.OK
    assert Path(journal, "launch.db").exists()
    assert folders.run("-k", "fake", "--llmb-collect").verdicts == {CASE: "PASS"}
    assert not (folders.collecting / ".llmbench").exists()
