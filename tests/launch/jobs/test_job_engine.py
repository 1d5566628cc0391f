"""Following the jobs of a session, with a simulated scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.fake_schedulers import FakeSchedulers
from support.job_specs import START, Clock, ended, job_spec, running, waiting

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import (
    Blame,
    Job,
    JobEnd,
    JobSpec,
    JobStatus,
    Phase,
    SubmissionState,
)
from pytest_llmbench.core.stall_limits import LogProgress
from pytest_llmbench.launch.jobs.builds import Builder
from pytest_llmbench.launch.jobs.job_engine import Engine, NextJob
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.jobs.progress import Progress
from pytest_llmbench.launch.jobs.submitter import Submitter
from pytest_llmbench.launch.jobs.watch import Limits
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
from pytest_llmbench.launch.schedulers.submission import (
    SchedulerAway,
    Submission,
    SubmitError,
)

Life = Callable[[float], JobStatus | None]
"""What is known of a job so many seconds after its submission; None: nothing is."""

LIMITS = Limits(pending_seconds=3600.0, away_seconds=1800.0, lost_seconds=600.0)


def lives(*stages: tuple[float, JobStatus | None]) -> Life:
    """Return the life of a job: each status lasts until its second."""
    return lambda age: next(
        (status for until, status in stages if age < until), stages[-1][1]
    )


NORMAL = lives((0.5, None), (20, waiting()), (100, running("n1")), (1e9, ended()))


@dataclass
class World(SlurmScheduler):
    """A simulated Slurm. `away` are the spans in seconds in which it does not answer."""

    clock: Clock
    at_once: int | None = None  # type: ignore[misc]
    first: int = 1001
    lives: dict[str, Life] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    away: tuple[tuple[float, float], ...] = ()
    submitted: dict[str, float] = field(default_factory=dict)
    ids: dict[int, str] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    cancelled: dict[str, float] = field(default_factory=dict)
    polls: list[tuple[float, int]] = field(default_factory=list)
    cancels: list[tuple[str, ...]] = field(default_factory=list)
    cannot_cancel: bool = False
    uncertain: bool = False
    at_most: int = 0
    takes: float = 0.0
    __hash__ = object.__hash__

    @property
    def cases(self) -> list[str]:
        return [job.spec.case_id for job in self.jobs]

    @property
    def age(self) -> float:
        return (self.clock.now() - START).total_seconds()

    def check(self) -> None:
        if any(start <= self.age < end for start, end in self.away):
            raise SchedulerAway("Unable to contact slurm controller")

    def submit(self, job: Job) -> Submission:
        self.check()
        self.clock.sleep(0.1)
        case = job.spec.case_id
        if case in self.refused:
            raise SubmitError(self.refused[case], uncertain=self.uncertain)
        job_id = str(self.first + len(self.submitted))
        self.submitted[job_id] = self.age
        self.ids[job.number] = job_id
        self.jobs.append(job)
        self.lives[job_id] = self.lives.get(case, NORMAL)
        return Submission(job_id, Path("/logs") / job_id)

    def recover(self, job: Job, seconds: float = 600.0) -> Submission | None:
        self.check()
        if self.uncertain:
            raise SubmitError("it is unknown whether it was submitted", uncertain=True)
        return Submission(self.ids[job.number]) if job.number in self.ids else None

    def status(self, job_id: str) -> JobStatus | None:
        if (
            job_id in self.cancelled
            and not self.cannot_cancel
            and self.age > self.cancelled[job_id] + 1
        ):
            return ended("CANCELLED", cancelled_by="0")
        return self.lives[job_id](self.age - self.submitted[job_id])

    def poll(self, jobs: Sequence[Job]) -> Mapping[int, JobStatus]:
        self.check()
        self.polls.append((self.age, len(jobs)))
        self.clock.sleep(self.takes)
        self.at_most = max(self.at_most, len(jobs))
        return {
            job.number: status for job in jobs if (status := self.status(job.job_id))
        }

    def cancel(self, jobs: Sequence[Job]) -> str:
        self.check()
        self.cancels.append(tuple(job.job_id for job in jobs))
        self.cancelled |= {
            job.job_id: self.age for job in jobs if job.job_id not in self.cancelled
        }
        return "scancel: error: Access denied" if self.cannot_cancel else ""


class Session:
    """An engine with a simulated scheduler, and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.world = World(self.clock)
        self.schedulers = FakeSchedulers({"sbatch": self.world})
        self.journal = Journal(folder / ".llmbench")
        self.journal.begin("test", START)
        self.printed: list[str] = []
        self.ends: list[tuple[Job, JobEnd]] = []
        self.following: dict[str, list[NextJob]] = {}
        self.engine = self.make()

    def make(self, limits: Limits = LIMITS, **fields: Any) -> Engine:
        self.engine = Engine(
            self.journal,
            Submitter(
                self.schedulers,
                Builder(self.journal.session, self.clock.sleep, self.printed.append),
            ),
            self.printed.append,
            now=self.clock.now,
            sleep=self.clock.sleep,
            limits=limits,
            **fields,
        )
        return self.engine

    def spec(self, case: str = "a", **changes: Any) -> JobSpec:
        return job_spec(self.folder, **{"case_id": case, "via": "sbatch", **changes})

    def finished(self, job: Job, end: JobEnd) -> Sequence[NextJob]:
        self.ends.append((job, end))
        return self.following.pop(job.spec.case_id, [])

    def specs(self, cases: str) -> list[JobSpec]:
        """Return a job for each character."""
        return [self.spec(case) for case in cases]

    def run(self, *cases: str) -> list[tuple[Job, JobEnd]]:
        self.engine.run([self.spec(case) for case in cases or ("a",)], self.finished)
        return self.ends

    def resume(self, cases: str, **fields: Any) -> None:
        """Resume the session as another process, with a job for each character."""
        self.again(**fields).resume(self.specs(cases), self.finished)

    def again(self, **fields: Any) -> Engine:
        """Reopen the journal as another process would."""
        self.journal.close()
        self.journal = Journal(self.folder / ".llmbench")
        self.journal.resume()
        self.ends, self.printed = [], []
        return self.make(**fields)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.printed).split())


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    created = Session(tmp_path)
    yield created
    created.journal.close()


def states(session: Session) -> dict[str, str]:
    return {
        job.spec.case_id: job.status.state if job.status else ""
        for job, _ in session.ends
    }


def test_job_is_submitted_followed_and_ended_once(session: Session) -> None:
    [(job, end)] = session.run()
    assert end == JobEnd(Blame.NONE)
    assert job.job_id == "1001"
    assert job.log_folder == Path("/logs/1001")
    assert job.status == ended()
    assert session.journal.list_live() == ()
    for words in (
        "job 1001 submitted",
        "job 1001 running on n1",
        "job 1001 ended COMPLETED",
    ):
        assert session.text.count(words) == 1


@pytest.mark.slow
def test_live_jobs_never_exceed_max_jobs(session: Session) -> None:
    session.make(Limits(max_jobs=3))
    session.run(*(f"c{number}" for number in range(10)))
    assert len(session.ends) == 10
    assert session.world.at_most == 3


def test_local_jobs_take_turns(session: Session) -> None:
    local, slurm = World(session.clock, at_once=1), World(session.clock, first=2001)
    session.schedulers.stand_ins.update(local=local, sbatch=slurm)
    specs = [session.spec(f"l{number}", via="local") for number in range(3)]
    specs += [session.spec(f"s{number}", via="sbatch") for number in range(3)]
    session.engine.run(specs, session.finished)
    assert len(session.ends) == 6
    assert (local.at_most, slurm.at_most) == (1, 3)
    assert max(slurm.submitted.values()) < 20


def test_polls_slow_down_until_a_job_changes(session: Session) -> None:
    session.world.lives["a"] = lives((3000, running()), (1e9, ended()))
    session.world.lives["b"] = lives((1000, running()), (1e9, ended()))
    session.run("a", "b")
    times = [age for age, _ in session.world.polls]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    change = next(
        index
        for index, (_, jobs) in enumerate(session.world.polls)
        if index and jobs == 1
    )
    assert gaps[0] <= 2
    assert gaps[change - 2] == pytest.approx(30, abs=0.1)
    assert gaps[change - 1] == pytest.approx(1, abs=0.1)
    assert max(gaps) == pytest.approx(30, abs=0.1)
    assert len(times) < 140


@pytest.mark.slow
def test_number_of_polls_is_independent_of_job_count(tmp_path: Path) -> None:
    polls = []
    for number in (1, 50):
        (tmp_path / str(number)).mkdir()
        session = Session(tmp_path / str(number))
        cases = [f"c{index}" for index in range(number)]
        session.world.lives = dict.fromkeys(
            cases, lives((3000, running()), (1e9, ended()))
        )
        session.run(*cases)
        polls.append(len(session.world.polls))
        session.journal.close()
    assert polls[1] < polls[0] + 12, (
        "about one poll a second while the other jobs are submitted"
    )


def test_slow_slurm_is_polled_rarely(session: Session) -> None:
    session.world.takes = 2.0
    session.run("a")
    times = [age for age, _ in session.world.polls]
    assert min(later - earlier for earlier, later in pairwise(times)) >= 20


def test_repeats_and_retries_planned_after_a_job_are_submitted(
    session: Session,
) -> None:
    session.following["a"] = [
        NextJob(session.spec("a"), repeat=2),
        NextJob(session.spec("a", exclude=("n1",)), 2, 2),
    ]
    session.run("a", "b")
    assert sorted(
        (job.spec.case_id, job.attempt, job.repeat, job.spec.exclude)
        for job, _ in session.ends
    ) == [
        ("a", 1, 1, ()),
        ("a", 1, 2, ()),
        ("a", 2, 2, ("n1",)),
        ("b", 1, 1, ()),
    ]


def test_job_added_twice_is_refused(session: Session) -> None:
    session.following["a"] = [NextJob(session.spec("a"))]
    with pytest.raises(ValueError, match="already"):
        session.run("a")


def test_unknown_launcher_submits_no_job(session: Session) -> None:
    with pytest.raises(LaunchError, match="did you mean 'local'"):
        session.engine.run(
            [session.spec("a"), session.spec("b", via="locl")], session.finished
        )
    assert session.world.submitted == {}


def test_refused_submission_leaves_other_jobs_alone(session: Session) -> None:
    session.world.refused["a"] = "invalid partition"
    session.run("a", "b")
    assert [
        (job.spec.case_id, job.problem, end.blame, end.text)
        for job, end in session.ends
    ] == [
        ("a", "invalid partition", Blame.RUN, "invalid partition"),
        ("b", "", Blame.NONE, ""),
    ]


def test_requeued_job_is_reported_and_followed(session: Session) -> None:
    session.world.lives["a"] = lives(
        (10, running()),
        (40, waiting("BeginTime", restarts=1)),
        (90, running(restarts=1)),
        (1e9, ended(restarts=1)),
    )
    [(job, end)] = session.run()
    assert end.blame is Blame.NONE
    assert job.status
    assert job.status.restarts == 1
    assert len(session.world.submitted) == 1
    assert session.text.count("job 1001 was requeued and starts again: a") == 1
    assert session.text.count("running on") == 2


# --- stalled jobs ---------------------------------------------------------------------


def read_steps(*seconds: float, session: Session) -> Callable[[Job], LogProgress]:
    """Return a log reader with steps at these seconds."""

    def read(_job: Job) -> LogProgress:
        steps = sum(second <= session.world.age for second in seconds)
        return LogProgress(Path("/logs/x.out"), steps=steps, marks=(steps,))

    return read


def test_stalled_job_is_cancelled_and_reported_as_hung(session: Session) -> None:
    session.world.lives["a"] = lives((5, waiting()), (1e9, running("n1", "n2")))
    read = read_steps(*range(30, 100, 5), session=session)
    session.make(
        progress=Progress(session.printed.append, lambda job: (14, 50, 5.0)),
        read_progress=read,
    )
    session.run("a", "b")
    ends = {job.spec.case_id: (job, end) for job, end in session.ends}
    job, end = ends["a"]
    assert end.blame is Blame.HUNG
    assert "stalled for 20 min after step 14/50 (x.out)" in end.text
    assert ends["b"][1].blame is Blame.NONE
    assert session.world.cancels == [("1001",)]
    assert (
        session.text.count(
            "job 1001 stalled on n1, n2: a: no progress for 10 min, after step 14/50"
        )
        == 1
    )
    assert "(stalled: job 1001 at step 14/50)" in session.text
    assert job.status
    assert job.status.stall
    session.journal.intend(
        session.spec("c"), session.clock.now()
    )  # so that there is something to resume
    session.resume("abc")
    assert {job.spec.case_id: (job, end) for job, end in session.ends}["a"] == ends["a"]


def test_stall_is_in_the_journal_before_it_is_printed(session: Session) -> None:
    """A session that resumes a killed session knows the stall."""
    session.world.lives["a"] = lives((5, waiting()), (1e9, running()))
    uncommitted: list[bool] = []

    def say(text: str) -> None:
        if "stalled on" in text:
            uncommitted.append(session.journal._database.in_transaction)

    progress = Progress(say, lambda job: (14, 50, 5.0))
    session.make(progress=progress, read_progress=read_steps(30, session=session))
    session.run()
    assert uncommitted == [False]


def test_stalled_job_that_continues_is_left_alone(session: Session) -> None:
    session.world.lives["a"] = lives((1700, running()), (1e9, ended()))
    read = read_steps(*range(30, 100, 5), *range(900, 1700, 5), session=session)
    session.make(read_progress=read)
    [(_, end)] = session.run()
    assert end.blame is Blame.NONE
    assert session.text.count("job 1001 stalled") == 1
    assert session.text.count("job 1001 continues: a") == 1
    assert session.world.cancels == []


def test_only_logs_of_running_jobs_are_read(session: Session) -> None:
    read: list[tuple[str, str]] = []

    def read_progress(job: Job) -> LogProgress:
        read.append((job.spec.case_id, job.status.state if job.status else ""))
        return LogProgress()

    polls = []
    for reader in (None, read_progress):
        session.world.polls.clear()
        session.make(read_progress=reader)
        session.engine.run(
            [session.spec(f"{case}{reader is None}") for case in "ab"], session.finished
        )
        polls.append(len(session.world.polls))
    assert {state for _, state in read} == {"RUNNING"}
    assert polls[0] == polls[1]


# --- jobs that never start or end -----------------------------------------------------


def test_job_that_can_never_start_is_cancelled(session: Session) -> None:
    session.world.lives["a"] = lives((1e9, waiting("DependencyNeverSatisfied")))
    session.run("a", "b")
    ends = {job.spec.case_id: end for job, end in session.ends}
    assert ends["a"].blame is Blame.CANCELLED
    assert ends["a"].text.startswith("never started: ")
    assert ends["b"].blame is Blame.NONE
    assert session.world.cancels == [("1001",)]


def test_temporary_pending_reason_cancels_no_job(session: Session) -> None:
    stuck = waiting("DependencyNeverSatisfied")
    session.world.lives["a"] = lives(
        (8, stuck), (12, waiting()), (20, stuck), (40, running()), (1e9, ended())
    )
    [(_, end)] = session.run()
    assert end.blame is Blame.NONE
    assert session.world.cancels == []


@pytest.mark.parametrize(
    ("limits", "life", "text"),
    [
        (
            LIMITS,
            lives((1e9, waiting("Resources"))),
            "never started: pending (Resources) for ",
        ),
        (
            replace(LIMITS, running_seconds=3600.0),
            lives((5, waiting()), (1e9, running())),
            "it ran for ",
        ),
    ],
    ids=["pending", "running"],
)
def test_job_beyond_its_time_limit_is_cancelled(
    session: Session, limits: Limits, life: Life, text: str
) -> None:
    session.make(limits)
    session.world.lives["a"] = life
    [(_, end)] = session.run()
    assert end.blame is Blame.CANCELLED
    assert text in end.text
    assert "limit 60 min" in end.text
    assert 3600 < session.world.cancelled["1001"] < 3700


@pytest.mark.slow
def test_job_may_pend_for_days_if_no_pending_limit_is_set(session: Session) -> None:
    session.make(replace(LIMITS, pending_seconds=None, longest_poll=3600.0))
    session.world.lives["a"] = lives(
        (9e5, waiting("Resources")), (9.05e5, running()), (1e9, ended())
    )
    [(_, end)] = session.run()
    assert end.blame is Blame.NONE


def test_job_that_cannot_be_cancelled_is_given_up(session: Session) -> None:
    session.world.cannot_cancel = True
    session.world.lives["a"] = lives((1e9, waiting("DependencyNeverSatisfied")))
    [(job, end)] = session.run()
    assert job.status
    assert job.status.state == "PENDING"
    assert "could not be cancelled" in end.text
    assert "scancel 1001" in end.text
    assert end.blame is Blame.RUN, "never retried"
    assert "Access denied" in session.text
    assert len(session.world.cancels) > 3


# --- lost records and silent schedulers -----------------------------------------------


def test_job_that_slurm_does_not_list_yet_is_not_lost(session: Session) -> None:
    session.world.lives["a"] = lives((300, None), (400, running()), (1e9, ended()))
    [(_, end)] = session.run()
    assert end.blame is Blame.NONE


@pytest.mark.parametrize(
    ("life", "words"),
    [
        (
            lives((100, running("n7")), (1e9, None)),
            "though it ran: the record was purged",
        ),
        (lives((1e9, None)), "Only its log can show whether it ran"),
    ],
)
def test_lost_job_ends_as_unknown(session: Session, life: Life, words: str) -> None:
    session.world.lives["a"] = life
    [(job, end)] = session.run()
    assert job.status
    assert job.status.phase is Phase.UNKNOWN
    assert words in end.text
    assert end.blame is Blame.RUN, "it may have run, so it is not submitted again"
    assert 600 <= session.world.age < 800


def test_slurm_outage_of_minutes_is_tolerated(session: Session) -> None:
    session.world.away = ((30.0, 1500.0),)
    [(_, end)] = session.run()
    assert end.blame is Blame.NONE
    assert len(session.world.submitted) == 1
    assert "Slurm does not answer, waiting up to 30 min" in session.text
    assert session.text.count("Slurm answers again") == 1
    assert session.text.count("does not answer") <= 6


def test_slurm_outage_does_not_count_towards_pending_or_lost_job_limits(
    session: Session,
) -> None:
    session.make(replace(LIMITS, pending_seconds=600.0, lost_seconds=100.0))
    session.world.lives |= {
        "a": lives((1200, waiting()), (1300, running()), (1e9, ended())),
        "b": lives((5, running()), (1200, None), (1300, running()), (1e9, ended())),
    }
    session.world.away = ((20.0, 1150.0),)
    session.run("a", "b")
    assert states(session) == {"a": "COMPLETED", "b": "COMPLETED"}


def test_long_slurm_outage_keeps_jobs_and_explains_resuming(session: Session) -> None:
    session.world.away = ((30.0, 1e9),)
    with pytest.raises(
        LaunchError, match=r"has not answered for 3. min(.|\n)*--llmb-resume"
    ):
        session.run()
    assert session.world.cancels == []
    assert len(session.journal.list_live()) == 1


def test_submission_is_repeated_after_a_slurm_outage(session: Session) -> None:
    session.world.away = ((0.0, 300.0),)
    session.run("a", "b")
    assert states(session) == {"a": "COMPLETED", "b": "COMPLETED"}
    assert sorted(session.world.cases) == ["a", "b"]
    assert len(session.clock.slept) < 5000


# --- resumed sessions -----------------------------------------------------------------


class Killed(BaseException):
    """Simulates SIGKILL."""


def killed_at(session: Session, age: float, *cases: str) -> None:
    def sleep(seconds: float) -> None:
        if session.world.age > age:
            raise Killed
        session.clock.sleep(seconds)

    session.engine._sleep = sleep
    with pytest.raises(Killed):
        session.run(*cases)


def test_resumed_session_submits_jobs_only_once(session: Session) -> None:
    session.world.lives["a"] = lives((5, running()), (1e9, ended()))
    session.following["a"] = [NextJob(session.spec("a"), repeat=2)]
    killed_at(session, 30.0, "a", "b")
    assert len(session.world.submitted) == 3
    session.following["a"] = [NextJob(session.spec("a"), repeat=2)]
    session.resume("abc")
    assert sorted((job.spec.case_id, job.repeat) for job, _ in session.ends) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("c", 1),
    ]
    assert sorted(session.world.cases) == ["a", "a", "b", "c"]
    assert all(end.blame is Blame.NONE for _, end in session.ends)


@pytest.mark.parametrize("age", [0.0, 0.15, 0.25, 1.0, 50.0])
def test_jobs_are_submitted_once_despite_a_crash(session: Session, age: float) -> None:
    cases = [f"c{number}" for number in range(4)]
    killed_at(session, age, *cases)
    session.again().resume([session.spec(case) for case in cases], session.finished)
    assert sorted(session.world.cases) == cases
    assert sorted(job.spec.case_id for job, _ in session.ends) == cases


def test_resumed_session_finds_the_interrupted_submission_or_repeats_it(
    session: Session,
) -> None:
    """A new number is used: the folder may contain output of a killed submission."""
    intended, submitted = (
        session.journal.intend(spec, START) for spec in session.specs("ab")
    )
    session.world.submit(submitted)
    session.resume("ab")
    assert states(session) == {"a": "COMPLETED", "b": "COMPLETED"}
    assert session.world.cases == ["b", "a"]
    assert session.world.jobs[1].folder != intended.folder
    assert [job.submission for job in session.journal.list_jobs()] == [
        SubmissionState.SUPERSEDED,
        SubmissionState.SUBMITTED,
        SubmissionState.SUBMITTED,
    ]


def test_uncertain_submission_is_never_repeated(session: Session) -> None:
    session.journal.intend(session.spec("a"), START)
    session.world.uncertain = True
    session.resume("a")
    [(job, end)] = session.ends
    assert job.submission is SubmissionState.UNCERTAIN
    assert end.blame is Blame.RUN
    assert session.world.cases == []


def test_resumed_session_reports_earlier_job_results_unchanged(
    session: Session,
) -> None:
    session.world.lives |= {
        "a": lives((1e9, waiting("DependencyNeverSatisfied"))),
        "b": lives((100, running("n7")), (1e9, None)),
        "c": lives((10, running()), (1e9, ended("FAILED", "7:0"))),
    }
    session.world.refused["d"] = "invalid partition"
    session.run("a", "b", "c", "d")
    first = sorted(session.ends, key=lambda pair: pair[0].number)
    assert [end.blame for _, end in first] == [
        Blame.CANCELLED,
        Blame.RUN,
        Blame.RUN,
        Blame.RUN,
    ]
    session.journal.intend(
        session.spec("e"), session.clock.now()
    )  # so that there is something to resume
    session.resume("abcde")
    assert session.ends[:4] == first
    assert session.world.cases == ["a", "b", "c", "e"]


def test_secrets_come_from_the_resuming_session(session: Session) -> None:
    secret = {
        "environment": (("HF_TOKEN", "hf_verysecret"), ("X", "1")),
        "secrets": ("HF_TOKEN",),
    }
    session.journal.intend(session.spec("a", **secret), START)
    session.again().resume([session.spec("a", **secret)], session.finished)
    assert dict(session.world.jobs[0].spec.environment)["HF_TOKEN"] == "hf_verysecret"
    assert dict(session.ends[0][0].spec.environment)["HF_TOKEN"] == "hf_verysecret"
    assert (
        b"verysecret" not in (session.folder / ".llmbench" / "launch.db").read_bytes()
    )


def test_job_beyond_the_gpu_hours_is_not_submitted_and_states_the_reason(
    session: Session,
) -> None:
    session.make(
        Limits(max_jobs=1),
        admit=lambda job: "too much" if job.spec.case_id == "b" else "",
    )
    session.run("a", "b", "c")
    assert session.world.cases == ["a", "c"]
    refused = {job.spec.case_id: job for job, _ in session.ends}["b"]
    assert (refused.submission, refused.problem) == (
        SubmissionState.UNAFFORDABLE,
        "not submitted: too much",
    )
    assert session.journal.list_live() == ()
    assert "not submitted: too much" in session.text


def test_resumed_session_submits_the_job_if_gpu_hours_now_suffice(
    session: Session,
) -> None:
    session.make(admit=lambda job: "too much")
    session.run("a")
    session.resume("a")
    assert states(session) == {"a": "COMPLETED"}
    session.resume("a", admit=lambda job: "too much")
    assert session.world.cases == ["a"]


def test_unaffordable_job_may_be_planned_again(session: Session) -> None:
    answers = iter(["too much", ""])
    session.following["a"] = [NextJob(session.spec("a"))]
    session.make(admit=lambda job: next(answers))
    session.run("a")
    assert [job.submission for job, _ in session.ends] == [
        SubmissionState.UNAFFORDABLE,
        SubmissionState.SUBMITTED,
    ]


def test_collect_session_reports_unsubmitted_jobs_without_submitting_them(
    session: Session,
) -> None:
    killed_at(session, 15.0, "a")
    session.journal.intend(session.spec("b"), START)
    session.following["a"] = [NextJob(session.spec("a"), repeat=2)]
    session.resume("abc", follow_only=True)
    assert states(session) == {"a": "COMPLETED"}
    assert session.world.cases == ["a"]
    assert "b was not submitted. Submit it with --llmb-resume" in session.text
    assert "a (run 2, attempt 1) is not submitted" in session.text
    assert "c is not submitted" in session.text


# --- submit only, cancelling ----------------------------------------------------------


def test_submit_only_returns_at_once_and_another_session_collects(
    session: Session,
) -> None:
    assert session.engine.submit_only(session.specs("ab")) == ()
    assert session.world.polls == []
    session.again().submit_only(session.specs("abc"), resumed=True)
    assert session.world.cases == ["a", "b", "c"]
    session.resume("abc", follow_only=True)
    assert states(session) == dict.fromkeys("abc", "COMPLETED")


def test_submit_only_leaves_jobs_beyond_max_jobs_unsubmitted(
    session: Session,
) -> None:
    session.make(Limits(max_jobs=2))
    unsubmitted = session.engine.submit_only(session.specs("abc"))
    assert [spec.case_id for spec in unsubmitted] == ["c"]


def test_submit_only_waits_for_slurm(session: Session) -> None:
    session.world.away = ((0.0, 300.0),)
    assert session.engine.submit_only(session.specs("ab")) == ()
    assert session.world.cases == ["a", "b"]
    assert len(session.clock.slept) < 100


def test_cancelling_ends_only_jobs_of_this_session(session: Session) -> None:
    session.world.lives["a"] = lives((5, running()), (1e9, ended()))
    session.world.submitted["999"] = 0.0
    session.world.lives["999"] = NORMAL
    killed_at(session, 30.0, "a", "b", "c")
    session.engine._sleep = session.clock.sleep
    assert session.engine.cancel() == ()
    mine = tuple(
        job.job_id
        for job in session.journal.list_jobs()
        if job.spec.case_id in ("b", "c")
    )
    assert session.world.cancels == [mine], "one scancel"
    assert session.journal.list_live() == ()
    assert {
        job.spec.case_id: job.status.state
        for job in session.journal.list_jobs()
        if job.status
    } == {
        "a": "COMPLETED",
        "b": "CANCELLED",
        "c": "CANCELLED",
    }


def test_submission_under_way_is_awaited_and_cancelled(session: Session) -> None:
    job = session.journal.intend(session.spec("a"), START)
    session.world.submit(job)
    session.journal.intend(session.spec("b"), START)
    assert session.engine.cancel() == ()
    assert session.world.cancels == [("1001",)]
    assert [job.problem for job in session.journal.list_jobs()] == [
        "",
        "cancelled before it was submitted",
    ]
    assert session.journal.list_live() == ()


def test_resumed_session_submits_a_job_that_was_cancelled_before_its_submission(
    session: Session,
) -> None:
    """It says nothing of what it was to run."""
    session.journal.intend(session.spec("b"), START)
    assert session.engine.cancel() == ()
    session.resume("b")
    assert [(job.spec.case_id, end.blame) for job, end in session.ends] == [
        ("b", Blame.NONE)
    ]
    assert session.world.cases == ["b"]


@pytest.mark.parametrize(
    ("world", "names"),
    [
        ({"cannot_cancel": True}, ("1001",)),
        ({"away": ((0.0, 1e9),)}, ("1001",)),
        ({"uncertain": True}, ("b",)),
    ],
    ids=["denied", "away", "doubt"],
)
def test_cancelling_a_session_reports_uncancellable_jobs_within_a_minute(
    session: Session, world: dict[str, Any], names: tuple[str, ...]
) -> None:
    killed_at(session, 30.0, "a")
    if "uncertain" in world:
        session.journal.intend(session.spec("b"), START)
    session.engine._sleep = session.clock.sleep
    for name, value in world.items():
        setattr(session.world, name, value)
    started = session.clock.now()
    assert session.engine.cancel() == names
    assert session.clock.now() - started < timedelta(seconds=60)
    assert len(session.printed) < 10
