"""A night of all 82 documented configurations as outcome dictionaries: most pass, one
of each other kind is planted.

`python tests/night.py FILE` writes its page, to be looked at.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins

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
"""Text of a log that would be more than text on a page that does not escape it."""

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
"""The planted configurations, by their place."""

NIGHTS = 90

ENVIRONMENT = {
    "container": "nvcr.io/nvidia/nemo:25.04",
    "driver": "570.124.06",
    "nccl": "2.26.2",
    "python": "3.12.3",
}


def night(folder: Path, nights: int = NIGHTS) -> list[OutcomeDocument]:
    """Return the outcomes; the log of the planted failures is written below the
    folder."""
    settings = Settings(unmatched="fail")
    catalog = load(settings)
    baselines = [of_key[0] for of_key in catalog.baselines.values()]
    runs = [
        _run(place, baseline, folder) for place, baseline in enumerate(baselines[:-3])
    ]
    found = IngestedRuns(tuple(runs), (), ())
    results = evaluate_runs(found, settings, catalog, NOW)
    results = replace(
        results,
        configurations={
            **results.configurations,
            **_launched(results.configurations, baselines[LAUNCHED].key.id),
        },
    )
    outcomes = decide_outcomes(results, list(results.configurations), settings)
    told = [
        _with_history(describe(one, NOW, folder), place, nights)
        for place, one in enumerate(outcomes)
    ]
    told = [_with_lines(one, folder) for one in told]
    stray = UnmatchedRun(
        f"pretrain_unknown_7b_{HOSTILE}",
        Reason.UNMATCHED,
        f"no recipe of this name; {HOSTILE}",
        folder / "x.out",
    )
    everything: list[OutcomeDocument] = [
        *told,
        describe_unmatched_run(stray, folder),
        *map(describe_check, results.checks),
    ]
    return [restore_outcome(escape_values(make_plain(one))) for one in everything]


def _run(place: int, baseline: Baseline, folder: Path) -> Run:
    key = baseline.key
    random = np.random.default_rng(place)
    factor = {SLOWER: 1.082, UNCLEAR: 1.042, FASTER: 0.91}.get(
        place, 1 + 0.004 * random.standard_normal()
    )
    seconds = baseline.step_seconds * factor * (1 + 0.003 * random.standard_normal(50))
    seconds[0] *= 3.1
    columns: dict[str, Any] = {
        "global_batch_size": np.full(
            50, float(baseline.configuration.global_batch_size)
        )
    }
    if place == STALLED:
        seconds[[22, 23, 38]] *= (1.6, 1.6, 4.0)  # three are no hiccup
    if place == DIVERGED:
        columns["loss"] = np.array([12.0] * 30 + [float("nan")] * 20)
    whole = log(segment(steps(seconds.tolist(), **columns)))
    torn = log(
        segment(
            steps(
                seconds[:21].tolist(),
                global_batch_size=columns["global_batch_size"][:21],
            ),
            finished=False,
        )
    )
    torn = replace(
        torn,
        ending=Ending(
            EndingCode.TIME_LIMIT,
            Quote(f"error: *** STEP CANCELLED DUE TO TIME LIMIT {HOSTILE}"),
            121,
        ),
    )
    logs = {INCOMPLETE: (torn,), RESTARTED: (torn, whole)}.get(place, (whole,))
    found = (
        {"excluded": Reason.PROFILED, "excluded_because": "its folder is called nsys"}
        if place == PROFILED
        else {}
    )
    started = NOW - timedelta(hours=2 + place % 7)
    made = run(
        *logs,
        key=key,
        started=started,
        id=f"run_{place}",
        job_id=str(156000 + place),
        build=("b",),
        **found,
    )
    path = folder / f"log-{key.recipe}_{key.size}_{place}.out"
    if place in (SLOWER, DIVERGED, INCOMPLETE, STALLED):
        path.write_text(
            "".join(
                f"step {number}: {HOSTILE if number % 40 == 1 else 'loss 12.1'}\n"
                for number in range(200)
            )
        )
    files = tuple(AttemptFiles(one.files.number, path) for one in made.attempts)
    attempts = tuple(
        Attempt(file, one.log) for file, one in zip(files, made.attempts, strict=True)
    )
    return replace(made, attempts=attempts, found=replace(made.found, attempts=files))


def _launched(results: Any, name: str) -> dict[str, Any]:
    """Return a result that was launched three times, once on a node that failed."""
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


def _with_lines(told: ConfigurationOutcome, folder: Path) -> ConfigurationOutcome:
    """Add the lines of the log around a failure to an outcome, as a session reads them
    for its reports."""
    place = told.excerpt
    found = (
        [*read_excerpts([(folder / place.log, place.line)]).values()] if place else []
    )
    return (
        with_fields(told, excerpt={**to_builtins(place), **found[0]._asdict()})
        if found
        else told
    )


def _with_history(
    told: ConfigurationOutcome, place: int, nights: int
) -> ConfigurationOutcome:
    """Return an outcome with nights before it; every ninth one has a change of
    level."""
    random = np.random.default_rng(1000 + place)
    expected = told.expected_seconds or math.nan
    changed = nights * 2 // 3 if place % 9 == 0 else nights
    times = expected * (
        1
        + 0.004 * random.standard_normal(nights)
        + 0.03 * (np.arange(nights) >= changed)
    )
    history = []
    for number, value in enumerate(times.tolist()):
        verdict, reason = (
            ("INVALID", "incomplete")
            if number % 31 == 30
            else ("PASS", "within-tolerance")
        )
        started = (NOW - timedelta(days=nights - number)).isoformat()
        history.append({
            "started": started, "verdict": verdict, "reason": reason, "expected_seconds": expected,
            "step_time_seconds": value if verdict == "PASS" else None, "log_difference": None, "job_id": str(number),
            "environment": ENVIRONMENT,
        })  # fmt: skip
    change = {
        "kind": "step", "stands": True, "started": (NOW - timedelta(days=nights - changed)).isoformat(),
        "night": changed, "difference": 0.031,
        "low": 0.026, "high": 0.036, "environment": {"driver": ["560.35.03", f"570 {HOSTILE}"]},
        "text": "3.1 % slower since then; what differs: driver",
        "acknowledged": {"reason": "new driver", "by": "ops", "expires": "2026-06-01"} if place % 2 else None,
    }  # fmt: skip
    changes = [change] if changed < nights else []
    return with_fields(told, history=history, changes=changes, environment=ENVIRONMENT)


if __name__ == "__main__":
    from pytest_llmbench.report.html import render

    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render(night(target.parent), NOW))
