"""An `sbatch` of our own, first on the PATH of a launcher that submits by itself.

Such a launcher hands neither our mark nor excluded nodes on to Slurm. The wrapper gives
them to the real sbatch, in front, where they win over what the script of the job says
and over none of the launcher's own options; and it keeps what sbatch answered, so that
a launcher that is killed before it prints the job id leaves no job behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping

from pytest_llmbench.core.job_records import Job, JobSpec
from pytest_llmbench.core.userfile import is_there
from pytest_llmbench.launch.schedulers.slurm.client import COMMENT

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


def list_options(job: Job) -> tuple[str, ...]:
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
    options = list_options(job)
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


def read_answers(job: Job) -> str:
    """Return what the real sbatch printed for a job through its wrapper; empty where it
    was not called."""
    try:
        return (job.folder / ANSWERS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def is_wrapped(job: Job) -> bool:
    """Whether a job was submitted, or is to be, through a wrapper."""
    return is_there(job.folder / FOLDER / "sbatch")
