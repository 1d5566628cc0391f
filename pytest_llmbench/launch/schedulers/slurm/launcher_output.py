"""What a submission command printed: the job id and folder in it, or why there is
none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import Job
from pytest_llmbench.launch.schedulers.slurm.job_options import SBATCH
from pytest_llmbench.launch.schedulers.slurm.sbatch_wrapper import NODES_NAMED
from pytest_llmbench.launch.schedulers.submission import (
    Reader,
    Submission,
    SubmitError,
    merge_submissions,
    read_folder,
    remove_colours,
)

# a line of this length (columns) may have been wrapped: NeMo-Run's block is, at 80
# columns, where it is piped
WRAPPED = 79

_SBATCH = re.compile(r"\bSubmitted batch job (\S+)")
_ANSWER = re.compile(
    r"(?:Submitted batch job (\d+)(?: on cluster .*)?|(\d+)(?:;.*)?)\s*"
)
_TASK_JOB = re.compile(r"- Job id:\s*(\S+)")
_TASK_FOLDER = re.compile(r"- Local Directory:\s*(.*)")
_LLMB_RUN = (
    re.compile(r"\bJobID: ([^\s,]+), Workdir: (.+)"),
    re.compile(r"\b(?:SUBMITTED|LAUNCHED):.{0,2000}?\sjobid=(\S+)(?:\s+workdir=(.+))?"),
)

_LLMB_RUN_FAILED = r"\bERROR: .{0,2000}(?:launch failed with return code|venv error:|venv_(?:path|type) not found)"

# what a refused submission may say, and what to do then; the first that fits is shown
REMEDIES = (
    (
        NODES_NAMED,
        "two lists of nodes cannot both hold: leave one out, or choose another launcher (--llmb-launcher)",
    ),
    (
        r"GPUs not found|without GPU resources",
        "the job got no GPUs: set `gres`, such as `gres: gpu:8`, in the cluster file",
    ),
    (
        r"[Ii]nvalid generic resource",
        "this partition has no such GPUs: check `gres` and `partition` in the cluster file",
    ),
    (
        r"[Ii]nvalid account",
        "check `account` and `partition` in the cluster file: `sacctmgr show associations`",
    ),
    (
        r"[Ii]nvalid (?:partition|qos)",
        "check `partition` in the cluster file: `sinfo` lists what there is",
    ),
    (
        r"[Nn]ode count|[Nn]ode configuration|[Mm]ore processors",
        "this partition has no such nodes: see `sinfo -Nel`",
    ),
    (
        r"[Tt]ime limit|time_limit",
        "check `time_limit` in the cluster file against `sinfo -o '%P %l'`",
    ),
    (
        r"QOS|[Pp]olicy|[Ll]imit",
        "a limit of the account or QOS forbids it: `sacctmgr show associations`",
    ),
    (
        r"command not found|No such file or directory|ModuleNotFoundError",
        "something it needs is not installed here",
    ),
    (
        r"HF_TOKEN|gated repo|401 Client Error",
        "set HF_TOKEN to a token that may read the model's repository",
    ),
)

# the controller did not get the request: nothing was submitted
NOT_REACHED = re.compile(
    r"Unable to contact slurm controller|Connection refused|Unable to resolve|connect failure"
)

# the request may have arrived although no answer came
DOUBTFUL = re.compile(
    r"Socket timed out|[Zz]ero [Bb]ytes were transmitted|timed out on send/recv|Communication error"
)


def read_sbatch(text: str) -> list[Submission]:
    """Read `Submitted batch job 4711`."""
    return merge_submissions(
        Submission(match[1]) for match in _SBATCH.finditer(remove_colours(text))
    )


def read_answers(text: str) -> list[Submission]:
    """Read what sbatch itself answered, once or more often: its sentence, or its
    `--parsable` id and cluster."""
    lines = remove_colours(text).splitlines()
    return merge_submissions(
        Submission(match[1] or match[2])
        for match in map(_ANSWER.fullmatch, lines)
        if match
    )


def read_script(text: str) -> list[Submission]:
    """Read what a script that submits by itself prints: NeMo-Run's block if there is
    one, else sbatch's own line."""
    return merge_submissions(
        _read_tasks(remove_colours(text).splitlines())
    ) or read_sbatch(text)


def read_llmb_run(text: str) -> list[Submission]:
    """Read llmb-run's own lines; without any, what the recipe's script printed."""
    lines = remove_colours(text).splitlines()
    submissions = merge_submissions(
        Submission(match[1], read_folder(match[2] or ""))
        for pattern in _LLMB_RUN
        for line in lines
        if (match := pattern.search(line))
    )
    return submissions or read_script(text)


READERS: Mapping[str, Reader] = {
    SBATCH: read_sbatch,
    "script": read_script,
    "llmb-run": read_llmb_run,
}
"""What finds the jobs in the output of a submission command, by the way in which it
submits."""


def read_submissions(via: str, text: str) -> Sequence[Submission]:
    """Return the jobs in what a submission command printed."""
    return READERS[via](text)


def require_single(
    submissions: Sequence[Submission], job: Job, output: Path
) -> Submission | None:
    """Return the only submission, None where there is none; SubmitError for several, or
    an id that is not Slurm's."""
    ids = [each.job_id for each in submissions]
    if len(submissions) > 1:
        raise SubmitError(
            f"{job.spec.case_id}: the submission printed {count_noun(len(ids), 'job id')} ({join_first(ids)}), expected"
            f" one: none of them is followed, and all of them may run (`scancel {' '.join(ids)}` ends them). What it"
            f" printed is in {output}; `job_id` of the command, in the baseline file, can say which one counts",
            uncertain=True,
        )
    if submissions and not re.fullmatch(r"[0-9]+", ids[0]):
        raise SubmitError(
            f"{job.spec.case_id}: the submission printed the job id {escape(ids[0])!r}, which is none of Slurm's (a "
            f"number): nothing can follow that job, and it may run. What it printed is in {output}; see which executor "
            "the recipe uses",
            uncertain=True,
        )
    return submissions[0] if submissions else None


def find_remedy(text: str) -> str:
    """Return what to do about a refused submission."""
    return next(
        (advice for pattern, advice in REMEDIES if re.search(pattern, text)),
        "run it with --llmb-dry-run to see the whole command, and try that command by hand",
    )


def is_refused(text: str) -> bool:
    """Whether an output holds an error that is known: a command can end well although
    nothing was submitted, as llmb-run of 25.05 does."""
    return any(
        re.search(pattern, text)
        for pattern in (_LLMB_RUN_FAILED, *(pattern for pattern, _ in REMEDIES))
    )


def _read_tasks(lines: Sequence[str]) -> Iterator[Submission]:
    """Yield the jobs of NeMo-Run's block; its folder follows the job id."""
    job = ""
    for place, line in enumerate(lines):
        if match := _TASK_JOB.search(line):
            job = match[1]
            yield Submission(job)
        elif job and (match := _TASK_FOLDER.search(line)):
            yield Submission(job, read_folder(_unwrap(match[1], lines[place:])))


def _unwrap(begin: str, lines: Sequence[str]) -> str:
    """Return a path with the lines that it was wrapped into; `lines` begins with that
    of its beginning."""
    path, previous = begin.strip(), lines[0] if begin.strip() else " " * WRAPPED
    for line in lines[1:]:
        if len(previous) < WRAPPED or not re.fullmatch(r"\S+\s*", line):
            break
        path, previous = path + line.strip(), line.rstrip()
    return path
