"""sbatch: the options of a job, our own sbatch for launchers, and what a submission
printed.

A launcher that submits by itself hands neither our mark nor excluded nodes on to Slurm.
Our sbatch, first on its PATH, gives them to the real one, in front, where they win over
what the script of the job says and over none of the launcher's own options; and it keeps
what sbatch answered, so that a launcher that is killed before it prints the job id
leaves no job behind.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_llmbench.core.formatting import count_noun, escape, join_first
from pytest_llmbench.core.job_records import Cluster, Job, JobSpec, Purpose
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch.schedulers.slurm.client import COMMENT
from pytest_llmbench.launch.schedulers.submission import (
    Reader,
    Submission,
    SubmitError,
    merge_submissions,
    read_folder,
    remove_colours,
)

SBATCH = "sbatch"  # both the program and the way to submit by it

# launchers wrap what they print at the width of a terminal, in the middle of paths
WIDE = "400"

NODELIST = "--nodelist="

# keys of a cluster file that are options of sbatch by the same names
OPTIONS = ("qos", "reservation", "constraint", "segment", "nodelist")

# sbatch reads the first of each, srun the second
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "account": ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
    "partition": ("SBATCH_PARTITION", "SLURM_PARTITION"),
    "gres": ("SBATCH_GPUS_PER_NODE", "SLURM_GPUS_PER_NODE"),
    "time_limit": ("TIME_LIMIT",),
}


def runs_in_recipe(via: str) -> bool:
    """Return False for llmb-run, which runs where its document says."""
    return via != "llmb-run"


def list_variables(via: str) -> dict[str, str]:
    """Return the width of the terminal for launchers that print a job id and a
    folder."""
    return {"COLUMNS": WIDE} if via in ("script", "llmb-run") else {}


def drop_misread_variables(variables: dict[str, str]) -> dict[str, str]:
    """Return variables without SLURM_GPUS_PER_NODE=null, which srun takes for a number:
    see docs/cluster.md."""
    return {
        name: value
        for name, value in variables.items()
        if (name, value) != ("SLURM_GPUS_PER_NODE", "null")
    }


def complete_command(
    via: str, words: Sequence[str], cluster: Cluster
) -> tuple[str, ...]:
    """Return a command of sbatch with GPUs and time limit of the cluster file; its own
    options come later, and win."""
    if via != SBATCH or Path(words[0]).name != SBATCH:
        return tuple(words)
    program, *others = words
    return (
        program,
        *_format_options({"--gres": cluster.gres, "--time": cluster.time_limit}),
        *others,
    )


def list_cluster_options(via: str, cluster: Cluster) -> tuple[str, ...]:
    """Return what sbatch gets besides a command, whatever calls it."""
    # a command of sbatch has its time limit, where it can be seen
    limit = cluster.time_limit if via != SBATCH else ""
    return _format_options(
        {"--time": limit, **{f"--{name}": getattr(cluster, name) for name in OPTIONS}}
    )


def format_cancel(job_ids: Sequence[str]) -> str:
    """Return `scancel 4711 4712`; "" without a job."""
    return f"scancel {' '.join(job_ids)}" if job_ids else ""


def format_inquiry(job_id: str) -> str:
    """Return `sacct -j 4711`."""
    return f"sacct -j {job_id}"


def format_on_node(command: str, environment: Mapping[str, str]) -> str:
    """Return the srun that runs a command on a node, with the account and partition of
    an environment."""
    words = []
    for option, name in (
        ("--account", "SBATCH_ACCOUNT"),
        ("--partition", "SBATCH_PARTITION"),
    ):
        if value := environment.get(name):
            words += [option, value]
    return " ".join(["srun", *map(shlex.quote, words), f'bash -c "{command}"'])


def find_output(job: Job) -> Path:
    """Return the file that sbatch names for the output of a job."""
    return job.spec.directory / f"slurm-{job.job_id}.out"


def _format_options(options: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"{name}={value}" for name, value in options.items() if value)


# --- nodes --------------------------------------------------------------------


def pin_nodes(spec: JobSpec, nodes: Sequence[str]) -> JobSpec:
    """Return a job that gets exactly these nodes."""
    options = _list_without(spec, NODELIST)
    return replace(spec, scheduler_options=(*options, f"{NODELIST}{','.join(nodes)}"))


def is_pinned(spec: JobSpec) -> bool:
    """Return True if a job names the nodes that it gets."""
    return any(option.startswith(NODELIST) for option in spec.scheduler_options)


def _list_without(spec: JobSpec, *starts: str) -> Iterator[str]:
    return (
        option for option in spec.scheduler_options if not option.startswith(starts)
    )


def build_node_check(
    command: str,
    spec: JobSpec,
    cluster: Cluster,
    nodes: Sequence[str],
    *,
    minutes: int,
    output: Path,
) -> JobSpec:
    """Return the job that runs a command once on each of these nodes, with the account
    and GPUs of a configuration."""
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
    # blocks of nodes are those of the configuration
    kept = tuple(_list_without(spec, "--time=", NODELIST, "--segment="))
    return replace(
        spec,
        purpose=Purpose.CHECK_NODES,
        via=SBATCH,
        command=(SBATCH, *_format_options(options), f"--wrap={command}"),
        scheduler_options=kept,
    )


# --- our own sbatch -------------------------------------------------------------------


FOLDER = "bin"
ANSWERS = "sbatch.out"

NODES_NAMED = "llmbench: this launcher names nodes itself"
"""What the wrapper says when it refuses: two lists of nodes cannot both hold."""

# In a job the mark of the job that submits would be that of another: nothing is added
# there. What looks like an option behind the script is one of the script, and stands
# behind a word that is neither an option nor a value of one.
WRAPPER = r"""#!/bin/sh
# Adds to what a launcher submits what it does not hand on itself, and keeps sbatch's answer. Written by llmbench.
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
    """Return what sbatch gets in front of the options of a command: the mark, and what
    the cluster file and options say of every job."""
    spec = job.spec
    return (
        f"--comment={COMMENT}{job.token}",
        *_format_exclude(spec),
        *spec.scheduler_options,
    )


def list_placement(spec: JobSpec) -> tuple[str, ...]:
    """Return the options that say where a job may run and as whose; a job without them
    is another one."""
    return (
        *_format_exclude(spec),
        *(each for each in spec.scheduler_options if not each.startswith("--time=")),
    )


def _format_exclude(spec: JobSpec) -> tuple[str, ...]:
    return (f"--exclude={','.join(spec.exclude)}",) if spec.exclude else ()


def install_wrapper(job: Job) -> Mapping[str, str]:
    """Write the wrapper into the folder of a job, and return the environment in which
    its launcher finds it first.

    Without an sbatch on the PATH there is nothing to wrap, and the environment is
    returned as it is. OSError where the folder cannot be written.
    """
    environment = dict(job.spec.environment)
    real = shutil.which("sbatch", path=environment.get("PATH", os.defpath))
    if real is None:
        return environment
    folder = job.folder.absolute() / FOLDER
    options = list_job_options(job)
    names_nodes = any(
        option.startswith(("--exclude=", "--nodelist=")) for option in options
    )
    text = WRAPPER.format(
        real=shlex.quote(os.path.abspath(real)),
        bin=shlex.quote(str(folder)),
        answers=shlex.quote(str(folder.parent / ANSWERS)),
        watched='"$@"' if names_nodes else "",
        refusal=NODES_NAMED,
        added=shlex.quote(" ".join(options)),
        options=shlex.join(options),
    )
    folder.mkdir(exist_ok=True)
    (folder / "sbatch").write_text(text, encoding="utf-8")
    (folder / "sbatch").chmod(0o755)
    return {
        **environment,
        "PATH": os.pathsep.join((str(folder), environment.get("PATH", os.defpath))),
    }


def read_answers(job: Job) -> list[Submission]:
    """Read what the real sbatch answered, as our wrapper recorded it; nothing if it was
    not called."""
    try:
        text = (job.folder / ANSWERS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return parse_answers(text)


def is_wrapped(job: Job) -> bool:
    """Whether a job was submitted, or is to be, through a wrapper."""
    return is_there(job.folder / FOLDER / "sbatch")


# --- what a submission printed --------------------------------------------------------


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


def parse_answers(text: str) -> list[Submission]:
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
