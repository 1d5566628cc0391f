"""sbatch: the options of a job, a wrapper for launchers, and the output of submissions.

A launcher that calls sbatch itself passes neither our token nor excluded nodes to
Slurm. Our wrapper, first on the launcher's PATH, adds them in front of the launcher's
options: they override the #SBATCH lines of the job's script, but not the launcher's
options. The wrapper also records the answer of sbatch, so that a launcher that is
killed before it prints the job id leaves no untracked job.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import Cluster, Job, JobSpec, Purpose
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.userfile import path_exists
from pytest_llmbench.launch.schedulers.slurm.client import COMMENT
from pytest_llmbench.launch.schedulers.submission import (
    Reader,
    Submission,
    SubmitError,
    merge_submissions,
    read_folder,
    remove_colours,
)

SBATCH = "sbatch"  # both the program and its launcher

# terminal width for launchers, which otherwise wrap paths in their output
TERMINAL_COLUMNS = "400"

NODELIST = "--nodelist="

# keys of a cluster file that have the name of an sbatch option
OPTIONS = ("qos", "reservation", "constraint", "segment", "nodelist")

# sbatch reads the first variable, srun the second
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "account": ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
    "partition": ("SBATCH_PARTITION", "SLURM_PARTITION"),
    "gres": ("SBATCH_GPUS_PER_NODE", "SLURM_GPUS_PER_NODE"),
    "time_limit": ("TIME_LIMIT",),
}


def runs_in_recipe(via: str) -> bool:
    """True if a launcher runs in the folder of the recipe; llmb-run does not."""
    return via != "llmb-run"


def list_variables(via: str) -> dict[str, str]:
    """Return COLUMNS for launchers that print a job id and a folder."""
    if via in ("script", "llmb-run"):
        return {"COLUMNS": TERMINAL_COLUMNS}
    return {}


def drop_misread_variables(variables: dict[str, str]) -> dict[str, str]:
    """Remove SLURM_GPUS_PER_NODE=null, which srun parses as a number.

    See docs/reference/cluster.md.
    """
    return {
        name: value
        for name, value in variables.items()
        if (name, value) != ("SLURM_GPUS_PER_NODE", "null")
    }


def complete_command(
    via: str, words: Sequence[str], cluster: Cluster
) -> tuple[str, ...]:
    """Add GPUs and time limit of the cluster file to an sbatch command.

    Options of the command come later, and override them.
    """
    if via != SBATCH or Path(words[0]).name != SBATCH:
        return tuple(words)
    program, *arguments = words
    options = _format_options({"--gres": cluster.gres, "--time": cluster.time_limit})
    return (program, *options, *arguments)


def list_cluster_options(via: str, cluster: Cluster) -> tuple[str, ...]:
    """Return the cluster file's sbatch options that a command does not contain."""
    # an sbatch command contains its time limit already
    limit = cluster.time_limit if via != SBATCH else ""
    named_options = {f"--{name}": getattr(cluster, name) for name in OPTIONS}
    return _format_options({"--time": limit, **named_options})


def format_cancel(job_ids: Sequence[str]) -> str:
    """Format a command such as `scancel 4711 4712`; "" without jobs."""
    return f"scancel {' '.join(job_ids)}" if job_ids else ""


def format_inquiry(job_id: str) -> str:
    """Format a command such as `sacct -j 4711`."""
    return f"sacct -j {job_id}"


def format_on_node(command: str, environment: Mapping[str, str]) -> str:
    """Wrap a command in srun, with account and partition of an environment.

    The result is such as `srun --account team bash -c "..."`.
    """
    words = ["srun"]
    for option, name in (
        ("--account", "SBATCH_ACCOUNT"),
        ("--partition", "SBATCH_PARTITION"),
    ):
        if value := environment.get(name):
            words += [option, value]
    return f'{shlex.join(words)} bash -c "{command}"'


def find_output(job: Job) -> Path:
    """Return the default output file of an sbatch job."""
    return job.spec.directory / f"slurm-{job.job_id}.out"


def _format_options(options: Mapping[str, object]) -> tuple[str, ...]:
    """Format options as `--name=value`, without those that have no value."""
    return tuple(f"{name}={value}" for name, value in options.items() if value)


# --- nodes --------------------------------------------------------------------


def pin_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that runs on exactly these nodes."""
    options = _list_other_options(spec, NODELIST)
    return replace(spec, scheduler_options=(*options, f"{NODELIST}{','.join(nodes)}"))


def is_pinned(spec: JobSpec) -> bool:
    """True if a job names its nodes."""
    return any(option.startswith(NODELIST) for option in spec.scheduler_options)


def _list_other_options(spec: JobSpec, *excluded_starts: str) -> list[str]:
    """List the scheduler options that do not begin with one of `excluded_starts`."""
    return [
        option
        for option in spec.scheduler_options
        if not option.startswith(excluded_starts)
    ]


def build_node_check(
    command: str,
    spec: JobSpec,
    cluster: Cluster,
    nodes: Sequence[str],
    *,
    minutes: int,
    output: Path,
) -> JobSpec:
    """Build a job that runs a command once on each of `nodes`.

    The job uses the account and GPUs of the configuration `spec`. `{job}` in `output`
    is replaced by Slurm's placeholder of the job id.
    """
    options = {
        "--account": cluster.account,
        "--partition": cluster.partition,
        "--gres": cluster.gres,
        "--time": f"00:{minutes}:00",
        "--nodes": str(len(nodes)),
        "--ntasks-per-node": "1",
        "--nodelist": ",".join(nodes),
        "--output": str(output).format(job="%j"),
    }
    # the segment size applies only to the configuration's own number of nodes
    other_options = tuple(_list_other_options(spec, "--time=", NODELIST, "--segment="))
    return replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        via=SBATCH,
        command=(SBATCH, *_format_options(options), f"--wrap={command}"),
        scheduler_options=other_options,
    )


# --- the wrapper of sbatch ------------------------------------------------------------


FOLDER = "bin"
ANSWERS = "sbatch.out"

NODES_NAMED = "llmbench: this launcher names nodes itself"
"""The wrapper's error if a launcher names nodes: two lists of nodes would conflict."""

# Inside a job the wrapper adds nothing: the token of the outer job would mark another
# job. Words after the script are arguments of the script, even if they look like
# options; the script is the first word that is neither an option nor an option's value.
WRAPPER = r"""#!/bin/sh
# Adds options that a launcher does not pass to sbatch, and records sbatch's answer. Written by llmbench.
real={real}
bin={bin}
answers={answers}
added={added}
clean=:$PATH:
while :; do
    case $clean in
        *":$bin:"*) clean=${{clean%%":$bin:"*}}:${{clean#*":$bin:"}} ;;
        *) break ;;
    esac
done
clean=${{clean#:}}
PATH=${{clean%:}}
export PATH
[ -z "${{SLURM_JOB_ID-}}" ] || exec "$real" "$@"
before==
for word in {watched}; do
    case $word in
        --exclude | --exclude=* | -x* | --nodelist | --nodelist=* | -w* | --nodefile* | -F*)
            echo "sbatch: error: {refusal} ($word): $added cannot be added" >&2
            exit 2
            ;;
        -*) ;;
        *) case $before in -*=* | [!-]*) break ;; esac ;;
    esac
    before=$word
done
answer=$("$real" {options} "$@")
code=$?
[ -z "$answer" ] || printf '%s\n' "$answer" | tee -a -- "$answers"
exit "$code"
"""


def list_job_options(job: Job) -> tuple[str, ...]:
    """Return the sbatch options that precede the options of a command.

    These are the token, the excluded nodes, and the options of the cluster file.
    """
    spec = job.spec
    return (
        f"--comment={COMMENT}{job.token}",
        *_format_exclude(spec),
        *spec.scheduler_options,
    )


def list_placement(spec: JobSpec) -> tuple[str, ...]:
    """Return the options that must reach Slurm: all except the time limit.

    They determine the nodes and the account of a job.
    """
    return (*_format_exclude(spec), *_list_other_options(spec, "--time="))


def _format_exclude(spec: JobSpec) -> tuple[str, ...]:
    """Format the option for the excluded nodes of a job, if any."""
    return (f"--exclude={','.join(spec.exclude)}",) if spec.exclude else ()


def install_wrapper(job: Job) -> Mapping[str, str]:
    """Write the wrapper of sbatch to a job's folder.

    Returns an environment with the wrapper first on the PATH, or unchanged if there is
    no sbatch on the PATH. Raises OSError if the folder cannot be written.
    """
    environment = dict(job.spec.environment)
    path = environment.get("PATH", os.defpath)
    real_sbatch = shutil.which("sbatch", path=path)
    if real_sbatch is None:
        return environment
    folder = job.folder.absolute() / FOLDER
    options = list_job_options(job)
    names_nodes = any(
        option.startswith(("--exclude=", "--nodelist=")) for option in options
    )
    text = WRAPPER.format(
        real=shlex.quote(os.path.abspath(real_sbatch)),
        bin=shlex.quote(str(folder)),
        answers=shlex.quote(str(folder.parent / ANSWERS)),
        # the words that the wrapper searches for nodes: the launcher's arguments, or
        # none if our options name no nodes, so that the lists cannot conflict
        watched='"$@"' if names_nodes else "",
        refusal=NODES_NAMED,
        added=shlex.quote(" ".join(options)),
        options=shlex.join(options),
    )
    folder.mkdir(exist_ok=True)
    wrapper = folder / "sbatch"
    wrapper.write_text(text, encoding="utf-8")
    wrapper.chmod(0o755)
    return {**environment, "PATH": f"{folder}{os.pathsep}{path}"}


def read_answers(job: Job) -> list[Submission]:
    """Read the answers of sbatch that the wrapper recorded; empty if it was not called."""
    try:
        text = (job.folder / ANSWERS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return parse_answers(text)


def is_wrapped(job: Job) -> bool:
    """True if a job is submitted through the wrapper."""
    return path_exists(job.folder / FOLDER / "sbatch")


# --- output of submissions ------------------------------------------------------------


# a line of at least this length (columns) may have been wrapped: NeMo-Run wraps its
# block at 80 columns if the output is a pipe
MIN_WRAPPED_COLUMNS = 79

# sbatch's line, anywhere in the output of a launcher
_SUBMITTED = compile_on_use(r"\bSubmitted batch job (\S+)")
# a whole answer of sbatch: `Submitted batch job 4711`, or `4711;cluster` (--parsable)
_ANSWER = compile_on_use(
    r"(?:Submitted batch job (\d+)(?: on cluster .*)?|(\d+)(?:;.*)?)\s*"
)
# NeMo-Run's block: `- Job id: 4711`, then `- Local Directory: /path/to/experiment`
_TASK_JOB = compile_on_use(r"- Job id:\s*(\S+)")
_TASK_FOLDER = compile_on_use(r"- Local Directory:\s*(.*)")
# `JobID: 4711, Workdir: /path`; newer: `SUBMITTED: ... jobid=4711 workdir=/path`
_LLMB_RUN = (
    compile_on_use(r"\bJobID: ([^\s,]+), Workdir: (.+)"),
    compile_on_use(
        r"\b(?:SUBMITTED|LAUNCHED):.{0,2000}?\sjobid=(\S+)(?:\s+workdir=(.+))?"
    ),
)

_LLMB_RUN_FAILED = r"\bERROR: .{0,2000}(?:launch failed with return code|venv error:|venv_(?:path|type) not found)"

# (pattern in the output of a refused submission, remedy); the first match is shown
REMEDIES = (
    (
        NODES_NAMED,
        "two lists of nodes conflict: remove one, or choose another launcher (--llmb-launcher)",
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
        "check `partition` in the cluster file: `sinfo` lists the partitions",
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
        "a required program or module is not installed here",
    ),
    (
        r"HF_TOKEN|gated repo|401 Client Error",
        "set HF_TOKEN to a token that may read the model's repository",
    ),
)

# the request did not reach the controller: nothing was submitted
NOT_REACHED = compile_on_use(
    r"Unable to contact slurm controller|Connection refused|Unable to resolve|connect failure"
)

# the request may have arrived although there was no answer
DOUBTFUL = compile_on_use(
    r"Socket timed out|[Zz]ero [Bb]ytes were transmitted|timed out on send/recv|Communication error"
)


def read_sbatch(text: str) -> list[Submission]:
    """Find the jobs in lines such as `Submitted batch job 4711`."""
    return merge_submissions(
        Submission(match[1]) for match in _SUBMITTED.finditer(remove_colours(text))
    )


def parse_answers(text: str) -> list[Submission]:
    """Parse the recorded answers of sbatch: sentences, or `--parsable` ids."""
    submissions = []
    for line in remove_colours(text).splitlines():
        if match := _ANSWER.fullmatch(line):
            sentence_id, parsable_id = match.groups()
            submissions.append(Submission(sentence_id or parsable_id))
    return merge_submissions(submissions)


def read_script(text: str) -> list[Submission]:
    """Find the jobs in the output of a script that submits by itself.

    Uses NeMo-Run's block if there is one, else sbatch's line.
    """
    lines = remove_colours(text).splitlines()
    submissions = merge_submissions(_read_tasks(lines))
    return submissions or read_sbatch(text)


def read_llmb_run(text: str) -> list[Submission]:
    """Find the jobs in the output of llmb-run, else in that of the recipe's script."""
    submissions = []
    for pattern in _LLMB_RUN:
        for line in remove_colours(text).splitlines():
            if match := pattern.search(line):
                job_id, folder = match.groups()
                submissions.append(Submission(job_id, read_folder(folder or "")))
    return merge_submissions(submissions) or read_script(text)


READERS: Mapping[str, Reader] = {
    SBATCH: read_sbatch,
    "script": read_script,
    "llmb-run": read_llmb_run,
}
"""The function that finds jobs in the output of a submission command, by launcher."""


def read_submissions(via: str, text: str) -> Sequence[Submission]:
    """Find the submitted jobs in the output of a submission command."""
    return READERS[via](text)


def require_single(
    submissions: Sequence[Submission], job: Job, output: Path
) -> Submission | None:
    """Return the only submission, or None if there is none.

    Raises SubmitError for several submissions, or a job id that is not Slurm's.
    """
    ids = [submission.job_id for submission in submissions]
    if len(submissions) > 1:
        raise SubmitError(
            f"{job.spec.case_id}: the submission printed {count_noun(len(ids), 'job id')} ({join_first(ids)}), expected"
            f" one: all of these jobs may run, but none is tracked (`scancel {' '.join(ids)}` ends them). Its output is"
            f" in {output}; to select a job, set `job_id` of the command in the baseline file",
            uncertain=True,
        )
    if submissions and not re.fullmatch(r"[0-9]+", ids[0]):
        raise SubmitError(
            f"{job.spec.case_id}: the submission printed the job id {escape(ids[0])!r}, expected a number as Slurm has: "
            f"the job may run, but cannot be tracked. Its output is in {output}; check which executor the recipe uses",
            uncertain=True,
        )
    return submissions[0] if submissions else None


def find_remedy(text: str) -> str:
    """Return the remedy for a refused submission; `text` is its output."""
    for pattern, remedy in REMEDIES:
        if re.search(pattern, text):
            return remedy
    return "use --llmb-dry-run to see the whole command, and run it manually"


def is_refused(text: str) -> bool:
    """True if an output contains a known error.

    A command may exit with 0 although nothing was submitted, as llmb-run of 25.05 does.
    """
    patterns = [_LLMB_RUN_FAILED, *(pattern for pattern, _ in REMEDIES)]
    return any(re.search(pattern, text) for pattern in patterns)


def _read_tasks(lines: Sequence[str]) -> Iterator[Submission]:
    """Yield the jobs of NeMo-Run's block, in which the folder follows the job id.

    A job is yielded again with its folder.
    """
    job_id = ""
    for index, line in enumerate(lines):
        if match := _TASK_JOB.search(line):
            job_id = match[1]
            yield Submission(job_id)
        elif job_id and (match := _TASK_FOLDER.search(line)):
            folder = _join_wrapped_path(match[1], lines[index:])
            yield Submission(job_id, read_folder(folder))


def _join_wrapped_path(start: str, lines: Sequence[str]) -> str:
    """Return a path that was wrapped over several lines.

    `start` is the first part of the path; `lines` begin with the line that contains it.
    """
    first_line, *following_lines = lines
    path = start.strip()
    # a path may begin on the line after its label
    may_continue = not path or len(first_line) >= MIN_WRAPPED_COLUMNS
    for line in following_lines:
        is_one_word = re.fullmatch(r"\S+\s*", line)
        if not may_continue or not is_one_word:
            break
        path += line.strip()
        may_continue = len(line.rstrip()) >= MIN_WRAPPED_COLUMNS
    return path
