"""Check that the facts of a baseline file fit each other.

Single keys are checked by the schema.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise

from pytest_llmbench.baseline.schema import FORMULA_NEEDS, NO_PEAK, SHAPE
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.flops import NO_FORMULA
from pytest_llmbench.core.gpus import find_other_gpu, find_peak
from pytest_llmbench.core.job_records import LAUNCHERS
from pytest_llmbench.core.yamlfile import Report, YamlMapping
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.dialect_table import (
    DIALECTS,
    GROUPS,
    REGEX,
    compile_pattern,
    find_groups,
    find_time_groups,
)

ROUNDED = 5e-4
"""Largest relative error of a value rounded to four digits."""

MOST_DEVIATIONS = 3.0
"""Largest distance of trimmed mean and mean, in standard deviations.

The limit also holds for records that are means of several steps.
"""

CLOCK_DIFFERENCE = timedelta(days=1)
"""Largest difference between the clocks of two machines."""


NOTHING = YamlMapping(0, {}, {})
"""Replaces a mapping that the file omits."""


def check_file(entry: YamlMapping, ids: Sequence[str], report: Report) -> None:
    """Report all contradictions within a file.

    `ids` are the ids of its configurations, in order.
    """
    _check_log(entry, report)
    _check_window(entry, report)
    _check_peaks(entry, report)
    _check_models(entry, report)
    first_lines: dict[str, int] = {}
    for row_id, row in zip(ids, entry["configurations"], strict=True):
        _check_configuration(entry, row, report)
        if row_id in first_lines:
            duplicate = f"found {row_id} again (first in line {first_lines[row_id]}), expected it once"
            report(
                row.line,
                f"{duplicate}: distinguish the two by task, scaling or variant",
            )
        else:
            first_lines[row_id] = row.line
    _check_errata(entry, tuple(first_lines), report)
    launch = entry.get("launch")
    if launch is not None:
        _check_launch(launch, report)
        checkpoint = launch.get("checkpoint") or NOTHING
        _check_checkpoint(checkpoint, entry["models"].values, report)


def _check_log(entry: YamlMapping, report: Report) -> None:
    """Report a missing or superfluous log definition, and a bad pattern.

    Only a custom dialect (`dialect: regex`) needs a definition.
    """
    log = entry.get("log")
    if entry["dialect"] != REGEX:
        if log is not None:
            finding = (
                f"found a dialect definition in a file with dialect: {entry['dialect']}"
            )
            report(entry.lines["log"], f"{finding}, which only dialect: {REGEX} has")
    elif log is None:
        report(
            entry.lines["dialect"],
            f"found dialect: {REGEX} and no 'log', expected a 'log' mapping that describes the lines of the log",
        )
    else:
        for problem in _find_pattern_problems(log["pattern"]):
            report(log.lines["pattern"], problem)


def _find_pattern_problems(pattern: str) -> Iterator[str]:
    """Yield the problems of a log pattern: invalid, too general, or bad groups."""
    try:
        matches_empty_text = compile_pattern(pattern).search(b"") is not None
    except ValueError as error:
        yield str(error)
        return
    names = [group.name for group in find_groups(pattern)]
    # Such a pattern would find a step in every line.
    if matches_empty_text:
        yield "found a pattern that matches the empty text, expected one that matches the line of a step only"
    # Any time group suffices, and `seconds` is the usual one.
    required = ["step"] if find_time_groups(names) else ["step", "seconds"]
    for name in required:
        if name not in names:
            yield f"found a pattern without the group {name}, expected (?P<{name}>...) in it"
    for name in dict.fromkeys(names):
        if name not in GROUPS:
            hint = did_you_mean(name, GROUPS)
            yield f"found the group {name} in the pattern, expected one of {', '.join(GROUPS)}{hint}"
        elif names.count(name) > 1:
            yield f"found the group {name} {names.count(name)} times in the pattern, expected it once"


def _check_models(entry: YamlMapping, report: Report) -> None:
    """Report unused models, and sizes that a model's formula needs but lacks."""
    models = entry["models"]
    used_sizes = {row["size"] for row in entry["configurations"]}
    for size, model in models.values.items():
        line = models.lines[size]
        if size not in used_sizes:
            report(
                line,
                f"found model {size!r} that no configuration uses, expected one of {', '.join(sorted(used_sizes))}",
            )
        for needed_size in _list_needed_sizes(model):
            if model.get(needed_size) is None:
                report(
                    line,
                    f"found no {needed_size!r} of {size}, expected it for formula {model['formula']}",
                )


def _list_needed_sizes(model: YamlMapping) -> tuple[str, ...]:
    """Return the sizes that the formula of a model needs."""
    # "llama:3" is the formula llama, rounded to 3 digits.
    formula, _, _ = model["formula"].partition(":")
    if formula == NO_FORMULA:
        return ()
    return ("hidden_size", "vocabulary_size", *FORMULA_NEEDS[formula])


def _check_window(entry: YamlMapping, report: Report) -> None:
    """Report a window that is reversed or exceeds the steps of a run."""
    # Runs begin with step 0 or 1, depending on the framework.
    dialect_name = entry["dialect"]
    if dialect_name == REGEX:
        log = entry.get("log") or NOTHING
        run_start = log.get("first_step", 0)
    else:
        definition = load_definitions().get(dialect_name)
        run_start = (definition or DIALECTS[dialect_name]).first_step
    run_end = run_start + entry["steps"] - 1
    window = entry["window"]
    first, last = window["first"], window["last"]
    if first > last:
        report(
            window.line,
            f"found a window from step {first} to {last}, expected first <= last",
        )
    elif first < run_start or last > run_end:
        report(
            window.line,
            f"found a window from step {first} to {last}, expected it within {run_start} to {run_end}",
        )


def _check_peaks(entry: YamlMapping, report: Report) -> None:
    """Report a peak that belongs to another GPU, because MFU would be wrong."""
    for gpu, peaks in entry["peak_tflops"].values.items():
        for dtype, text in peaks.values.items():
            tflops = math.nan if text == NO_PEAK else float(text)
            other_gpu = find_other_gpu(gpu, dtype, tflops)
            if other_gpu:
                report(
                    peaks.lines[dtype],
                    f"found a peak of {text} of {gpu}, expected {find_peak(gpu, dtype):g}: {text} is the peak of {other_gpu}",
                )


def _check_configuration(entry: YamlMapping, row: YamlMapping, report: Report) -> None:
    """Report contradictions within one row, and with the models and peaks."""
    size, gpu, models = row["size"], row["gpu"], entry["models"]
    model_names = ("models", models.values)
    _check_name(row.lines["size"], "size", size, model_names, report)
    _check_shape(models.get(size), row, report)
    peaks = entry["peak_tflops"].values
    gpu_names = ("peak_tflops", peaks)
    _check_name(row.lines["gpu"], "gpu", gpu, gpu_names, report)
    if gpu in peaks:
        dtype_names = (f"peak_tflops of {gpu}", peaks[gpu].values)
        _check_name(row.lines["dtype"], "dtype", row["dtype"], dtype_names, report)
    _check_step_time_cells(row, report)
    recorded = row.get("recorded")
    if recorded is not None:
        _check_runs(recorded, report)
        _check_values(recorded, entry["window"]["statistic"], report)
        _check_dates(recorded, report)


def _check_shape(model: YamlMapping | None, row: YamlMapping, report: Report) -> None:
    """Report missing sizes for a FLOPs formula, and `logged_tflop` next to a formula.

    Also reports 0 GPUs, which only drafted rows without a formula may state.
    """
    has_formula = model is not None and model["formula"] != NO_FORMULA
    missing = [repr(name) for name in SHAPE if name not in row.values]
    if has_formula and missing:
        expected = "that key" if len(missing) == 1 else "them"
        report(
            row.line,
            f"found no {', '.join(missing)}, expected {expected} for counting FLOPs",
        )
    # Only drafts state how to match runs whose names identify no configuration.
    is_draft = row.get("match") is not None
    if not row["gpus"] and (has_formula or not is_draft):
        report(
            row.lines["gpus"],
            "found 0 GPUs, expected their number: only drafted rows without a formula may omit it",
        )
    if has_formula and "logged_tflop" in row.values:
        line = row.lines["logged_tflop"]
        report(
            line,
            f"found 'logged_tflop' of a counted model, expected it with formula: {NO_FORMULA} only",
        )


def _check_step_time_cells(row: YamlMapping, report: Report) -> None:
    """Report cells from which no step time follows, printed or derived."""
    cells = row.get("cells")
    if cells is None or "step_time" in cells.values:
        return
    step_seconds, _ = derive_step_time(row)
    if math.isnan(step_seconds):
        expected = "step_time, tokens_per_second_per_gpu with gbs and sequence_length, or tflops_per_gpu with logged_tflop"
        report(
            cells.line,
            f"found cells that determine no step time, expected {expected}",
        )


def count_decimals(text: str) -> int:
    """Return the number of digits after the decimal point."""
    _, _, decimals = text.partition(".")
    return len(decimals)


def derive_step_time(row: YamlMapping) -> tuple[float, float]:
    """Derive the step time of a configuration from its printed throughput.

    Returns the step time and one unit in its last place, in seconds; (NaN, 0) if the
    throughput does not determine it.

    The step time is logged_tflop / tflops_per_gpu if the work of a step is known,
    otherwise gbs * sequence_length / gpus / tokens_per_second_per_gpu.
    """
    cells = row["cells"]
    # A GPU's share of the tokens of one sample, and of the work of one step.
    gpus = row["gpus"] or math.nan  # 0 means unknown
    sample_tokens = row.get("sequence_length", math.nan) / gpus
    step_tokens = row.get("gbs", math.nan) * sample_tokens
    step_tflop = row.get("logged_tflop", math.nan)
    work_by_rate = {
        "tflops_per_gpu": step_tflop,
        "tokens_per_second_per_gpu": step_tokens,
    }
    for name, work in work_by_rate.items():
        if name not in cells.values or math.isnan(work):
            continue
        rate = float(cells[name])
        unit = 10.0 ** -count_decimals(cells[name])
        # Tokens/s that are a whole number of samples/s of all GPUs were rounded to
        # whole samples, so the unit is one sample per second.
        if name == "tokens_per_second_per_gpu" and (rate / sample_tokens).is_integer():
            unit = max(unit, sample_tokens)
        step_seconds = work / rate
        return step_seconds, step_seconds * unit / rate
    return math.nan, 0.0


def _check_name(
    line: int, key: str, value: str, source: tuple[str, Collection[str]], report: Report
) -> None:
    """Report the value of `key` unless it is one of the names in `source`.

    `source` is the section that defines the names, such as `models`, and the names.
    """
    section, names = source
    if value not in names:
        expected = f"expected a name under {section}: {', '.join(names)}{did_you_mean(value, names)}"
        report(line, f"found {key} {value!r}, {expected}")


# --- recorded values ------------------------------------------------------------------


def _check_runs(recorded: YamlMapping, report: Report) -> None:
    """Report lists and counts that do not fit the number of runs."""
    runs, seconds = recorded["runs"], recorded["run_seconds"]
    if runs != len(seconds):
        numbers = f"{runs} runs and {len(seconds)} run_seconds"
        report(recorded.line, f"found {numbers}, expected one number for each run")
    if len(recorded["log_sha256"]) > runs:
        numbers = f"{runs} runs and {len(recorded['log_sha256'])} log_sha256"
        report(
            recorded.lines["log_sha256"],
            f"found {numbers}, expected at most one for each run",
        )
    if recorded.get("groups", 1) > runs:
        report(
            recorded.lines["groups"],
            f"found {recorded['groups']} groups of {runs} runs, expected at most {runs}",
        )


def _check_values(recorded: YamlMapping, statistic: str, report: Report) -> None:
    """Report an expected value that is not the mean of its runs.

    Also reports a mean that is impossible for the standard deviation of the steps.
    """
    trimmed = recorded["trimmed_mean_seconds"]
    mean = recorded["mean_seconds"]
    seconds = recorded["run_seconds"]
    mean_of_runs = sum(seconds) / len(seconds)
    # If the mean decides, run_seconds may contain the means of the runs.
    candidates = (trimmed, mean) if statistic == "mean" else (trimmed,)
    distance = min(abs(value - mean_of_runs) for value in candidates)
    # Editing only the expected value would move the limit without leaving a trace.
    if distance > ROUNDED * mean_of_runs:
        means = f"trimmed_mean_seconds {trimmed:.10g} but the mean of run_seconds is {mean_of_runs:.10g}"
        report(
            recorded.lines["trimmed_mean_seconds"],
            f"found {means}, expected that mean: record the runs again",
        )
    deviation = recorded["standard_deviation_seconds"]
    # The mean shows stalls that the trimmed mean ignores, and decides in older files,
    # so it is checked too.
    rounding = 2 * ROUNDED * trimmed  # both means are rounded
    if abs(mean - trimmed) > MOST_DEVIATIONS * deviation + rounding:
        means = f"mean_seconds {mean:.10g} with trimmed_mean_seconds {trimmed:.10g}"
        expected = f"a distance that a standard deviation of {deviation:.6g} s allows"
        report(
            recorded.lines["mean_seconds"],
            f"found {means}, expected {expected}: record the runs again",
        )


def _check_dates(recorded: YamlMapping, report: Report) -> None:
    """Report dates in the wrong order.

    Replaced values must be ordered oldest first, and no run may start after its
    recording. Clocks may differ by a day.
    """
    for older, newer in pairwise([*recorded.get("earlier", ()), recorded]):
        before, after = older["date"], newer["date"]
        if _parse_day(before) > _parse_day(after) + CLOCK_DIFFERENCE:
            report(
                older.lines["date"],
                f"found {before} before {after}, expected the replaced values oldest first",
            )
    newest, recording_date = recorded.get("newest_run"), recorded["date"]
    if newest is None:
        return
    if _parse_day(newest) > _parse_day(recording_date) + CLOCK_DIFFERENCE:
        report(
            recorded.lines["newest_run"],
            f"found a newest run of {newest} recorded on {recording_date}",
        )


def _parse_day(text: str) -> date:
    """Return the day of an ISO date or time."""
    return datetime.fromisoformat(text).date()


def _check_errata(entry: YamlMapping, ids: Sequence[str], report: Report) -> None:
    """Report incomplete errata, unknown configurations, and cells listed twice."""
    listed_cells = set()
    for erratum in entry.get("errata", ()):
        # An erratum is about one cell of a table, or about the text of the document.
        stated_keys = {"cell", "cells", "printed", "corrected"} & set(erratum.lines)
        if stated_keys not in ({"cell", "cells"}, {"printed", "corrected"}):
            names = " and ".join(sorted(stated_keys)) or "neither of these pairs"
            report(
                erratum.line,
                f"found {names}, expected either cell and cells, or printed and corrected",
            )
        cell = erratum.get("cell")
        for row_id, line in erratum.get("cells", NOTHING).lines.items():
            if row_id not in ids:
                report(
                    line,
                    f"found configuration {row_id!r}, expected one of this file{did_you_mean(row_id, ids)}",
                )
            if (row_id, cell) in listed_cells:
                report(
                    line,
                    f"found {cell} of {row_id} again, expected one erratum per cell",
                )
            listed_cells.add((row_id, cell))


def _check_launch(launch: YamlMapping, report: Report) -> None:
    """Report unknown commands and launchers, and profiling that ends too early."""
    commands = launch["commands"]
    command_names = ("commands", commands.values)
    _check_name(launch.lines["kind"], "kind", launch["kind"], command_names, report)
    for name, command in commands.values.items():
        if command.get("via") is None and name not in LAUNCHERS:
            expected = f"expected via: with one of {', '.join(LAUNCHERS)}"
            report(
                commands.lines[name],
                f"found no 'via' in the command {name!r}, {expected}",
            )
    profiling = launch.get("profiling") or NOTHING
    first, last = profiling.get("default_start"), profiling.get("default_stop")
    has_both = first is not None and last is not None
    if has_both and first >= last:
        report(
            profiling.lines["default_start"],
            f"found default steps {first} to {last}, expected start < stop",
        )


def _check_checkpoint(
    checkpoint: YamlMapping, models: Collection[str], report: Report
) -> None:
    """Report unknown model sizes, and ranges of GPUs in the wrong order.

    `models` are the sizes that the file defines.
    """
    for key in ("disk_gb", "save_gpus", "load_gpus"):
        table = checkpoint.get(key) or NOTHING
        for size, value in table.values.items():
            _check_name(table.lines[size], "size", size, ("models", models), report)
            # A tuple is a range of GPUs; `disk_gb` states one number.
            if isinstance(value, tuple) and list(value) != sorted(value):
                report(
                    table.lines[size],
                    f"found {list(value)} GPUs, expected the smallest number first",
                )
