"""A night in two parts, on this machine: submitted with a secret in one folder,
collected without it in another, and what is left to be repeated is repeated by the
command that is printed."""

from __future__ import annotations

import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.fake_recipe import WELL, write_recipe
from support.sessions import Judge, Judged

TOKEN, NEXT = "hf_53cr3t-of-m1ne", "hf_n3w-0f-t0day"

WAITED = (
    "steps 1.0 0 20; "
    'echo "[rank3]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, url=https://$HF_TOKEN@hub)"; '
    "exit 1"
)
"""A job that dies as NCCL gives up, and prints its token."""


class Night:
    """An evening in one folder and a morning in another."""

    def __init__(
        self, pytester: pytest.Pytester, judged: Judge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.evening, self.morning = (
            pytester.path / "evening",
            pytester.path / "morning",
        )
        self.morning.mkdir()
        self._pytester, self._judged, self._monkeypatch = pytester, judged, monkeypatch

    def submit(self, behaviour: str) -> list[str]:
        """Submit a job of this behaviour, whose token is in the environment; return the
        arguments that collect it."""
        write_recipe(self.evening, {"job": behaviour}, kind="local")
        cluster = self.evening / "cluster.yaml"
        cluster.write_text(
            cluster.read_text().replace(
                "environment: {", 'environment: {HF_TOKEN: "${HF_TOKEN}", '
            )
        )
        with self._monkeypatch.context() as patch:
            patch.chdir(self.evening)
            patch.setenv("HF_TOKEN", TOKEN)
            result = self._pytester.runpytest("-k", "fake", "--llmb-submit-only")
        assert result.ret == pytest.ExitCode.OK
        told = result.stdout.str()
        assert TOKEN not in told
        begin = told.index("  pytest -k fake --llmb-collect")
        return shlex.split(told[begin : told.index("\n\n", begin)].replace("\\\n", ""))[
            1:
        ]

    def run(self, *arguments: str, token: str = "") -> Judged:
        """Run pytest in the morning's folder."""
        with self._monkeypatch.context() as patch:
            patch.chdir(self.morning)
            patch.delenv("HF_TOKEN", raising=False)
            if token:
                patch.setenv("HF_TOKEN", token)
            return self._judged(*arguments)

    def count_runs(self) -> int:
        return len((self.evening / "stage" / "ran").read_text().splitlines())


@pytest.fixture
def night(
    pytester: pytest.Pytester, judged: Judge, monkeypatch: pytest.MonkeyPatch
) -> Night:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return Night(pytester, judged, monkeypatch)


CASE = "fake_job-24.11-h100-bf16-8"


@pytest.mark.slow
def test_failed_job_is_explained_without_its_token(
    night: Night, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = night.submit(WAITED)
    reports = (
        "--llmb-json=a.json",
        "--llmb-html=a.html",
        "--llmb-junit=a.xml",
        "--junitxml=b.xml",
    )
    told = night.run(*collect, *reports, "-v")
    assert told.verdicts == {CASE: "INVALID"}
    said = " ".join(told.messages[CASE].split())
    assert (
        "NCCL gave up waiting for a collective operation: (not shown: it may hold a secret) (log-"
        in said
    )
    assert ".out:22, rank 3)" in said
    assert "FAILED: exit code 1" in said
    shown = [
        capfd.readouterr().out,
        *((night.morning / name.partition("=")[2]).read_text() for name in reports),
    ]
    for text in shown:
        assert "NCCL gave up" in " ".join(text.split())
        assert TOKEN not in text
        assert "SeqNum" not in text
    assert not (night.morning / ".llmbench").exists()


@pytest.mark.slow
def test_inconclusive_run_is_repeated_by_the_printed_command(night: Night) -> None:
    collect = night.submit("echo ran >> $STAGE_PATH/ran; steps 1.045")
    told = night.run(*collect)
    assert told.verdicts == {CASE: "INCONCLUSIVE"}
    resume = told.described[CASE]["resume"]
    assert (resume["due"], resume["secrets"]) == (True, ["HF_TOKEN"])
    assert night.count_runs() == 1
    again = shlex.split(resume["command"])[1:]
    told = night.run(*again, token=TOKEN)
    jobs = [(job["repeat"], job["attempt"]) for job in told.described[CASE]["jobs"]]
    assert len(jobs) == night.count_runs() > 1
    assert jobs == [(repeat, 1) for repeat in range(1, len(jobs) + 1)]
    assert told.described[CASE]["estimate"]["runs"] == len(jobs)
    assert told.described[CASE]["resume"] is None
    made = night.count_runs()
    assert night.run(*again, token=TOKEN).verdicts == told.verdicts
    assert night.run(*collect).described[CASE]["resume"]["due"] is False
    assert night.count_runs() == made, (
        "a sequence has its number of looks, however often it is gone on with"
    )


@pytest.mark.slow
def test_expired_token_stays_hidden_in_the_next_session(night: Night) -> None:
    collect = night.submit(WAITED)
    again = [word for word in collect if not word.startswith("--llmb-collect")]
    reports = ("--llmb-json=a.json", "--llmb-html=a.html", "--llmb-junit=a.xml")
    told = night.run(*again, "--llmb-resume", *reports, token=NEXT)
    first, second = told.described[CASE]["jobs"]
    assert (first["attempt"], second["attempt"]) == (1, 2)
    assert "(not shown: it may hold a secret)" in first["text"]
    assert "https://***@hub" in second["text"]
    shown = [
        told.messages[CASE],
        *((night.morning / name.partition("=")[2]).read_text() for name in reports),
    ]
    for text in shown:
        assert TOKEN not in text
        assert NEXT not in text


@pytest.mark.slow
def test_a_repeat_needs_the_token_that_collecting_did_not(
    night: Night, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = night.submit("echo ran >> $STAGE_PATH/ran; steps 1.045")
    again = shlex.split(night.run(*collect).described[CASE]["resume"]["command"])[1:]
    assert night.run(*again).ret == pytest.ExitCode.USAGE_ERROR
    assert "HF_TOKEN" in capfd.readouterr().err
    assert night.count_runs() == 1


@pytest.mark.slow
def test_a_folder_without_the_session_says_where_it_lies(
    night: Night, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = next(
        word for word in night.submit(WELL) if word.startswith("--llmb-journal=")
    )
    assert journal == f"--llmb-journal={night.evening / '.llmbench'}"
    assert night.run("--llmb-collect").ret == pytest.ExitCode.USAGE_ERROR
    told = capfd.readouterr().err
    assert told.startswith("ERROR: no session found: ")
    assert f"\n    {journal}\n" in told
    assert list(night.morning.glob(".llmbench*")) == []


@pytest.mark.slow
def test_collecting_without_its_baseline_file_is_an_error(
    night: Night, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = [
        word for word in night.submit(WELL) if not word.startswith("--llmb-baselines")
    ]
    assert night.run(*collect[2:]).ret == pytest.ExitCode.USAGE_ERROR
    assert (
        f"no baseline file contains {CASE} any more. Pass its folder with --llmb-baselines=DIR"
        in capfd.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["{", '{"cases": 7}'], ids=["cut", "changed"])
def test_a_damaged_plan_is_a_usage_error(
    night: Night, plan: str, capfd: pytest.CaptureFixture[str]
) -> None:
    collect = night.submit(WELL)
    with (
        closing(sqlite3.connect(night.evening / ".llmbench" / "launch.db")) as database,
        database,
    ):
        database.execute("UPDATE note SET value = ?", (plan,))
    assert night.run(*collect).ret == pytest.ExitCode.USAGE_ERROR
    told = capfd.readouterr().err
    assert "the plan of session" in told
    assert "Cancel its jobs manually (squeue --me), and start a new session" in told


@pytest.mark.slow
def test_the_ini_file_names_the_folder_for_both_parts(night: Night) -> None:
    journal = night.evening.parent / "journal"
    write_recipe(night.morning, {"job": WELL}, kind="local")
    ini = night.morning / "pytest.ini"
    ini.write_text(f"{ini.read_text()}llmb_journal = ../journal\n")
    assert night.run("-k", "fake", "--llmb-submit-only").ret == pytest.ExitCode.OK
    assert Path(journal, "launch.db").exists()
    assert night.run("-k", "fake", "--llmb-collect").verdicts == {CASE: "PASS"}
    assert not (night.morning / ".llmbench").exists()
