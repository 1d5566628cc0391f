"""A session of all 82 documented configurations, as outcome documents.

Most configurations pass. One configuration of each other kind is planted. `python
tests/support/full_session.py FILE` writes the report page for inspection.
"""

from __future__ import annotations

import math
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.formatting import escape_values
from pytest_llmbench.core.job_records import LaunchedJob, Purpose
from pytest_llmbench.core.log_records import Ending, EndingCode, Quote
from pytest_llmbench.core.outcome_records import UnmatchedRun
from pytest_llmbench.core.run_records import Attempt, AttemptFiles, Run
from pytest_llmbench.logs.quoted_lines import read_excerpts
from pytest_llmbench.report.describe_outcome import (
    describe,
    describe_check,
    describe_unmatched_run,
)
from pytest_llmbench.report.outcome_documents import (
    ConfigurationOutcome,
    OutcomeDocument,
    make_plain,
    restore_outcome,
)
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.collect_runs import IngestedRuns
from pytest_llmbench.session.evaluate import evaluate_runs
from pytest_llmbench.session.outcomes import decide_outcomes
from pytest_llmbench.session.settings import Settings
from support.builders import log, run, segment, steps
from support.outcomes import with_fields

NOW = datetime(2026, 3, 2, 6, 0, tzinfo=UTC)

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)> \"'&amp;{{7*7}}</pre></style>"
"""Log text that would run as HTML if a page did not escape it."""

(
    SLOWER,
    DIVERGED,
    INCOMPLETE,
    STALLED,
    RESTARTED,
    UNCLEAR,
    FASTER,
    PROFILED,
    LAUNCHED,
) = range(9)
"""Indices of the planted configurations."""

DAYS = 90

ENVIRONMENT = {
    "container": "nvcr.io/nvidia/nemo:25.04",
    "driver": "570.124.06",
    "nccl": "2.26.2",
    "python": "3.12.3",
}


def make_session_outcomes(folder: Path, days: int = DAYS) -> list[OutcomeDocument]:
    """Build the outcomes and write the logs of the planted failures to `folder`."""
    settings = Settings(unmatched="fail")
    catalog = load(settings)
    baselines = [candidates[0] for candidates in catalog.baselines.values()]
    runs = [
        _run(index, baseline, folder) for index, baseline in enumerate(baselines[:-3])
    ]
    ingested = IngestedRuns(tuple(runs), (), ())
    results = evaluate_runs(ingested, settings, catalog, NOW)
    results = replace(
        results,
        configurations={
            **results.configurations,
            **_launched(results.configurations, baselines[LAUNCHED].key.id),
        },
    )
    outcomes = decide_outcomes(results, list(results.configurations), settings)
    documents = [
        _with_history(describe(document, NOW, folder), index, days)
        for index, document in enumerate(outcomes)
    ]
    documents = [_with_lines(document, folder) for document in documents]
    unmatched = UnmatchedRun(
        f"pretrain_unknown_7b_{HOSTILE}",
        Reason.UNMATCHED,
        f"no recipe of this name; {HOSTILE}",
        folder / "x.out",
    )
    all_documents: list[OutcomeDocument] = [
        *documents,
        describe_unmatched_run(unmatched, folder),
        *map(describe_check, results.checks),
    ]
    return [
        restore_outcome(escape_values(make_plain(document)))
        for document in all_documents
    ]


def _run(index: int, baseline: Baseline, folder: Path) -> Run:
    key = baseline.key
    random = np.random.default_rng(index)
    factor = {SLOWER: 1.082, UNCLEAR: 1.042, FASTER: 0.91}.get(
        index, 1 + 0.004 * random.standard_normal()
    )
    seconds = baseline.step_seconds * factor * (1 + 0.003 * random.standard_normal(50))
    seconds[0] *= 3.1
    columns: dict[str, Any] = {
        "global_batch_size": np.full(
            50, float(baseline.configuration.global_batch_size)
        )
    }
    if index == STALLED:
        seconds[[22, 23, 38]] *= (
            1.6,
            1.6,
            4.0,
        )  # three slow steps are not a transient stall
    if index == DIVERGED:
        columns["loss"] = np.array([12.0] * 30 + [float("nan")] * 20)
    whole = log(segment(steps(seconds.tolist(), **columns)))
    truncated = log(
        segment(
            steps(
                seconds[:21].tolist(),
                global_batch_size=columns["global_batch_size"][:21],
            ),
            finished=False,
        )
    )
    truncated = replace(
        truncated,
        ending=Ending(
            EndingCode.TIME_LIMIT,
            Quote(f"error: *** STEP CANCELLED DUE TO TIME LIMIT {HOSTILE}"),
            121,
        ),
    )
    logs = {INCOMPLETE: (truncated,), RESTARTED: (truncated, whole)}.get(
        index, (whole,)
    )
    excluded = (
        {"excluded": Reason.PROFILED, "excluded_because": "its folder is called nsys"}
        if index == PROFILED
        else {}
    )
    started = NOW - timedelta(hours=2 + index % 7)
    synthetic = run(
        *logs,
        key=key,
        started=started,
        id=f"run_{index}",
        job_id=str(156000 + index),
        build=("b",),
        **excluded,
    )
    path = folder / f"log-{key.recipe}_{key.size}_{index}.out"
    if index in (SLOWER, DIVERGED, INCOMPLETE, STALLED):
        path.write_text(
            "".join(
                f"step {number}: {HOSTILE if number % 40 == 1 else 'loss 12.1'}\n"
                for number in range(200)
            )
        )
    files = tuple(
        AttemptFiles(attempt.files.number, str(path.parent), path.name)
        for attempt in synthetic.attempts
    )
    attempts = tuple(
        Attempt(file, attempt.log)
        for file, attempt in zip(files, synthetic.attempts, strict=True)
    )
    return replace(
        synthetic, attempts=attempts, found=replace(synthetic.found, attempts=files)
    )


def _launched(results: Any, name: str) -> dict[str, Any]:
    """Make the result of a configuration a launched one, with a failed and a complete
    job."""
    measure = Purpose.MEASURE
    jobs = [
        LaunchedJob("101", measure, 1, 1, "NODE_FAIL", ("n7",)),
        LaunchedJob("102", measure, 2, 1, "COMPLETED", ("n3", "n4"), 9.4),
    ]
    return {
        name: replace(
            results[name], jobs=tuple(jobs), nodes="n[3-4] are as fast as the others"
        )
    }


def _with_lines(document: ConfigurationOutcome, folder: Path) -> ConfigurationOutcome:
    """Add the log lines around a failure, as a session reads them for its reports."""
    excerpt = document.excerpt
    quoted_lines = (
        [*read_excerpts([(folder / excerpt.log, excerpt.line)]).values()]
        if excerpt
        else []
    )
    return (
        with_fields(
            document, excerpt={**to_builtins(excerpt), **quoted_lines[0]._asdict()}
        )
        if quoted_lines
        else document
    )


def _with_history(
    document: ConfigurationOutcome, index: int, days: int
) -> ConfigurationOutcome:
    """Add a history of daily runs. Every ninth configuration has a level change."""
    random = np.random.default_rng(1000 + index)
    expected = document.expected_seconds or math.nan
    changed = days * 2 // 3 if index % 9 == 0 else days
    times = expected * (
        1 + 0.004 * random.standard_normal(days) + 0.03 * (np.arange(days) >= changed)
    )
    history = []
    for number, value in enumerate(times.tolist()):
        verdict, reason = (
            ("INVALID", "incomplete")
            if number % 31 == 30
            else ("PASS", "within-tolerance")
        )
        started = (NOW - timedelta(days=days - number)).isoformat()
        history.append({
            "started": started, "verdict": verdict, "reason": reason, "expected_seconds": expected,
            "step_time_seconds": value if verdict == "PASS" else None, "log_difference": None, "job_id": str(number),
            "environment": ENVIRONMENT,
        })  # fmt: skip
    change = {
        "kind": "step", "stands": True, "started": (NOW - timedelta(days=days - changed)).isoformat(),
        "night": changed, "difference": 0.031,
        "low": 0.026, "high": 0.036, "environment": {"driver": ["560.35.03", f"570 {HOSTILE}"]},
        "text": "3.1 % slower since then; what differs: driver",
        "acknowledged": {"reason": "new driver", "by": "ops", "expires": "2026-06-01"} if index % 2 else None,
    }  # fmt: skip
    changes = [change] if changed < days else []
    return with_fields(
        document, history=history, changes=changes, environment=ENVIRONMENT
    )


if __name__ == "__main__":
    from pytest_llmbench.report.html import render

    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(make_session_outcomes(target.parent), NOW))
