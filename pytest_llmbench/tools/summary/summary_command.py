"""`llmbench summary`: tabulate runs with step time and TFLOP/s over a window."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.core import formatting
from pytest_llmbench.core.baseline_records import Parallelism, Window
from pytest_llmbench.core.codes import Reason
from pytest_llmbench.tools.command_line import (
    Output,
    Subparsers,
    add_log_arguments,
    redact_values,
    rename_flags,
    resolve_settings,
)

if TYPE_CHECKING:
    import pandas as pd

    from pytest_llmbench.core.baseline_records import Baseline, Configuration
    from pytest_llmbench.core.log_records import Steps
    from pytest_llmbench.core.run_records import IgnoredFile, Problem, Run
    from pytest_llmbench.runs.measure.attempts import Choice
    from pytest_llmbench.session.catalog import Catalog
    from pytest_llmbench.session.collect_runs import IngestedRuns

TEXTS = ("framework", "dialect", "recipe", "size", "release", "gpu", "dtype")
"""The text facts of a run, by keys of a baseline file.

The framework is the recipe's framework, else the log's dialect.
"""

WHOLE_NUMBERS = (
    *("gpus", "global_batch_size", "micro_batch_size", "sequence_length"),
    "total_steps",  # as the log prints it
    *(field.name for field in dataclasses.fields(Parallelism)),
)
"""The integer facts of a run, by keys of a baseline file."""


class SummaryRow(NamedTuple):
    """A run with its step time (s) and logged TFLOP/s per GPU over the window.

    Values that the log does not print are None.
    """

    run: str
    job_id: str
    launcher: str
    configuration: str
    started: datetime | None
    status: str
    """Success, or the verdict's reason in words."""
    steps: int = 0
    time_mean_s: float | None = None
    time_std_s: float | None = None
    tflops_per_gpu_mean: float | None = None
    tflops_per_gpu_std: float | None = None
    log: str | None = None
    attempts: str = ""
    """The attempts of its job and the measured attempt; "" for a single attempt."""
    reason: str = ""
    """The code of the reason; "" for Success."""
    because: str = ""
    """The text of the reason."""
    window: str = ""
    """The measured steps (`11-44`)."""
    window_from: str = ""
    """The source of the window, such as `last-half`."""
    drift: float | None = None
    """Relative change of the step time over the window, None unless significant."""
    facts: Mapping[str, Any] = MappingProxyType({})
    """The known facts by keys of TEXTS and WHOLE_NUMBERS."""


COLUMNS = SummaryRow._fields[:-1]
"""The columns of CSV and JSON, before TEXTS and WHOLE_NUMBERS."""


def add(commands: Subparsers) -> None:
    """Add the parser of `llmbench summary`."""
    parser = commands.add_parser(
        "summary",
        help="List runs with status, step time and TFLOP/s, one line for each.",
    )
    add_log_arguments(parser)
    parser.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="Output format (default: table).",
    )
    parser.add_argument(
        "--window",
        metavar="FIRST-LAST",
        type=_parse_window,
        help="Steps to average (default: the baseline's window; without a baseline 11-44 for runs of up to 100 steps, "
        "else the last half).",
    )
    parser.set_defaults(command=_run)


def _parse_window(text: str) -> Window:
    first, dash, last = text.partition("-")
    if not (
        dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)
    ):
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected two step numbers such as 11-44"
        )
    return Window(int(first), int(last))


def _run(arguments: argparse.Namespace) -> Output:
    """Run `llmbench summary`. The exit code is 1 without a run."""
    from pytest_llmbench.session.catalog import add_tables, load
    from pytest_llmbench.session.collect_runs import ingest

    with rename_flags():
        settings = resolve_settings(arguments)
        catalog = load(settings)
    now = datetime.now(UTC)
    ingested = ingest(settings, catalog, now)
    catalog = add_tables(catalog, ingested.tables, settings)
    table_rows = make_rows(ingested, catalog, arguments.window, now)
    code, skipped = 0 if table_rows else 1, format_skipped(ingested.ignored)
    if arguments.format == "csv":
        text = make_table(table_rows).to_csv(index=False).rstrip("\n")
    elif arguments.format == "json":
        text = make_table(table_rows).to_json(
            orient="records", date_format="iso", indent=2
        )
    else:
        text = format_table(table_rows)
    return Output(text, code, skipped, redacted=True)


# --- the table ------------------------------------------------------------------------


def make_rows(
    ingested: IngestedRuns, catalog: Catalog, window: Window | None, now: datetime
) -> tuple[SummaryRow, ...]:
    """Build a row for each run, newest first, then the unreadable runs.

    Uses the baseline's window if `window` is None. All values are redacted.
    """
    unreadable = (
        SummaryRow(
            entry.id,
            "",
            "",
            "",
            None,
            f"Unreadable: {entry.text}",
            reason=str(entry.reason),
            because=entry.text,
        )
        for entry in ingested.unreadable
    )
    rows = (
        *(_make_row(run, catalog, window, now) for run in ingested.runs),
        *unreadable,
    )
    return tuple(SummaryRow(*map(redact_values, row)) for row in rows)


def make_table(table_rows: Sequence[SummaryRow]) -> pd.DataFrame:
    """Build a data frame with the columns COLUMNS, TEXTS and WHOLE_NUMBERS."""
    import pandas as pd

    unknown = {**dict.fromkeys(TEXTS, ""), **dict.fromkeys(WHOLE_NUMBERS)}
    cells = [
        list(
            map(
                formatting.escape_values,
                (*row[:-1], *{**unknown, **row.facts}.values()),
            )
        )
        for row in table_rows
    ]
    frame = pd.DataFrame(cells, columns=[*COLUMNS, *unknown])
    return frame.astype(
        dict.fromkeys(WHOLE_NUMBERS, "Int64")
    )  # pandas would turn an integer column with gaps into floats


def format_table(table_rows: Sequence[SummaryRow]) -> str:
    """Format rows as a table for a terminal.

    A row is named after its configuration, or after its run if unmatched.
    """
    if not table_rows:
        return "no training run found"
    import pandas as pd

    names = [row.configuration or formatting.escape(row.run) for row in table_rows]
    width = max(map(len, names))
    columns = {
        "Run".ljust(width): [name.ljust(width) for name in names],
        "Job": [row.job_id for row in table_rows],
        "Status": [row.status for row in table_rows],
        "Time Mean (s)": [_format_number(row.time_mean_s, 3) for row in table_rows],
        "Time Std (s)": [_format_number(row.time_std_s, 3) for row in table_rows],
        "TFLOPS Mean": [
            _format_number(row.tflops_per_gpu_mean, 2) for row in table_rows
        ],
        "TFLOPS Std": [_format_number(row.tflops_per_gpu_std, 2) for row in table_rows],
        "Window": [_format_window(row) for row in table_rows],
        "Steps": [
            _format_number(row.facts.get("total_steps") or row.steps or None)
            for row in table_rows
        ],
        "GPUs": [_format_number(row.facts.get("gpus")) for row in table_rows],
        "GBS": [
            _format_number(row.facts.get("global_batch_size")) for row in table_rows
        ],
        "Framework": [row.facts.get("framework") or "-" for row in table_rows],
    }
    attempts = [
        f"{name.strip()}: attempt {row.attempts}"
        for name, row in zip(names, table_rows, strict=True)
        if row.attempts
    ]
    drifts = [
        f"{name.strip()}: drift: {formatting.format_difference(1 + row.drift)} from the first to the last step of "
        f"{row.window}"
        for name, row in zip(names, table_rows, strict=True)
        if row.drift is not None
    ]
    table = pd.DataFrame(columns).to_string(
        index=False, justify="right", max_colwidth=None
    )
    return "\n".join([table, *attempts, *drifts])


def _format_number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _format_window(row: SummaryRow) -> str:
    return (
        f"{row.window} (last half)"
        if row.window_from == "last-half"
        else row.window or "-"
    )


def format_skipped(ignored: Sequence[IgnoredFile]) -> str:
    """List the files that are not runs, one line for each reason; "" if there are none.

    Each line names only the first files.
    """
    by_reason: dict[str, list[str]] = {}
    for file in ignored:
        by_reason.setdefault(formatting.escape(file.reason), []).append(
            formatting.escape(file.name)
        )
    lines = [
        f"{formatting.join_first(names)}: {reason}"
        for reason, names in by_reason.items()
    ]
    return (
        "\n  ".join([f"{formatting.count_noun(len(ignored), 'file')} skipped:", *lines])
        if ignored
        else ""
    )


def _make_row(
    run: Run, catalog: Catalog, window: Window | None, now: datetime
) -> SummaryRow:
    """Build the row of a run."""
    from pytest_llmbench.runs.measure.measurement import choose_judged

    key, folder = run.identity.key, run.found
    baseline = _find_baseline(run, catalog, window)
    choice, _ = choose_judged(run, baseline.required, now)
    log = (
        choice.attempt.files.log
        if choice
        else run.attempts[-1].files.log
        if run.attempts
        else folder.folder
    )
    problem = _find_problem(run, baseline, now)
    row = SummaryRow(
        run=run.id,
        job_id=folder.job_id,
        launcher=folder.launcher,
        configuration=key.id if key else "",
        started=run.started,
        status=_format_status(problem),
        log=str(log),
        reason=str(problem.reason) if problem else "",
        because=problem.text if problem else "",
        facts=collect_facts(run, choice, catalog),
    )
    return row if choice is None else _add_numbers(row, run, choice, baseline, window)


def _add_numbers(
    row: SummaryRow, run: Run, choice: Choice, baseline: Baseline, window: Window | None
) -> SummaryRow:
    """Add step time, TFLOP/s and window to a row."""
    from pytest_llmbench.runs.measure.window import choose_window, compute_timing

    steps = choice.segment.steps
    chosen, source = choose_window(
        choice.segment, baseline.window if run.identity.key else None, window
    )
    measured = compute_timing(
        steps, dataclasses.replace(baseline, window=chosen)
    ).window
    time = _compute_mean(measured, "seconds")
    tflops = _compute_mean(measured, "tflops_per_gpu")
    return row._replace(
        steps=len(steps),
        time_mean_s=time[0],
        time_std_s=time[1],
        tflops_per_gpu_mean=tflops[0],
        tflops_per_gpu_std=tflops[1],
        attempts=_format_attempts(run, choice, baseline.steps),
        window=f"{chosen.first}-{chosen.last}",
        window_from=str(source),
        drift=_find_drift(measured, steps),
    )


def _find_drift(measured: Steps, steps: Steps) -> float | None:
    """Return the relative change of the step time over the window.

    Returns None if the change is not significant or a step has no time.
    """
    import numpy as np

    from pytest_llmbench.judge.shape import find_slope
    from pytest_llmbench.runs.measure.moving_mean import detect_moving_mean

    seconds = measured.seconds
    if not (np.isfinite(seconds) & (seconds > 0)).all():
        return None
    slope = find_slope(seconds, detect_moving_mean(steps))
    return slope.change if slope else None


def _find_baseline(run: Run, catalog: Catalog, window: Window | None) -> Baseline:
    """Return the baseline of a run, or a default baseline if the run is unmatched."""
    from pytest_llmbench.core.baseline_records import USUAL_WINDOW
    from pytest_llmbench.runs.measure.attempts import choose_segment
    from pytest_llmbench.runs.measure.validity import (
        UNKNOWN_STEPS,
        count_expected_steps,
        make_default_baseline,
    )
    from pytest_llmbench.runs.measure.window import choose_window

    if run.identity.key is not None:
        return catalog.baselines[run.identity.key][0]
    default = window or USUAL_WINDOW
    choice = choose_segment(run.attempts, default, UNKNOWN_STEPS)
    if choice is None:
        return make_default_baseline(run, default, UNKNOWN_STEPS)
    return make_default_baseline(
        run,
        choose_window(choice.segment, None, window)[0],
        count_expected_steps(choice),
    )


def _find_problem(run: Run, baseline: Baseline, now: datetime) -> Problem | None:
    """Return the reason that pytest would not judge a run, or None."""
    from pytest_llmbench.judge.run_selection import find_unusable
    from pytest_llmbench.runs.measure.measurement import measure

    measured = measure(run, baseline, now, step_time_only=True)
    return measured.excluded or find_unusable(measured)


def _format_status(problem: Problem | None) -> str:
    """Return `Success`, or the reason not to use the numbers of a run."""
    if problem is None:
        return "Success"
    if problem.reason is Reason.UNREADABLE:
        return f"Unreadable: {problem.text}"
    return problem.reason.replace("-", " ").capitalize()


def _format_attempts(run: Run, choice: Choice, total: int) -> str:
    """Format the attempts of a run, or "" for a single attempt."""
    from pytest_llmbench.report.job_text import (
        describe_log_attempt,
        format_log_attempts,
    )
    from pytest_llmbench.runs.measure.attempts import list_attempts

    summaries = list_attempts(run, choice, total)
    return (
        format_log_attempts(
            [describe_log_attempt(attempt, Path()) for attempt in summaries]
        )
        or ""
    )


def _compute_mean(measured: Steps, name: str) -> tuple[float | None, float | None]:
    """Return mean and standard deviation of the printed values; None without values."""
    import numpy as np

    from pytest_llmbench.core.robust import compute_mean
    from pytest_llmbench.runs.measure.run_metrics import compute_spread

    values = getattr(measured, name)
    printed = np.isfinite(values) & (values > 0)
    present = values[printed]
    return (
        (
            compute_mean(present, measured.mean_of[printed].tolist()),
            compute_spread(present),
        )
        if len(present)
        else (None, None)
    )


# --- facts of a run -------------------------------------------------------------------


def collect_facts(run: Run, choice: Choice | None, catalog: Catalog) -> dict[str, Any]:
    """Collect the known facts of a run, by keys of a baseline file.

    Numbers come from the log, else from names and metadata, else from the
    configuration. Texts come from the configuration, else from names and metadata.
    """
    key = run.identity.key
    chosen = catalog.baselines[key][0] if key else None
    log = (
        choice.attempt.log if choice else run.attempts[-1].log if run.attempts else None
    )
    dialect = (log.dialect if log else None) or (chosen.dialect if chosen else "")
    recipe = next(
        (
            candidate
            for candidate in catalog.recipes
            if chosen and chosen in candidate.baselines
        ),
        None,
    )
    values = _read_configuration(chosen.configuration) if chosen else {}
    values |= {
        name: value
        for name, value in _read_names(run).items()
        if name not in TEXTS or name not in values
    }
    values |= _read_log(choice) if choice else {}
    values |= {
        "framework": (recipe.framework if recipe else "") or dialect,
        "dialect": dialect,
    }
    return {name: value for name, value in values.items() if value is not None}


def _read_configuration(configuration: Configuration) -> dict[str, Any]:
    """Return the facts of a configuration by column."""
    key = configuration.key
    return {
        **{
            name: getattr(key, name)
            for name in ("recipe", "size", "release", "gpu", "dtype", "gpus")
        },
        **dataclasses.asdict(configuration.parallelism),
        "global_batch_size": configuration.global_batch_size,
        "micro_batch_size": configuration.micro_batch_size,
        "sequence_length": configuration.architecture.sequence_length,
    }


def _read_names(run: Run) -> dict[str, Any]:
    """Collect the facts that names and metadata state without contradiction."""
    values_of: dict[str, set[str]] = {}
    for hint in run.found.hints:
        values_of.setdefault(hint.field, set()).add(hint.value)
    agreed = {
        name: values.pop() for name, values in values_of.items() if len(values) == 1
    }
    numbers = {
        name: int(agreed[name])
        for name in WHOLE_NUMBERS
        if agreed.get(name, "").isdecimal()
    }
    return {**{name: agreed[name] for name in TEXTS if name in agreed}, **numbers}


def _read_log(choice: Choice) -> dict[str, Any]:
    import numpy as np

    printed = choice.segment.steps.global_batch_size
    printed = printed[np.isfinite(printed)]
    batch = {"global_batch_size": int(printed[-1])} if len(printed) else {}
    return {**batch, "total_steps": choice.segment.total_steps}
