"""The journal: written data is read back, and sessions stay separate."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    EndedBy,
    Job,
    JobSpec,
    JobStatus,
    Phase,
    Purpose,
    SubmissionState,
)
from pytest_llmbench.core.stall_limits import Stall, StallPosition
from pytest_llmbench.launch.jobs import journal as database
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers.process import Process

NOW = datetime(2026, 11, 21, 5, 45, tzinfo=UTC)
TOKEN = "hf_0123456789abcdef"
SPEC = JobSpec(
    case_id="grok1_314b-25.05-gb200-bf16-128",
    key=Key("grok1", "314b", "25.05", "gb200", "bf16", 128, task="pretrain"),
    purpose=Purpose.MEASURE,
    via="sbatch",
    command=("sbatch", "--comment=a b", "launch.sh"),
    directory=Path("/recipes/grok1"),
    environment=(
        ("HF_TOKEN", TOKEN),
        ("JOB_TOTAL_GPUS", "128"),
        ("ODD", "a;$(b)\n'\"ä\udcff"),
        ("EMPTY", ""),
    ),
    secrets=("HF_TOKEN", "EMPTY", "ABSENT"),
    nodes=32,
    gpus=128,
    gpu_hours=0.1 + 0.2,
    log_folders=(Path("/logs/a"), Path("b")),
    experiment="grok1",
    exclude=("node3", "node[5-7]"),
    job_id=r"job (?P<job>\d+)",
)
HIDDEN = replace(SPEC, environment=(("HF_TOKEN", "***"), *SPEC.environment[1:]))
RUNNING = JobStatus(
    Phase.RUNNING,
    "RUNNING",
    nodes=("n1", "n2"),
    started=NOW,
    elapsed_seconds=1.5,
    seen_by="squeue",
)
WAITING = JobStatus(Phase.WAITING, "PENDING", reason="Priority", started=NOW)
DONE = JobStatus(
    Phase.ENDED,
    "COMPLETED",
    exit_code="0:0",
    derived_exit_code="7:0",
    ended=NOW,
    restarts=2,
)
PROCESS = Process(4711, "host boot pid:[1] 99", "mark")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".llmbench"


@pytest.fixture
def journal(folder: Path) -> Iterator[Journal]:
    created = Journal(folder)
    created.begin("nightly", NOW)
    yield created
    created.close()


def reopened(journal: Journal) -> Journal:
    """Return another journal that resumed the session, as after a crash."""
    journal.close()
    reopened_journal = Journal(journal.folder)
    reopened_journal.resume(journal.session)
    return reopened_journal


def read_again(journal: Journal) -> tuple[Job, ...]:
    """Return the jobs of the session as another process reads them."""
    with closing(reopened(journal)) as reopened_journal:
        return reopened_journal.list_jobs()


def leave_session(folder: Path, *, finished: bool = False) -> str:
    """Leave a session with a job, as an ended process does, and return its id."""
    with closing(Journal(folder)) as journal:
        session = journal.begin("left", NOW)
        number = journal.intend(SPEC, NOW).number
        if finished:
            journal.record_failure(number, "no", NOW)
            assert journal.finish(NOW)
    return session


def refused(match: str, *changes: Callable[[], object]) -> None:
    for change in changes:
        with pytest.raises(LaunchError, match=match):
            change()


def test_session_id_contains_the_start_time_and_git_ignores_the_journal_folder(
    folder: Path,
) -> None:
    journal = Journal(folder)
    assert re.fullmatch(r"20261121-0545-[0-9a-f]{4}", journal.begin("nightly", NOW))
    assert (folder / ".gitignore").read_text() == "*\n"
    journal.close()


def test_only_a_journal_folder_that_llmbench_creates_is_hidden_from_git(
    tmp_path: Path,
) -> None:
    for folder, hidden in (
        (tmp_path, False),
        (tmp_path / "made", True),
        (tmp_path / ".llmbench", True),
    ):
        (tmp_path / ".llmbench").mkdir(exist_ok=True)
        Journal(folder).close()
        Journal(folder).close()
        assert (folder / ".gitignore").exists() is hidden, folder


def test_job_is_written_to_the_journal_before_it_is_submitted(journal: Journal) -> None:
    job = journal.intend(SPEC, NOW, attempt=2, repeat=3)
    assert job == Job(
        1,
        job.token,
        SPEC,
        journal.folder / f"jobs/{journal.session}/1-{SPEC.case_id}",
        2,
        3,
    )
    assert job.folder.is_dir()
    assert len(job.token) == 16
    assert journal.list_live() == (job,)
    assert read_again(journal) == (replace(job, spec=HIDDEN),)


def test_job_is_read_back_completely(journal: Journal) -> None:
    first, second, third = (journal.intend(SPEC, NOW).number for _ in range(3))
    journal.record_process(first, PROCESS)
    journal.record_submission(first, "4711", Path("/logs/4711"), NOW)
    journal.record_status(first, RUNNING)
    journal.record_process(second, PROCESS)
    journal.record_failure(second, "no such partition", NOW)
    journal.record_submission(third, "4712", None, NOW)
    journal.record_end(third, DONE, "ended well", NOW)
    expected = tuple(replace(job, spec=HIDDEN) for job in journal.list_jobs())
    reopened_journal = reopened(journal)
    assert reopened_journal.list_jobs() == expected
    assert [job.number for job in reopened_journal.list_live()] == [first]
    assert (
        reopened_journal.find_process(first),
        reopened_journal.find_process(third),
    ) == (PROCESS, None)
    assert (reopened_journal.read_end(first), reopened_journal.read_end(third)) == (
        "",
        "ended well",
    )
    assert [job.status for job in reopened_journal.list_jobs()] == [RUNNING, None, DONE]
    assert reopened_journal.list_jobs()[1].problem == "no such partition"
    reopened_journal.close()


def test_secrets_never_reach_the_disk(journal: Journal) -> None:
    spec = replace(
        SPEC,
        command=("launch.sh", f"--token={TOKEN}"),
        environment=(*SPEC.environment, ("URL", f"https://{TOKEN}@host/")),
    )
    number = journal.intend(spec, NOW).number
    journal.intend(SPEC, NOW)
    journal.record_failure(number, f"said {TOKEN}", NOW)
    journal.hide(["later-secret"])
    journal.record_end(2, DONE, f"said {TOKEN} and later-secret", NOW)
    assert journal.list_jobs()[0].spec == spec  # needed in memory
    assert journal.list_jobs()[0].problem == "said ***"
    written = b"".join(
        path.read_bytes() for path in journal.folder.rglob("*") if path.is_file()
    )
    assert b"said ***" in written
    assert TOKEN.encode() not in written
    assert b"later-secret" not in written
    reread = read_again(journal)[0].spec
    assert reread.command == ("launch.sh", "--token=***")
    assert dict(reread.environment)["URL"] == "https://***@host/"


@pytest.mark.parametrize("value", ["1", "128", "grok1"])
def test_masking_a_short_secret_changes_no_other_field_of_a_job(
    journal: Journal, value: str
) -> None:
    spec = replace(
        SPEC, command=("launch.sh", "128"), environment=(("HF_TOKEN", value),)
    )
    journal.intend(spec, NOW)
    [reread] = read_again(journal)
    assert reread.spec == replace(spec, environment=(("HF_TOKEN", "***"),))
    assert reread.folder.is_dir()


@pytest.mark.parametrize(
    "case_id",
    [
        "",
        "../a",
        "a/b",
        "/etc",
        "..",
        "a..b",
        "a\0b",
        "a\nb",
        "a\x1b[31m",
        "x" * 201,
        "ä" * 101,
        "\ud800",
    ],
)
def test_invalid_folder_name_is_refused(journal: Journal, case_id: str) -> None:
    with pytest.raises(LaunchError, match=r"name of a folder|shorten its variant"):
        journal.intend(replace(SPEC, case_id=case_id), NOW)
    assert journal.list_jobs() == ()
    assert not (journal.folder / "jobs").exists()


@pytest.mark.parametrize("case_id", ["x" * 200, "a b", "~"])
def test_job_with_an_unusual_id_gets_a_folder(journal: Journal, case_id: str) -> None:
    made = journal.intend(replace(SPEC, case_id=case_id), NOW).folder
    assert (
        made.resolve().parent == (journal.folder / "jobs" / journal.session).resolve()
    )
    assert made.is_dir()


def test_ended_job_is_never_changed_in_the_journal(journal: Journal) -> None:
    number = journal.intend(SPEC, NOW).number
    journal.record_submission(number, "1", None, NOW)
    ended = journal.record_end(number, DONE, "first", NOW)
    assert journal.record_status(number, RUNNING) == ended
    assert journal.record_end(number, RUNNING, "second", NOW) == ended
    refused(
        "has ended",
        lambda: journal.record_submission(number, "1", None, NOW),
        lambda: journal.record_failure(number, "late", NOW),
        lambda: journal.record_process(number, PROCESS),
    )
    assert journal.read_end(number) == "first"
    assert journal.list_live() == ()


def test_refused_job_is_never_changed_in_the_journal(journal: Journal) -> None:
    number = journal.intend(SPEC, NOW).number
    failed = journal.record_failure(number, "", NOW)
    assert failed.problem == "it was not submitted"
    assert journal.record_status(number, RUNNING) == failed
    refused(
        "has ended",
        lambda: journal.record_submission(number, "1", None, NOW),
        lambda: journal.record_end(number, DONE, "", NOW),
        lambda: journal.record_failure(number, "again", NOW),
    )


def test_job_is_submitted_at_most_once(journal: Journal) -> None:
    first, second, local = (
        journal.intend(replace(SPEC, via=via), NOW).number
        for via in ("sbatch", "llmb-run", "local")
    )
    journal.record_process(first, PROCESS)
    refused("not started again", lambda: journal.record_process(first, PROCESS))
    refused(
        "cannot change it to ''",
        lambda: journal.record_submission(first, "", None, NOW),
    )
    assert journal.record_submission(
        first, "3", None, NOW
    ) == journal.record_submission(first, "3", None, NOW)
    refused(
        "has id '3' and cannot change it to '4'",
        lambda: journal.record_submission(first, "4", None, NOW),
    )
    refused(
        "job id 3 of job number 2 already belongs to job number 1",
        lambda: journal.record_submission(second, "3", None, NOW),
    )
    refused("was submitted as 3", lambda: journal.record_failure(first, "no", NOW))
    assert (
        journal.record_submission(local, "3", None, NOW).job_id == "3"
    )  # the number in this journal, not the Slurm id
    refused("no job number 9", lambda: journal.record_process(9, PROCESS))


@pytest.mark.parametrize(
    ("first", "passing", "lasting"),
    [
        (
            RUNNING,
            {"elapsed_seconds": 99.0},
            {"nodes": ("n3",), "elapsed_seconds": 100.0},
        ),
        (WAITING, {"started": None}, {"reason": "Resources", "started": None}),
    ],
    ids=["elapsed time", "start estimate"],
)
def test_unchanged_status_is_not_written(
    journal: Journal,
    monkeypatch: pytest.MonkeyPatch,
    first: JobStatus,
    passing: dict[str, Any],
    lasting: dict[str, Any],
) -> None:
    number = journal.intend(SPEC, NOW).number
    journal.record_status(number, first)
    with monkeypatch.context() as patch:
        patch.setattr(database, "open_transaction", None)
        later = journal.record_status(number, replace(first, **passing))
    assert later.status == replace(first, **passing)
    assert journal.list_live() == (later,)
    journal.record_status(number, replace(first, **lasting))
    assert [job.status for job in read_again(journal)] == [replace(first, **lasting)]


def test_all_job_states_of_a_poll_are_written_in_one_transaction(
    journal: Journal,
) -> None:
    numbers = [journal.intend(SPEC, NOW).number for _ in range(3)]
    commits: list[str] = []
    journal._database.set_trace_callback(
        lambda statement: commits.append(statement) if statement == "COMMIT" else None
    )
    with journal.write_together():
        for number in numbers:
            journal.record_status(number, RUNNING)
    assert len(commits) == 1

    def stopped() -> None:
        with journal.write_together():
            journal.record_end(numbers[0], DONE, "", NOW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert [job.status for job in read_again(journal)] == [RUNNING] * 3


def test_sessions_see_only_their_own_jobs(journal: Journal, folder: Path) -> None:
    with closing(Journal(folder)) as other:
        other.begin("other", NOW, {"name": "theirs"})
        assert (
            journal.read_journal_value("name"),
            other.read_journal_value("name"),
        ) == ("", "theirs")
        first, second, third, fourth = (
            writer.intend(SPEC, NOW).number
            for writer in (journal, other, journal, other)
        )
        assert len({first, second, third, fourth}) == 4
        assert [job.number for job in journal.list_jobs()] == [first, third]
        assert [job.number for job in other.list_jobs()] == [second, fourth]
        assert (
            journal.list_jobs()[0].folder.parent != other.list_jobs()[0].folder.parent
        )
        refused(
            "no job number", lambda: journal.record_submission(second, "1", None, NOW)
        )


def test_session_in_use_is_not_resumed(journal: Journal, folder: Path) -> None:
    with closing(Journal(folder)) as other:
        in_use = rf"{journal.session} is in use by process {os.getpid()} on "
        refused(in_use, other.resume, lambda: other.resume(journal.session))
        [past] = other.list_unfinished()
        assert past.is_locked
        assert journal.list_unfinished() == (past,)
        journal.close()
        assert other.resume() == journal.session


def test_newest_unfinished_session_is_resumed(folder: Path) -> None:
    first, second = leave_session(folder), leave_session(folder)
    leave_session(folder, finished=True)
    with closing(Journal(folder)) as journal:
        unfinished = [
            (past.session, past.unfinished_jobs, past.is_locked)
            for past in journal.list_unfinished()
        ]
        assert unfinished == [(second, 1, False), (first, 1, False)]
        unknown = rf"is not in .*unfinished sessions: {second}, {first} \(did you mean '{first}'"
        refused(unknown, lambda: journal.resume(first[:-1]))
        assert journal.resume() == second
        refused("current session", lambda: journal.begin("another", NOW))


def test_finished_session_is_resumed_by_name_only(folder: Path) -> None:
    """It stays finished until another job is planned."""
    session = leave_session(folder, finished=True)
    with closing(Journal(folder)) as journal:
        refused(
            r"no session to resume in .*contains no unfinished session", journal.resume
        )
        assert journal.resume(session) == session
        assert journal.was_finished
        assert journal.list_unfinished() == ()
        number = journal.intend(SPEC, NOW, repeat=2).number
        assert [past.session for past in journal.list_unfinished()] == [session]
        journal.record_failure(number, "no", NOW)
        assert journal.finish(NOW)


def test_journal_without_session_refuses_writes(folder: Path) -> None:
    journal = Journal(folder)
    assert journal.list_unfinished() == ()
    refused(
        "no current session",
        lambda: journal.intend(SPEC, NOW),
        lambda: journal.finish(NOW),
    )
    journal.close()


def test_session_with_live_jobs_is_not_finished(journal: Journal) -> None:
    number = journal.intend(SPEC, NOW).number
    assert not journal.finish(NOW)
    assert [past.unfinished_jobs for past in journal.list_unfinished()] == [1]
    journal.record_end(number, DONE, "", NOW)  # an empty text means success
    assert journal.finish(NOW)
    assert journal.list_unfinished() == ()


def test_ids_of_sessions_started_in_one_minute_differ(
    journal: Journal, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([journal.session[-4:], "bbbb"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(numbers))
    with closing(Journal(folder)) as other:
        assert other.begin("", NOW)[-4:] == "bbbb"


# --- damaged files --------------------------------------------------------------------


def script(file: Path, text: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(text)
    connection.close()


def foreign(file: Path) -> None:
    file.unlink()
    script(file, "CREATE TABLE mine (a)")


def broken(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda file: file.write_bytes(b"not a database" * 100),
            "damaged, or not a journal: move it away.*squeue",
        ),
        (broken, "damaged"),
        (lambda file: os.truncate(file, 5000), "damaged"),
        (
            lambda file: script(file, "PRAGMA user_version = 7"),
            r"has version 7, expected 1: another version",
        ),
        (foreign, "has version 0.*another program"),
        (lambda file: (file.unlink(), file.mkdir()), "unable to open database file"),
    ],
)
def test_unusable_file_is_refused_with_a_remedy(
    journal: Journal, damage: Callable[[Path], Any], message: str
) -> None:
    journal.intend(SPEC, NOW)
    journal.close()
    damage(journal.folder / "launch.db")
    with pytest.raises(LaunchError, match=message) as caught:
        Journal(journal.folder)
    assert str(journal.folder / "launch.db") in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [{"spec": "{"}, {"status": "{}"}, {"spec": json.dumps({"key": {"new": 1}})}],
)
def test_resuming_refuses_an_unreadable_job_and_unlocks_the_session(
    journal: Journal, values: dict[str, str]
) -> None:
    journal.intend(SPEC, NOW)
    row = {"spec": database.encode_spec(SPEC), "status": None, **values}
    journal._database.execute("UPDATE job SET spec = :spec, status = :status", row)
    journal.close()
    for _ in range(2):
        reopened_journal = Journal(journal.folder)
        with pytest.raises(
            LaunchError, match=r"job number 1 of session .* cannot be read"
        ):
            reopened_journal.resume()
        reopened_journal.close()


def test_journal_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file/.llmbench", Path("/proc/.llmbench")):
        with pytest.raises(
            LaunchError, match=r"cannot create .*llmbench: .*Choose a writable folder"
        ):
            Journal(path)


def test_job_whose_folder_cannot_be_created_is_not_recorded_in_the_journal(
    journal: Journal,
) -> None:
    (journal.folder / "jobs").touch()
    with pytest.raises(LaunchError, match=r"cannot create .*The job was not submitted"):
        journal.intend(SPEC, NOW)
    assert journal.list_jobs() == read_again(journal) == ()


def test_full_disk_leaves_submitted_jobs_in_memory(journal: Journal) -> None:
    first, second = (journal.intend(SPEC, NOW).number for _ in range(2))
    journal._database.execute("PRAGMA max_page_count = 1")
    long = "x" * 100_000
    refused(
        r"full.*free some space",
        lambda: journal.record_failure(second, long, NOW),
        lambda: journal.record_submission(first, "4711", Path(long), NOW),
        lambda: journal.intend(replace(SPEC, experiment=long), NOW),
    )
    assert [job.job_id for job in journal.list_live()] == ["4711"]
    assert len(journal.list_jobs()) == 2  # an unrecorded job is not submitted


def test_removed_journal_is_an_error(journal: Journal) -> None:
    number = journal.intend(SPEC, NOW).number
    shutil.rmtree(journal.folder)
    with pytest.raises(LaunchError, match=r"launch\.db: .*; "):
        journal.record_submission(number, "4711", None, NOW)
    assert [job.job_id for job in journal.list_live()] == ["4711"]


def test_journal_locked_by_another_process_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.1)
    journal = Journal(folder)
    other = sqlite3.connect(folder / "launch.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(LaunchError, match=r"locked.*try again"):
        journal.begin("", NOW)
    other.close()
    journal.begin("", NOW)
    journal.close()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("SQLITE_READONLY_DBMOVED", "writable"),
        ("SQLITE_FULL", "free some space"),
        ("SQLITE_IOERR_WRITE", "free some space"),
        ("SQLITE_CANTOPEN_ISDIR", "folder exists"),
        ("SQLITE_CORRUPT_VTAB", "damaged"),
        ("SQLITE_NOTADB", "not a journal"),
        ("SQLITE_SOMETHING", "move it away"),
    ],
)
def test_sqlite_error_has_a_remedy(name: str, remedy: str) -> None:
    error = sqlite3.OperationalError("said")
    error.sqlite_errorname = name
    with (
        pytest.raises(LaunchError, match=rf"launch.db: said \({name}\); .*{remedy}"),
        database.explain_errors(Path("launch.db")),
    ):
        raise error


# --- journals of earlier versions -----------------------------------------------------


def test_textual_states_of_earlier_versions_are_read(journal: Journal) -> None:
    uncertain, superseded, refused, ended = (
        journal.intend(SPEC, NOW).number for _ in range(4)
    )
    journal.record_failure(uncertain, "it may have been submitted: nothing tells", NOW)
    journal.record_failure(
        superseded,
        "its submission came to nothing, and another job took its place",
        NOW,
    )
    journal.record_failure(refused, "no such partition", NOW)
    journal.record_submission(ended, "17", None, NOW)
    journal.record_end(ended, replace(DONE, reason="pytest: never started"), "", NOW)
    script(
        journal.folder / "launch.db",
        "ALTER TABLE job DROP COLUMN submission; UPDATE job SET status = json_remove(status, '$.ended_by')",
    )
    jobs = read_again(journal)
    assert [job.submission for job in jobs] == [
        "uncertain",
        "superseded",
        "not-submitted",
        "submitted",
    ]
    assert jobs[-1].status is not None
    assert jobs[-1].status.ended_by is EndedBy.PYTEST


def test_journal_stores_a_stall_and_reads_statuses_without_one(
    journal: Journal,
) -> None:
    """Earlier versions wrote no stall."""
    stall = Stall(StallPosition.STEPS, 1200.0, 5, 50, "/logs/x.out", cancelled=True)
    first, second = (journal.intend(SPEC, NOW).number for _ in range(2))
    for number in (first, second):
        journal.record_status(number, replace(RUNNING, limit_seconds=60.0, stall=stall))
    removed = "json_remove(status, '$.stall', '$.limit_seconds')"
    script(
        journal.folder / "launch.db",
        f"UPDATE job SET status = {removed} WHERE number = {second}",  # noqa: S608
    )
    assert [job.status and job.status.stall for job in read_again(journal)] == [
        stall,
        None,
    ]


def test_uncertain_job_in_a_journal_of_an_earlier_version_stays_uncertain(
    journal: Journal,
) -> None:
    """Earlier versions do not update the state column. By that column alone, the job
    would be submitted twice."""
    job = journal.intend(SPEC, NOW)
    assert job.submission is SubmissionState.INTENDED
    journal.record_process(job.number, PROCESS)
    problem = "it may have been submitted: nothing tells"
    script(
        journal.folder / "launch.db",
        f"UPDATE job SET problem = '{problem}', over = 'now'",  # noqa: S608
    )
    with closing(reopened(journal)) as reopened_journal:
        assert [job.submission for job in reopened_journal.list_jobs()] == [
            SubmissionState.UNCERTAIN
        ]
        assert reopened_journal.list_live() == ()


# --- real processes -------------------------------------------------------------------

WRITER = """
import sys
from datetime import datetime, UTC
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from pytest_llmbench.launch.jobs.journal import Journal
from test_journal import DONE, NOW, PROCESS, RUNNING, SPEC
journal = Journal(Path(sys.argv[1]))
print(journal.begin("writer", NOW), flush=True)
for turn in range(int(sys.argv[2])):
    number = journal.intend(SPEC, NOW).number
    print("intended", number, flush=True)
    journal.record_process(number, PROCESS)
    journal.record_submission(number, f"{sys.argv[3]}{turn}", None, NOW)
    print("submitted", number, flush=True)
    journal.record_status(number, RUNNING)
    journal.record_end(number, DONE, "x" * 5000, NOW)
    print("ended", number, flush=True)
journal.finish(NOW)
"""


def writer(folder: Path, turns: int, prefix: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", WRITER, str(folder), str(turns), prefix]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.slow
def test_two_processes_can_use_one_journal_folder(folder: Path) -> None:
    both = [writer(folder, 15, "1"), writer(folder, 15, "2")]
    for process in both:
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
        assert output.count("submitted") == 15
    rows = sqlite3.connect(folder / "launch.db")
    stored = rows.execute("SELECT session, number, job_id FROM job").fetchall()
    rows.close()
    assert len({number for _, number, _ in stored}) == 30
    assert len({(session, job_id[0]) for session, _, job_id in stored}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.05, 0.2])
def test_journal_keeps_all_finished_writes_of_a_killed_process(
    folder: Path, after: float
) -> None:
    child = writer(folder, 100_000)
    assert child.stdout is not None
    session = child.stdout.readline().strip()
    time.sleep(after)
    child.send_signal(signal.SIGKILL)
    # One reader from first line to last: communicate() passes by what readline() holds
    # back, up to 8 KiB. A print is several writes where Python does not buffer: the
    # line in which the kill came may have no end.
    words = [line.split() for line in child.stdout if line.endswith("\n")]
    assert child.communicate(timeout=60) == ("", "")
    done = {
        kind: {int(number) for word, number in words if word == kind}
        for kind in ("intended", "submitted", "ended")
    }
    journal = Journal(folder)
    assert [past.is_locked for past in journal.list_unfinished()] == [False]
    assert journal.resume() == session
    live = {job.number for job in journal.list_live()}
    assert {job.number for job in journal.list_jobs()} >= done["intended"]
    assert {job.number for job in journal.list_jobs() if job.job_id} >= done[
        "submitted"
    ]
    assert not live & done["ended"]
    assert len(live) <= 1
    assert all(job.folder.is_dir() for job in journal.list_jobs())
    assert journal.intend(SPEC, NOW).number == max(
        [job.number for job in journal.list_jobs()], default=0
    )
    journal.close()


# --- properties -----------------------------------------------------------------------

CHANGES: dict[str, Callable[[Journal, int, int], Any]] = {
    "submitting": lambda journal, number, value: journal.record_process(
        number, PROCESS
    ),
    "submitted": lambda journal, number, value: journal.record_submission(
        number, str(value), None, NOW
    ),
    "failed": lambda journal, number, value: journal.record_failure(
        number, f"problem {value}", NOW
    ),
    "seen": lambda journal, number, value: journal.record_status(
        number, replace(RUNNING, restarts=value)
    ),
    "ended": lambda journal, number, value: journal.record_end(
        number, replace(DONE, restarts=value), str(value), NOW
    ),
}
STEPS = st.lists(
    st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(1, 3), st.integers(0, 2)),
    max_size=15,
)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_journal_file_equals_memory_after_any_changes(
    tmp_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    shutil.rmtree(tmp_path / "law", ignore_errors=True)
    journal = Journal(tmp_path / "law")
    journal.begin("law", NOW)
    for _ in range(3):
        journal.intend(HIDDEN, NOW)
    over: dict[int, tuple[Job, str]] = {}
    for change, number, value in steps:
        jobs_before = journal.list_jobs()
        try:
            CHANGES[change](journal, number, value)
        except LaunchError:
            assert journal.list_jobs() == jobs_before
        live = {job.number for job in journal.list_live()}
        now_over = {
            job.number: (job, journal.read_end(job.number))
            for job in journal.list_jobs()
            if job.number not in live
        }
        assert over.items() <= now_over.items()
        over = now_over
    ids = [job.job_id for job in journal.list_jobs() if job.job_id]
    assert len(ids) == len(set(ids))
    reopened_journal = reopened(journal)
    assert (reopened_journal.list_jobs(), reopened_journal.list_live()) == (
        journal.list_jobs(),
        journal.list_live(),
    )
    reopened_journal.close()


def make_status(**fields: Any) -> JobStatus:
    """Return a status; `st.builds` would evaluate the annotations of the class."""
    return JobStatus(**fields)


moments = st.none() | st.datetimes(timezones=st.just(UTC)) | st.datetimes()
statuses = st.builds(
    make_status,
    phase=st.sampled_from(Phase),
    state=st.text(),
    nodes=st.lists(st.text()).map(tuple),
    elapsed_seconds=st.none() | st.floats(allow_nan=False),
    submitted=moments,
    started=moments,
    ended=moments,
    restarts=st.integers(),
)


@pytest.mark.slow
@given(statuses)
def test_status_is_read_back_equal(status: JobStatus) -> None:
    assert database.decode_status(database.encode_status(status)) == status


@pytest.mark.slow
@given(
    st.lists(st.text()).map(tuple),
    st.lists(st.tuples(st.text(min_size=1), st.text())).map(tuple),
    st.floats(0),
)
def test_spec_without_secrets_is_read_back_equal(
    command: tuple[str, ...], environment: tuple[tuple[str, str], ...], gpu_hours: float
) -> None:
    spec = replace(
        SPEC, command=command, environment=environment, secrets=(), gpu_hours=gpu_hours
    )
    assert database.decode_spec(database.encode_spec(spec)) == spec
