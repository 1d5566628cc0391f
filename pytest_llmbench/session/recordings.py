"""The recorded data of valid runs: means, spread, log hashes and environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Recording
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.core.robust import (
    compute_mean,
    compute_median,
    compute_trimmed_mean,
)
from pytest_llmbench.core.run_records import Measurement
from pytest_llmbench.judge.recorded_runs import Occasion, count_groups
from pytest_llmbench.logs.sources import files
from pytest_llmbench.logs.sources.compressed import Stream

_UNKNOWN_NODES: Mapping[str, frozenset[str]] = MappingProxyType({})


def make_recording(
    runs: Sequence[Measurement],
    now: datetime,
    author: str = "",
    nodes: Mapping[str, frozenset[str]] = _UNKNOWN_NODES,
    levels: str = "",
) -> Recording:
    """Return the recording of valid runs: means over runs, and the pooled spread within
    runs.

    `nodes` are by job id; the nodes of other runs are unknown. `levels` is the reason
    to accept runs of several levels.
    """
    windows = [np.array(run.window_seconds) for run in runs]
    means = [
        compute_mean(window, run.mean_of)
        for window, run in zip(windows, runs, strict=True)
    ]
    # A run with a single time has the variance 0.
    variances = [np.var(window, ddof=min(1, len(window) - 1)) for window in windows]
    hashes = [_hash(run.log) for run in runs if run.log]
    occasions = [
        Occasion(run.started, nodes.get(run.run.found.job_id, frozenset()))
        for run in runs
    ]
    trimmed_means = trim_windows(runs)
    return Recording(
        date=now.date().isoformat(),
        runs=len(runs),
        mean_seconds=float(np.mean(means)),
        trimmed_mean_seconds=float(np.mean(trimmed_means)),
        standard_deviation_seconds=float(np.sqrt(np.mean(variances))),
        run_seconds=tuple(trimmed_means),
        log_sha256=tuple(digest for digest in hashes if digest),
        newest_run=_find_newest_day(runs),
        by=author,
        environment=_list_environment(runs),
        groups=count_groups(occasions),
        levels=levels,
        observed=_compute_observed_medians(runs),
    )


def _compute_observed_medians(
    runs: Sequence[Measurement],
) -> tuple[tuple[str, float], ...]:
    """Return the median over the runs of each further value that all of them have.

    Such values (see `Observed`) are recorded in addition to the step time.
    """
    all_values = [dict(run.observed) for run in runs]
    shared_names = sorted(set(all_values[0]).intersection(*all_values))
    return tuple(
        (name, compute_median(np.array([values[name] for values in all_values])))
        for name in shared_names
    )


def _find_newest_day(runs: Sequence[Measurement]) -> str:
    """Return the day on which the newest run started, or "" if a run is undated."""
    started = [
        run.run.started.date().isoformat() if run.run.started else "" for run in runs
    ]
    return max(started) if all(started) else ""  # an undated run may be the newest


def _list_environment(runs: Sequence[Measurement]) -> tuple[tuple[str, str], ...]:
    """Return the environment values that all runs have in common."""
    redactor = make_redactor()
    first, *other_environments = (
        {
            name: redactor.redact_variable(name, formatting.escape(text))
            for name, text in run.environment.items()
        }
        for run in runs
    )
    return tuple(
        (name, value)
        for name, value in first.items()
        if all(environment.get(name) == value for environment in other_environments)
    )


def _hash(log: Path) -> str:
    """Return the SHA-256 of a log's text.

    "" if the log is no longer a readable file, or is in an archive.
    """
    digest = hashlib.sha256()
    try:
        for block in Stream(files.read_blocks(log), log):
            digest.update(block)
    except LogError:
        return ""
    return digest.hexdigest()


def trim_windows(runs: Sequence[Measurement]) -> list[float]:
    """Return the trimmed mean of each run over its window, in seconds."""
    return [
        compute_trimmed_mean(np.array(run.window_seconds), run.mean_of) for run in runs
    ]
