"""What started a run: as its metadata says, else as the places and names of its files show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_llmbench.ingest.discover import names
from pytest_llmbench.ingest.discover.folders import Layout
from pytest_llmbench.ingest.discover.stamps import read_stamp

SBATCH, NEMO_RUN, LOCAL = "sbatch", "nemo-run", "nemo-run-local"
CONFIGURED = "configured-sbatch"

STATED = {"nemo": NEMO_RUN, "configured_sbatch": CONFIGURED, "sbatch": SBATCH}
"""What the metadata's `launcher_type` means; any other word stands for itself."""

_STREAMS = ("combined.log", "stdout.log", "stderr.log")


def find_launcher(stated: str, logs: Sequence[str], folder: str, where: Layout) -> str:
    """Return what started a run: sbatch, nemo-run, nemo-run-local, configured-sbatch, another word that its metadata
    states, or nothing where nothing tells.

    `stated` is what the metadata says, `logs` are the names of the run's logs, `folder` the name of theirs.
    """
    if stated:
        return STATED.get(stated.lower(), re.sub(r"[^\w.+-]+", "-", stated.lower()))
    if logs and all(log in _STREAMS for log in logs) and "nemo_run" in where.inside:
        return LOCAL
    launched = any(names.is_launched(log) for log in logs)
    if launched and where.name == "results":
        return SBATCH
    if launched and where.name in ("experiments", "workloads"):
        return _tell_experiment(logs, folder, where)
    return ""


def _tell_experiment(logs: Sequence[str], folder: str, where: Layout) -> str:
    """Tell `<name>/<name>_<time>/<task>/log-*`, which NeMo-Run makes, from `<name>/<time>/log-*`, and from Slurm's own
    file in the folder of a workload."""
    inside = where.experiment
    if len(inside) > 2 and inside[1].startswith(f"{inside[0]}_"):
        return NEMO_RUN
    if len(inside) == 2 and folder.isdecimal() and read_stamp(folder) is not None:
        return CONFIGURED
    slurm_only = all(log.lower().startswith("slurm-") for log in logs)
    return SBATCH if slurm_only and not inside else ""
