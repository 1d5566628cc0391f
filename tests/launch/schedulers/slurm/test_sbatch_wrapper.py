"""The wrapper of sbatch: added options, recorded answers and refusals."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.fake_schedulers import make_slurm
from support.job_specs import START, job_spec

from pytest_llmbench.core.job_records import Job
from pytest_llmbench.launch.jobs.journal import Journal
from pytest_llmbench.launch.schedulers.slurm.slurm_scheduler import SlurmScheduler
from pytest_llmbench.launch.schedulers.submission import Submission, SubmitError


class Queue:
    """Slurm's jobs by token, and the cancelled jobs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tokens: dict[str, str] = {}
        self.cancelled: list[str] = []

    def find(self, tokens: Collection[str], since: datetime) -> dict[str, str]:
        assert since < datetime.fromtimestamp(self.folder.stat().st_mtime, UTC)
        return {token: self.tokens[token] for token in tokens if token in self.tokens}

    def cancel(self, job_ids: Sequence[str]) -> str:
        self.cancelled += job_ids
        return ""


class Site:
    """A folder with a hostile name, a recipe's script that submits, and an sbatch on
    the PATH."""

    def __init__(self, folder: Path, journal: Journal) -> None:
        self.folder, self.journal, self.queue = folder, journal, Queue(folder)
        self.seen = folder / "seen"
        self.path = f"{folder / 'slurm $(bin)'}:/usr/bin:/bin"
        self.write(
            "slurm $(bin)/sbatch",
            'printf "%s\\n" "$@" >> "$SEEN"; echo "$PATH" >> "$SEEN"; echo "$ANSWER"',
        )

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def intend(
        self, script: str, answer: str = "Submitted batch job 12", **changes: Any
    ) -> Job:
        """Return a job whose launcher is a script with this text; sbatch prints this
        answer."""
        program = self.write("submit.sh", script)
        environment = (
            ("PATH", self.path),
            ("SEEN", str(self.seen)),
            ("ANSWER", answer),
        )
        spec = job_spec(
            self.folder,
            via="script",
            command=(str(program),),
            environment=environment,
            **changes,
        )
        return self.journal.intend(spec, START)

    @property
    def scheduler(self) -> SlurmScheduler:
        return make_slurm(self.queue, self.journal, submit_seconds=180.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "it's $(touch hacked) a folder"
    folder.mkdir()
    journal = Journal(folder / ".llmbench")
    journal.begin("test", START)
    yield Site(folder, journal)
    journal.close()
    assert not list(tmp_path.rglob("hacked"))


def test_token_and_node_options_precede_the_launchers_options(site: Site) -> None:
    options = ("--time=01:30:00", "--qos=high", "--nodelist=n[1-4]")
    job = site.intend(
        "sbatch --parsable -N 2 launch.sh -x",
        "12;eos",
        exclude=("n7", "n[12-14]"),
        scheduler_options=options,
    )
    assert site.scheduler.submit(job) == Submission("12")
    *arguments, path = site.seen.read_text().splitlines()
    added = [f"--comment=llmb:{job.token}", "--exclude=n7,n[12-14]", *options]
    assert arguments == [*added, "--parsable", "-N", "2", "launch.sh", "-x"]
    assert path == site.path, "the job does not find the wrapper again"


def test_log_folder_printed_by_the_launcher_is_used(site: Site) -> None:
    script = 'id=$(sbatch --parsable launch.sh); echo "- Job id: $id"; echo "- Local Directory: /lustre/x"'
    assert site.scheduler.submit(site.intend(script, "12")) == Submission(
        "12", Path("/lustre/x")
    )


def test_failing_launcher_is_a_refusal(site: Site) -> None:
    site.write("slurm $(bin)/sbatch", "echo sbatch: error: Invalid account >&2; exit 3")
    with pytest.raises(
        SubmitError, match=r"exit code 3 and no job id.*Invalid account"
    ) as caught:
        site.scheduler.submit(site.intend("sbatch launch.sh"))
    assert not caught.value.uncertain


@pytest.mark.parametrize(
    "script",
    ["sbatch launch.sh >/dev/null; kill -9 $$", "sbatch launch.sh >/dev/null; exit 1"],
)
def test_job_of_a_killed_launcher_is_found(site: Site, script: str) -> None:
    job = site.intend(script)
    assert site.scheduler.submit(job) == Submission("12")
    assert site.scheduler.recover(job) == Submission("12")


def test_job_whose_submission_answer_was_lost_is_found_by_its_token(site: Site) -> None:
    site.write("slurm $(bin)/sbatch", "kill -9 $PPID; exit 1")
    job = site.intend("sbatch launch.sh")
    site.queue.tokens[job.token] = "31"
    assert site.scheduler.submit(job) == Submission("31")


def test_launcher_that_submits_two_jobs_is_uncertain(site: Site) -> None:
    with pytest.raises(SubmitError, match=r"2 job ids \(12, 13\)") as caught:
        site.scheduler.submit(
            site.intend(
                "sbatch launch.sh >/dev/null; ANSWER=13 sbatch launch.sh >/dev/null",
                "12",
            )
        )
    assert caught.value.uncertain


@pytest.mark.parametrize("own", ["--exclude=n1", "-wn1", "--requeue -F nodes"])
def test_launcher_that_names_nodes_itself_is_refused(site: Site, own: str) -> None:
    with pytest.raises(
        SubmitError,
        match=r"two lists of nodes conflict.*this launcher names nodes",
    ) as caught:
        site.scheduler.submit(site.intend(f"sbatch {own} launch.sh", exclude=("n7",)))
    assert not caught.value.uncertain
    assert not site.seen.exists()
    assert site.scheduler.submit(site.intend(f"sbatch {own} launch.sh")) == Submission(
        "12"
    ), "its own alone may stand"


def test_sbatch_inside_a_job_is_unchanged(site: Site) -> None:
    site.scheduler.submit(
        site.intend("SLURM_JOB_ID=7 sbatch next.sh", scheduler_options=("--time=90",))
    )
    assert site.seen.read_text().splitlines()[0] == "next.sh"


def test_job_that_bypassed_the_wrapper_without_its_nodes_is_cancelled(
    site: Site,
) -> None:
    script = f"'{site.write('other/sbatch', 'echo Submitted batch job 44')}' launch.sh"
    with pytest.raises(
        SubmitError,
        match=r"job 44 with another sbatch.*--exclude=n7 did not reach.*was cancelled",
    ) as it:
        site.scheduler.submit(
            site.intend(script.replace("it's", "it'\\''s"), exclude=("n7",))
        )
    assert not it.value.uncertain
    assert site.queue.cancelled == ["44"]


@pytest.mark.parametrize("options", [(), ("--time=90",)])
def test_job_that_bypassed_the_wrapper_is_followed_if_nodes_do_not_matter(
    site: Site, options: tuple[str, ...]
) -> None:
    assert site.scheduler.submit(
        site.intend("echo Submitted batch job 44", scheduler_options=options)
    ) == Submission("44")
    assert site.queue.cancelled == []


def test_submission_succeeded_if_slurm_lists_a_job_with_its_token(site: Site) -> None:
    job = site.intend("echo Submitted batch job 44", exclude=("n7",))
    site.queue.tokens[job.token] = "44"
    assert site.scheduler.submit(job) == Submission("44")


def test_missing_sbatch_prevents_the_launch(site: Site) -> None:
    site.path = str(site.folder / "nothing")
    with pytest.raises(
        SubmitError,
        match=r"no sbatch on the PATH .*, so --qos=high cannot be passed",
    ) as caught:
        site.scheduler.submit(
            site.intend("touch ran", scheduler_options=("--qos=high",))
        )
    assert not caught.value.uncertain
    assert not (site.folder / "ran").exists()
