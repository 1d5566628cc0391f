"""`llmbench summary`: tabulate runs with step time and TFLOP/s over a window."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

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
    *Parallelism.__struct_fields__,
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
    """Parse a window such as `11-44`. Raises ArgumentTypeError."""
    first, _, last = text.partition("-")
    are_numbers = first.isdecimal() and last.isdecimal()
    if not are_numbers or int(first) > int(last):
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
    if arguments.format == "csv":
        text = make_table(table_rows).to_csv(index=False).rstrip("\n")
    elif arguments.format == "json":
        text = make_table(table_rows).to_json(
            orient="records", date_format="iso", indent=2
        )
    else:
        text = format_table(table_rows)
    code = 0 if table_rows else 1
    return Output(text, code, stderr=format_skipped(ingested.ignored), redacted=True)


# --- the table ------------------------------------------------------------------------


def make_rows(
    ingested: IngestedRuns, catalog: Catalog, window: Window | None, now: datetime
) -> tuple[SummaryRow, ...]:
    """Build a row for each run, newest first, then the unreadable runs.

    Uses the baseline's window if `window` is None. All values are redacted.
    """
    rows = [_make_row(run, catalog, window, now) for run in ingested.runs]
    for entry in ingested.unreadable:
        rows.append(
            SummaryRow(
                run=entry.id,
                job_id="",
                launcher="",
                configuration="",
                started=None,
                status=f"Unreadable: {entry.text}",
                reason=str(entry.reason),
                because=entry.text,
            )
        )
    return tuple(SummaryRow(*map(redact_values, row)) for row in rows)


def make_table(table_rows: Sequence[SummaryRow]) -> pd.DataFrame:
    """Build a data frame with the columns COLUMNS, TEXTS and WHOLE_NUMBERS."""
    import pandas as pd

    unknown_facts = {**dict.fromkeys(TEXTS, ""), **dict.fromkeys(WHOLE_NUMBERS)}
    cells = []
    for row in table_rows:
        *values, facts = row
        # In the order of `unknown_facts`, whatever the order of the known facts.
        all_facts = {**unknown_facts, **facts}
        cells.append(
            list(map(formatting.escape_values, (*values, *all_facts.values())))
        )
    frame = pd.DataFrame(cells, columns=[*COLUMNS, *unknown_facts])
    # pandas would turn an integer column with gaps into floats.
    return frame.astype(dict.fromkeys(WHOLE_NUMBERS, "Int64"))


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
    attempts: list[str] = []
    drifts: list[str] = []
    for name, row in zip(names, table_rows, strict=True):
        if row.attempts:
            attempts.append(f"{name.strip()}: attempt {row.attempts}")
        if row.drift is not None:
            change = formatting.format_difference(1 + row.drift)
            drifts.append(
                f"{name.strip()}: drift: {change} from the first to the last step of {row.window}"
            )
    table = pd.DataFrame(columns).to_string(
        index=False, justify="right", max_colwidth=None
    )
    return "\n".join([table, *attempts, *drifts])


def _format_number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _format_window(row: SummaryRow) -> str:
    """Format the measured steps: `11-44`, `51-100 (last half)`, or `-` if unknown."""
    if row.window_from == "last-half":
        return f"{row.window} (last half)"
    return row.window or "-"


def format_skipped(ignored: Sequence[IgnoredFile]) -> str:
    """List the files that are not runs, one line for each reason; "" if there are none.

    Each line names only the first files.
    """
    if not ignored:
        return ""
    names_by_reason: dict[str, list[str]] = {}
    for file in ignored:
        reason = formatting.escape(file.reason)
        names_by_reason.setdefault(reason, []).append(formatting.escape(file.name))
    lines = [f"{formatting.count_noun(len(ignored), 'file')} skipped:"]
    for reason, names in names_by_reason.items():
        lines.append(f"{formatting.join_first(names)}: {reason}")
    return "\n  ".join(lines)


def _make_row(
    run: Run, catalog: Catalog, window: Window | None, now: datetime
) -> SummaryRow:
    """Build the row of a run, without numbers if no attempt can be measured."""
    from pytest_llmbench.runs.measure.measurement import choose_judged

    key, folder = run.identity.key, run.found
    baseline = _find_baseline(run, catalog, window)
    choice, _ = choose_judged(run, baseline.required, now)
    # The log of the measured attempt, else of the last attempt, else the run's folder.
    if choice:
        log = choice.attempt.files.log
    elif run.attempts:
        log = run.attempts[-1].files.log
    else:
        log = folder.folder
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
    """Add step time, TFLOP/s and window to a row; `window` is the requested window."""
    from pytest_llmbench.runs.measure.window import choose_window, compute_timing

    steps = choice.segment.steps
    # The window of a default baseline was chosen for the run: no document states it.
    documented_window = baseline.window if run.identity.key else None
    chosen, source = choose_window(choice.segment, documented_window, window)
    timing = compute_timing(steps, structs.replace(baseline, window=chosen))
    measured = timing.window
    time_mean, time_deviation = _compute_mean(measured, "seconds")
    tflops_mean, tflops_deviation = _compute_mean(measured, "tflops_per_gpu")
    return row._replace(
        steps=len(steps),
        time_mean_s=time_mean,
        time_std_s=time_deviation,
        tflops_per_gpu_mean=tflops_mean,
        tflops_per_gpu_std=tflops_deviation,
        attempts=_format_attempts(run, choice, baseline.steps),
        window=f"{chosen.first}-{chosen.last}",
        window_from=str(source),
        drift=_find_drift(measured, steps),
    )


def _find_drift(measured: Steps, steps: Steps) -> float | None:
    """Return the relative change of the step time over the window.

    `measured` are the steps in the window, `steps` all steps of the run. Returns None
    if the change is not significant or a step has no time.
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
    """Return the baseline of a run, or a default baseline if the run is unmatched.

    A default baseline only supplies the window and the number of steps for measuring
    the run. Its window is the requested `window`, else a window that fits the run.
    """
    from pytest_llmbench.core.baseline_records import USUAL_WINDOW
    from pytest_llmbench.runs.measure.attempts import choose_segment
    from pytest_llmbench.runs.measure.validity import (
        UNKNOWN_STEPS,
        count_expected_steps,
        make_default_baseline,
    )
    from pytest_llmbench.runs.measure.window import choose_window

    if run.identity.key is not None:
        baseline, *_ = catalog.baselines[run.identity.key]
        return baseline
    # Choose the segment to measure first, because its length determines the window.
    default_window = window or USUAL_WINDOW
    choice = choose_segment(run.attempts, default_window, UNKNOWN_STEPS)
    if choice is None:
        return make_default_baseline(run, default_window, UNKNOWN_STEPS)
    chosen_window, _ = choose_window(choice.segment, None, window)
    return make_default_baseline(run, chosen_window, count_expected_steps(choice))


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
    """Format the attempts of a run, or "" for a single attempt.

    `total` is the number of steps of a complete run.
    """
    from pytest_llmbench.report.job_text import (
        describe_log_attempt,
        format_log_attempts,
    )
    from pytest_llmbench.runs.measure.attempts import list_attempts

    attempts = [
        describe_log_attempt(summary, Path())
        for summary in list_attempts(run, choice, total)
    ]
    return format_log_attempts(attempts) or ""


def _compute_mean(measured: Steps, name: str) -> tuple[float | None, float | None]:
    """Return mean and standard deviation of the printed values of a field of Steps.

    Both are None if no value is printed.
    """
    import numpy as np

    from pytest_llmbench.core.robust import compute_mean
    from pytest_llmbench.runs.measure.run_metrics import compute_spread

    values = getattr(measured, name)
    is_printed = np.isfinite(values) & (values > 0)
    printed = values[is_printed]
    if not len(printed):
        return None, None
    # A value may be the mean of several steps, which weights it.
    mean = compute_mean(printed, measured.mean_of[is_printed].tolist())
    return mean, compute_spread(printed)


# --- facts of a run -------------------------------------------------------------------


def collect_facts(run: Run, choice: Choice | None, catalog: Catalog) -> dict[str, Any]:
    """Collect the known facts of a run, by keys of a baseline file.

    Numbers come from the log, else from names and metadata, else from the
    configuration. Texts come from the configuration, else from names and metadata.
    """
    key = run.identity.key
    values: dict[str, Any] = {}
    framework, dialect = "", ""
    if key:
        baseline, *_ = catalog.baselines[key]
        values = _read_configuration(baseline.configuration)
        framework = _find_framework(baseline, catalog)
        dialect = baseline.dialect
    log = None
    if choice:
        log = choice.attempt.log
    elif run.attempts:
        log = run.attempts[-1].log
    if log and log.dialect:
        dialect = log.dialect
    for name, value in _read_names(run).items():
        # For texts, the configuration takes precedence over names and metadata.
        if name not in TEXTS or name not in values:
            values[name] = value
    if choice:
        values |= _read_log(choice)
    values |= {"framework": framework or dialect, "dialect": dialect}
    return {name: value for name, value in values.items() if value is not None}


def _find_framework(baseline: Baseline, catalog: Catalog) -> str:
    """Return the framework of the first recipe with a baseline, or ""."""
    for recipe in catalog.recipes:
        if baseline in recipe.baselines:
            return recipe.framework or ""
    return ""


def _read_configuration(configuration: Configuration) -> dict[str, Any]:
    """Return the facts of a configuration by column."""
    key = configuration.key
    key_names = ("recipe", "size", "release", "gpu", "dtype", "gpus")
    return {
        **{name: getattr(key, name) for name in key_names},
        **structs.asdict(configuration.parallelism),
        "global_batch_size": configuration.global_batch_size,
        "micro_batch_size": configuration.micro_batch_size,
        "sequence_length": configuration.architecture.sequence_length,
    }


def _read_names(run: Run) -> dict[str, Any]:
    """Collect the facts that names and metadata state without contradiction."""
    values_by_field: dict[str, set[str]] = {}
    for hint in run.found.hints:
        values_by_field.setdefault(hint.field, set()).add(hint.value)
    agreed = {
        name: values.pop()
        for name, values in values_by_field.items()
        if len(values) == 1
    }
    texts = {name: agreed[name] for name in TEXTS if name in agreed}
    numbers = {
        name: int(agreed[name])
        for name in WHOLE_NUMBERS
        if agreed.get(name, "").isdecimal()
    }
    return {**texts, **numbers}


def _read_log(choice: Choice) -> dict[str, Any]:
    """Return the facts that the log prints: number of steps and last batch size."""
    import numpy as np

    facts: dict[str, Any] = {"total_steps": choice.segment.total_steps}
    batch_sizes = choice.segment.steps.global_batch_size
    printed = batch_sizes[np.isfinite(batch_sizes)]
    if len(printed):
        facts["global_batch_size"] = int(printed[-1])
    return facts
