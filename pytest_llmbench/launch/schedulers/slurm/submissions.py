"""What a submission command printed: the job id and folder in it, or why there is none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import Job, SubmissionState
from pytest_llmbench.launch import WITHHELD, has_unknown_secrets, redact
from pytest_llmbench.launch.schedulers.slurm.sbatch_wrapper import NODES_NAMED

Reader = Callable[[str], Sequence["Submission"]]

SHOWN_LINES = 5  # how many of the last lines of a refused submission are shown

# a line of this length (columns) may have been wrapped: NeMo-Run's block is, at 80 columns, where it is piped
WRAPPED = 79

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r(?=\n)")
_BOX = re.compile("[\u2500-\u257f]+")  # the frames in which newer launchers print what is wrong
_SBATCH = re.compile(r"\bSubmitted batch job (\S+)")
_ANSWER = re.compile(r"(?:Submitted batch job (\d+)(?: on cluster .*)?|(\d+)(?:;.*)?)\s*")
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
    (r"[Ii]nvalid account", "check `account` and `partition` in the cluster file: `sacctmgr show associations`"),
    (r"[Ii]nvalid (?:partition|qos)", "check `partition` in the cluster file: `sinfo` lists what there is"),
    (r"[Nn]ode count|[Nn]ode configuration|[Mm]ore processors", "this partition has no such nodes: see `sinfo -Nel`"),
    (r"[Tt]ime limit|time_limit", "check `time_limit` in the cluster file against `sinfo -o '%P %l'`"),
    (
        r"QOS|[Pp]olicy|[Ll]imit",
        "a limit of the account or QOS forbids it: `sacctmgr show associations`",
    ),
    (r"command not found|No such file or directory|ModuleNotFoundError", "something it needs is not installed here"),
    (r"HF_TOKEN|gated repo|401 Client Error", "set HF_TOKEN to a token that may read the model's repository"),
)

# the controller did not get the request: nothing was submitted
NOT_REACHED = re.compile(r"Unable to contact slurm controller|Connection refused|Unable to resolve|connect failure")

# the request may have arrived although no answer came
DOUBTFUL = re.compile(r"Socket timed out|[Zz]ero [Bb]ytes were transmitted|timed out on send/recv|Communication error")


MAYBE = "it may have been submitted: "  # how the problem of an UNCERTAIN job begins

SUPERSEDED = "its submission came to nothing, and another job took its place"  # the problem of a SUPERSEDED job


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was submitted, and the folder that its launcher printed for it."""

    job_id: str
    folder: Path | None = None


class SubmitError(LaunchError):
    """A job that was not submitted; `uncertain` if it may have been, so that it must not be submitted again."""

    def __init__(self, message: str, *, uncertain: bool = False, state: SubmissionState | None = None) -> None:
        super().__init__(message)
        self.uncertain = uncertain
        self.state = state or (SubmissionState.UNCERTAIN if uncertain else SubmissionState.NOT_SUBMITTED)


def describe_problem(state: SubmissionState, text: str) -> str:
    """Return why a job has no id, as people read it: its state, and what is known besides."""
    if state is SubmissionState.SUPERSEDED:
        return SUPERSEDED
    return f"{MAYBE}{text}" if state is SubmissionState.UNCERTAIN else text


def find_state(problem: str, job_id: str) -> SubmissionState:
    """Return the state of a job in a journal of an earlier version, which kept its problem in words alone."""
    if problem.startswith(MAYBE):
        return SubmissionState.UNCERTAIN
    if problem == SUPERSEDED:
        return SubmissionState.SUPERSEDED
    if problem:
        return SubmissionState.NOT_SUBMITTED
    return SubmissionState.SUBMITTED if job_id else SubmissionState.INTENDED


def read_sbatch(text: str) -> list[Submission]:
    """Read `Submitted batch job 4711`."""
    return _merge(Submission(match[1]) for match in _SBATCH.finditer(remove_colours(text)))


def read_answers(text: str) -> list[Submission]:
    """Read what sbatch itself answered, once or more often: its sentence, or its `--parsable` id and cluster."""
    lines = remove_colours(text).splitlines()
    return _merge(Submission(match[1] or match[2]) for match in map(_ANSWER.fullmatch, lines) if match)


def read_script(text: str) -> list[Submission]:
    """Read what a script that submits by itself prints: NeMo-Run's block if there is one, else sbatch's own line."""
    return _merge(_read_tasks(remove_colours(text).splitlines())) or read_sbatch(text)


def read_llmb_run(text: str) -> list[Submission]:
    """Read llmb-run's own lines; without any, what the recipe's script printed."""
    lines = remove_colours(text).splitlines()
    submissions = _merge(
        Submission(match[1], _read_folder(match[2] or ""))
        for pattern in _LLMB_RUN
        for line in lines
        if (match := pattern.search(line))
    )
    return submissions or read_script(text)


def read_pattern(pattern: str, text: str) -> list[Submission]:
    """Read a user's own pattern, a regular expression with a group `job` and perhaps `folder`."""
    groups = [match.groupdict() for match in re.finditer(pattern, remove_colours(text), re.MULTILINE)]
    return _merge(Submission(each["job"], _read_folder(each.get("folder") or "")) for each in groups if each.get("job"))


def require_single(submissions: Sequence[Submission], job: Job, output: Path) -> Submission | None:
    """Return the only submission, None where there is none; SubmitError for several, or an id that is not Slurm's."""
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


def describe_refusal(job: Job, code: int | None, text: str, output: Path) -> str:
    """Say why a submission failed: its own last words, where they lie, and what to do. `text` holds no secret."""
    ended = "did not end in time" if code is None else f"ended with exit code {code} and no job id"
    return (
        f"{job.spec.case_id}: the submission {ended}: {find_remedy(text)}. It said: {quote_end(job, text)} (all of "
        f"its output: {output}; command: {job.spec.command[0]} in {job.spec.directory})"
    )


def quote_end(job: Job, text: str) -> str:
    """Return the last lines of what a command printed, without secrets."""
    plain = _BOX.sub(" ", remove_colours(text)).splitlines()
    lines = [escape(line.strip()) for line in plain if line.strip()]
    if has_unknown_secrets(job.spec):
        return WITHHELD
    return " | ".join(lines[-SHOWN_LINES:]) or "(nothing)"


def find_remedy(text: str) -> str:
    """Return what to do about a refused submission."""
    return next(
        (advice for pattern, advice in REMEDIES if re.search(pattern, text)),
        "run it with --llmb-dry-run to see the whole command, and try that command by hand",
    )


def is_refused(text: str) -> bool:
    """Whether an output holds an error that is known: a command can end well although nothing was submitted, as
    llmb-run of 25.05 does."""
    return any(re.search(pattern, text) for pattern in (_LLMB_RUN_FAILED, *(pattern for pattern, _ in REMEDIES)))


def describe_doubt(job: Job, output: Path, *, marked: bool = False, text: str = "") -> str:
    """Say that nothing tells whether a job was submitted, what `text` says, and how to find out."""
    look = "squeue --me -t all -o '%i %T %j %k'" if marked else "squeue --me -t all -o '%i %T %j %V'"
    sign = f" (its comment would be llmb:{job.token})" if marked else ""
    answer = f"The submission said: {quote_end(job, text)}. " if text.strip() else ""
    return (
        f"{job.spec.case_id}: nothing tells whether it was submitted, so it is not submitted again. {answer}See "
        f"{shlex.quote(str(output))} and `{look}`{sign}; cancel it there if it runs, and start a new session for it"
    )


def hide_secrets(output: Path, job: Job) -> str:
    """Return what a submission printed, with its secrets hidden, in the file too."""
    text = output.read_text(encoding="utf-8", errors="replace")
    hidden = redact(text, job.spec)
    if hidden != text:
        output.write_text(hidden, encoding="utf-8")
    return hidden


def remove_colours(text: str) -> str:
    """Return a text without colours."""
    return _ESCAPE.sub("", text)


def _read_tasks(lines: Sequence[str]) -> Iterator[Submission]:
    """Yield the jobs of NeMo-Run's block; its folder follows the job id."""
    job = ""
    for place, line in enumerate(lines):
        if match := _TASK_JOB.search(line):
            job = match[1]
            yield Submission(job)
        elif job and (match := _TASK_FOLDER.search(line)):
            yield Submission(job, _read_folder(_unwrap(match[1], lines[place:])))


def _unwrap(begin: str, lines: Sequence[str]) -> str:
    """Return a path with the lines that it was wrapped into; `lines` begins with that of its beginning."""
    path, previous = begin.strip(), lines[0] if begin.strip() else " " * WRAPPED
    for line in lines[1:]:
        if len(previous) < WRAPPED or not re.fullmatch(r"\S+\s*", line):
            break
        path, previous = path + line.strip(), line.rstrip()
    return path


def _read_folder(text: str) -> Path | None:
    """Return an absolute path; None for anything else that stands in its place."""
    return Path(text.strip()) if text.strip().startswith("/") and "\0" not in text else None


def _merge(submissions: Iterable[Submission]) -> list[Submission]:
    """Return each job id once, with the first folder that was printed for it."""
    folders: dict[str, Path | None] = {}
    for each in submissions:
        folders[each.job_id] = folders.get(each.job_id) or each.folder
    return [Submission(job_id, folder) for job_id, folder in folders.items()]
