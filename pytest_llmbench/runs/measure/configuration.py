"""Check that a run has the configuration of its baseline.

Compares the facts in names and metadata, the GPUs, precision and model that the log
prints, and the run's batches, samples, tokens and rates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.core.codes import NoteCode, Observed, Reason
from pytest_llmbench.core.gpus import (
    READ_LATER,
    UNKNOWN,
    find_gpu_by_peak,
    find_largest_memory,
    is_near,
    list_peaks,
    read_gpu_type,
)
from pytest_llmbench.core.log_records import Segment, StatedField, Statement, Steps
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.rounding import find_last_unit, refine_units
from pytest_llmbench.core.run_records import Note, Problem, Run
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.training import is_rewarded
from pytest_llmbench.runs.measure.window import Timing, get_first_steps

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

CLAIMED_FIELDS = ("tp", "pp", "cp", "ep", "etp", "vp")

# Largest relative difference of logged and computed TFLOP/s if the recipe's factor
# between them is known
KNOWN_FACTOR_BAND = 0.05

# the same if the factor is unknown: frameworks count FLOPs differently by some percent
UNKNOWN_FACTOR_BAND = 0.2

# Largest relative difference of logged tokens/s x step time and sequence length x
# batch size (both are rounded)
TOKENS_BAND = 0.02

# With a smaller share of target tokens a step does not contain the whole batch, unless
# the rest is padding
LEAST_TARGET_SHARE = 0.75
MOST_TARGET_SHARE = 1.02  # with a larger share the batch is larger than the baseline's
# Largest relative difference of the tokens by rate and the tokens of the batch
SHAPES_BAND = 0.02

# How much less work a step may contain than in the recorded runs, and than at the
# beginning of the window
LESS_THAN_RECORDED = 0.05
LESS_THAN_BEFORE = 0.1
# LESS_THAN_RECORDED for training from rewards: the answers differ in length in each run
LESS_ANSWERED = 0.3
# how many standard errors less, if the work changes from step to step
DEVIATIONS = 4
FEWEST_STEPS = 9  # a shorter window cannot show a change of level

WORK = {
    Observed.SAMPLES_PER_STEP: "samples",
    Observed.TOKENS_PER_STEP: "tokens",
    Observed.TARGETS_PER_STEP: "tokens whose loss counts",
    Observed.SAMPLES_BY_RATE: "samples (samples/s x step time)",
    Observed.TOKENS_BY_RATE: "tokens of a GPU (tokens/s x step time)",
}
"""The units of the observed work of a step, for messages."""
POWER_LIMIT = "power_limit"  # key in the environment of a run
SAME_POWER = 0.01  # relative tolerance: drivers round power limits
NUMBER = compile_on_use(r"\d+(?:\.\d+)?")  # matches 700.00 in "700.00 W"

NEGATION = "not "  # prefix of a precision that the run does not have

# matches "_8b_" in "llama3_8b_fp8", "-70B" at the end of "Llama-3-70B"
SIZE = compile_on_use(r"(?:^|[_-])(\d+(?:\.\d+)?[bmt])(?:$|[_-])", re.IGNORECASE)
# matches "pretrain_llama3_8b_bf16", "pretraining_qwen3_30b_a3b_perf_fp8": model and dtype
EXPERIMENT = compile_on_use(
    r"pretrain(?:ing)?_(?P<model>.+?_\d+(?:\.\d+)?[bmt](?:_a\d+b)?)(?:_[^_]+)??_"
    r"(?P<dtype>(?:bf|fp|tf|nvfp|mxfp|int)\d{1,2})(?:[^a-z0-9]|$)",
    re.IGNORECASE,
)
FAMILY = compile_on_use(
    r"(llama|gemma|mistral|mixtral|gpt|qwen|deepseek|nemotron|grok|kimi)[-_]?v?(\d+(?:\.\d+)?)?(?![a-z0-9])",
    re.IGNORECASE,
)
"""Matches well-known model families: `qwen2.5` is qwen and 2.5, `llama-3` llama and 3.

Other names are not compared.
"""


class ModelName(NamedTuple):
    """A model name, parsed: its families with versions, and its size or ""."""

    families: frozenset[tuple[str, str]]
    size: str


def find_problems(
    run: Run, choice: Choice, timing: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield the facts of a run that contradict the baseline's configuration.

    Checks claims in names and metadata, statements in the log, and rates.
    """
    configuration, steps = baseline.configuration, timing.steps
    yield from check_claims(run, baseline)
    expected_batch = configuration.global_batch_size
    batches = steps.global_batch_size  # NaN where the log prints none
    differs = np.isfinite(batches) & (batches != expected_batch)
    if expected_batch > 0 and differs.any():
        smallest = batches[differs].min()
        row = int(np.argmax(batches == smallest))
        text = f"global batch size {smallest:g} in the log, {expected_batch} in the baseline"
        yield Problem(Reason.WRONG_CONFIGURATION, text, int(steps.line[row]))
    yield from _find_stated_problems(choice, timing, baseline)
    yield from _check_rates(timing, baseline)
    yield from _find_less_work(timing, baseline, is_rewarded(run, choice, baseline))


def _find_stated_problems(
    choice: Choice, timing: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield the statements of the judged segment that contradict the baseline.

    Each `_check_` function yields messages with their log lines.
    """
    for text, line in (
        *check_statements(choice.segment, baseline),
        *_check_samples(choice.segment.steps, timing, baseline),
        *_check_target_tokens(timing, baseline),
    ):
        yield Problem(Reason.WRONG_CONFIGURATION, text, line)


def check_statements(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a message for each statement that contradicts the baseline, with its line.

    Depends on the fields and values of the statements only, except for the lines.
    """
    yield from _check_gpus(segment, baseline)
    yield from _check_gpu_type(segment, baseline)
    yield from _check_gpu_memory(segment, baseline)
    yield from _check_sizes(segment, baseline)
    yield from _check_precision(segment, baseline)
    yield from _check_model(segment, baseline)


def list_notes(
    timing: Timing, baseline: Baseline, observed_work: Mapping[Observed, float]
) -> Iterator[Note]:
    """Yield notes on much padding, and on more work in a step than was recorded.

    `observed_work` contains the values that `observe` yields.
    """
    share = _compute_target_share(timing.window, baseline)
    # Few target tokens are padding, unless `find_problems` reports them.
    if share < LEAST_TARGET_SHARE and not any(_check_target_tokens(timing, baseline)):
        text = f"{share * 100:.0f} % of the tokens of a step are targets: the others are padding, which takes as long"
        yield Note(NoteCode.PADDED, text, int(timing.window.line[0]))
    for name, work in observed_work.items():
        recorded = baseline.observed.get(name, math.inf)
        if work > recorded * (1 + LESS_THAN_RECORDED):
            text = _compare_work(name, work, recorded)
            yield Note(NoteCode.MORE_WORK, text, int(timing.window.line[0]))


def observe(timing: Timing) -> Iterator[tuple[Observed, float]]:
    """Yield the samples and tokens of a step, to be recorded with a baseline."""
    for name, work in _list_work(timing).items():
        yield name, compute_median(work)


def compare_power(run: Run, choice: Choice, baseline: Baseline) -> Iterator[Note]:
    """Yield a note if the GPUs' power limit differs from that of the recorded runs."""
    recorded = dict(baseline.recording.environment) if baseline.recording else {}
    environment = {
        **dict(choice.attempt.log.environment),
        **dict(run.found.environment),
    }
    recorded_limit = recorded.get(POWER_LIMIT, "")
    limit = environment.get(POWER_LIMIT, "")
    if recorded_limit and limit and not _are_same_power(recorded_limit, limit):
        text = f"power limit {limit}, in the recorded runs {recorded_limit}"
        yield Note(NoteCode.SETTING_CHANGED, text)


def check_mfu_peak(segment: Segment, baseline: Baseline) -> Iterator[Note]:
    """Yield a note if the log's MFU assumes a peak that the GPU does not have.

    A framework that does not know a GPU assumes another one.
    """
    gpu = baseline.key.gpu
    stated = [
        statement
        for statement in segment.stated
        if statement.field == StatedField.MFU_PEAK
    ]
    if not stated or gpu in ("cpu", UNKNOWN):
        return
    assumed = float(stated[-1].value)
    # Frameworks divide by the peak of BF16, whatever the precision of the run.
    peaks = [peak.tflops for peak in list_peaks(gpu, "bf16")]
    if baseline.key.dtype == "bf16" and not math.isnan(baseline.peak_tflops):
        peaks.insert(0, baseline.peak_tflops)
    other_gpu = find_gpu_by_peak("bf16", assumed)
    if is_near(assumed, peaks) or not (peaks or other_gpu):
        return
    owner = f", the peak of {other_gpu}" if other_gpu else ""
    known = "an unknown peak"
    if peaks:
        known = f"{peaks[0]:g}: multiply the logged MFU by {assumed / peaks[0]:.3g}"
    text = f"the logged MFU assumes {assumed:g} TFLOP/s{owner}; {gpu} has {known}"
    yield Note(NoteCode.MFU_PEAK, text, stated[-1].line)


def _are_same_power(limit: str, other_limit: str) -> bool:
    """True if both limits contain the same number: `700.00 W` and `700 W`.

    Limits without a number must be the same text.
    """
    number, other_number = NUMBER.search(limit), NUMBER.search(other_limit)
    if number is None or other_number is None:
        return limit == other_limit
    return math.isclose(float(number[0]), float(other_number[0]), rel_tol=SAME_POWER)


def find_profiler(choice: Choice) -> Statement | None:
    """Return the statement that a profiler was switched on or off, or None.

    Only statements of the judged segment count.
    """
    return next(
        (
            statement
            for statement in choice.segment.stated
            if statement.field == StatedField.PROFILER
        ),
        None,
    )


def _check_gpus(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a problem if the last stated GPU count differs from the baseline's."""
    stated = [
        statement for statement in segment.stated if statement.field == StatedField.GPUS
    ]
    if not stated or not baseline.key.gpus:
        return
    last = stated[-1]
    if int(last.value) != baseline.key.gpus:
        text = f"the log states {last.value} GPUs, the baseline has {baseline.key.gpus}"
        yield text, last.line


def _check_gpu_type(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a problem if the log states another GPU type than the baseline's.

    H100 PCIe and NVL count as other types: their peaks differ. A CPU baseline is not
    checked, because the GPUs of the machine are not used.
    """
    if baseline.key.gpu == "cpu":
        return
    stated = (
        statement
        for statement in segment.stated
        if statement.field == StatedField.GPU_TYPE
    )
    allowed = {read_gpu_type(baseline.key.gpu)}
    if baseline.key.gpu == UNKNOWN:
        allowed |= READ_LATER
    for statement in stated:
        if statement.value not in allowed:
            yield (
                f"the log states {statement.value} GPUs, the baseline is for {baseline.key.gpu}",
                statement.line,
            )


def _check_gpu_memory(
    segment: Segment, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield a problem if the GPU memory is larger than any variant of the type has.

    A partition of a GPU has less memory, which is allowed.
    """
    largest = find_largest_memory(baseline.key.gpu)
    stated = (
        statement
        for statement in segment.stated
        if statement.field == StatedField.GPU_MEMORY
    )
    for statement in stated:
        if largest and int(statement.value.removesuffix(" GB")) > largest:
            text = f"the log states GPUs with {statement.value}, a {baseline.key.gpu} has at most {largest} GB"
            yield text, statement.line


def _check_sizes(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a problem for each model or batch size that differs from the baseline's.

    If the log states a size several times, one match is enough.
    """
    configuration = baseline.configuration
    model = configuration.architecture
    sizes = (
        (StatedField.LAYERS, model.layers),
        (StatedField.SEQUENCE, model.sequence_length),
        (StatedField.BATCH, configuration.global_batch_size),
    )
    for field, size in sizes:
        stated = [statement for statement in segment.stated if statement.field == field]
        values = {statement.value for statement in stated}
        # One match is enough: components of a model may have their own layers.
        if size and stated and str(size) not in values:
            last = stated[-1]
            yield f"{field} {last.value} in the log, {size} in the baseline", last.line


def _check_precision(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a problem if the log's precision differs from the baseline's.

    The number formats and the experiment names in the log are checked separately. In
    each of these groups, one match is enough.
    """
    expected = _get_precision_family(baseline.key.dtype)
    stated = [
        statement
        for statement in segment.stated
        if statement.field == StatedField.QUANTIZATION
    ]
    matches = [_matches_precision(statement.value, expected) for statement in stated]
    if stated and not any(matches):
        last = stated[-1]
        predicate = f"computes in {_name_precision(last.value)}"
        if last.value.startswith(NEGATION):
            predicate = f"is {last.value}"
        yield (
            f"according to its log the run {predicate}, but the baseline is for {baseline.key.dtype}",
            last.line,
        )
    experiments = list(_find_experiments(segment))
    families = {_get_precision_family(match["dtype"]) for _, match in experiments}
    if experiments and expected not in families:
        statement, _ = experiments[-1]
        yield (
            f"the log names the run {statement.value}, but the baseline is for {baseline.key.dtype}",
            statement.line,
        )


def _matches_precision(value: str, expected: str) -> bool:
    """True if a stated precision, such as `fp8` or `not fp8`, fits the expected one."""
    if value.startswith(NEGATION):
        return value.removeprefix(NEGATION) != expected
    return value == expected


def _name_precision(value: str) -> str:
    """Return the name of a precision family for messages."""
    return "16 or 32 bits" if value == "none" else value


def _get_precision_family(dtype: str) -> str:
    """Return the family of a dtype: fp8, fp4, int8, int4, or "none" for others."""
    for family in ("fp8", "fp4", "int8", "int4"):
        if family in dtype.casefold():
            return family
    return "none"


def _check_model(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield a problem if the log names another model, or another size of it.

    If the log contains several model paths, the last decides. If it contains several
    experiment names, one match is enough.
    """
    expected = _parse_name(f"{baseline.key.recipe}_{baseline.key.size}")
    # names without a well-known family and a size are not compared
    if not expected.families or not expected.size:
        return
    paths: list[tuple[ModelName, Statement]] = []
    for statement in segment.stated:
        if statement.field == StatedField.MODEL:
            folder_name = statement.value.rstrip("/").rpartition("/")[2]
            name = _parse_name(folder_name)
            if name.size and name.families:
                paths.append((name, statement))
    experiments: list[tuple[ModelName, Statement]] = []
    for statement, match in _find_experiments(segment):
        name = _parse_name(match["model"])
        if name.families:
            experiments.append((name, statement))
    # The last path must match, and any of the experiments.
    for statements in (paths[-1:], experiments):
        matches = [_is_same_model(name, expected) for name, _ in statements]
        if statements and not any(matches):
            _, last = statements[-1]
            yield (
                f"the log names the model {last.value}, the baseline is for {baseline.key.recipe} {baseline.key.size}",
                last.line,
            )


def _find_experiments(segment: Segment) -> Iterator[tuple[Statement, re.Match[str]]]:
    """Yield the statements that match EXPERIMENT, with their matches."""
    matches = (
        (statement, _match_experiment(statement.value))
        for statement in segment.stated
        if statement.field == StatedField.NAMED
    )
    return ((statement, match) for statement, match in matches if match)


@lru_cache(1024)
def _match_experiment(text: str) -> re.Match[str] | None:
    return EXPERIMENT.match(text)


@lru_cache(1024)
def _parse_name(text: str) -> ModelName:
    """Parse a name: `Qwen2.5-7B` is the family ("qwen", "25") of size "7b"."""
    size = SIZE.search(text)
    families = frozenset(
        (word.casefold(), version.replace(".", ""))
        for word, version in FAMILY.findall(text)
    )
    return ModelName(families, size[1].casefold() if size else "")


def _is_same_model(name: ModelName, other: ModelName) -> bool:
    """True if two names have the same size and a family in common.

    A shorter version matches: llama 3 is the same as llama 3.1. A name without a
    version matches any version.
    """
    return name.size == other.size and any(
        word == other_word
        and (version.startswith(other_version) or other_version.startswith(version))
        for word, version in name.families
        for other_word, other_version in other.families
    )


def _check_samples(
    steps: Steps, timing: Timing, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield a problem if the consumed samples per step differ from the batch size."""
    batch_size = baseline.configuration.global_batch_size
    growth = _count_samples(steps, timing)
    if batch_size and len(growth) and compute_median(growth) != batch_size:
        text = f"consumed samples grow by {compute_median(growth):g} a step, the baseline's batch has {batch_size}"
        yield text, int(timing.window.line[0])


@lru_cache(1)  # for the problems of a run, and then for its work
def _count_samples(steps: Steps, timing: Timing) -> Floats:
    """Return the growth of the consumed samples per step in the window.

    Empty if fewer than two counts are printed.
    """
    rows = np.flatnonzero(np.isfinite(steps.consumed_samples))
    if len(rows) < 2 or not len(timing.window):
        return steps.consumed_samples[:0]
    index, samples = steps.index[rows], steps.consumed_samples[rows]
    first, last = get_first_steps(timing.window)[0], timing.window.index[-1]
    in_window = (index[1:] >= first) & (index[1:] <= last)
    growth: Floats = (np.diff(samples) / np.diff(index))[in_window]
    return growth


def _check_target_tokens(
    timing: Timing, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield a problem if the number of target tokens does not fit the batch.

    Target tokens are the tokens whose loss counts; the others are padding or prompts.
    """
    window, share = timing.window, _compute_target_share(timing.window, baseline)
    if not (share > MOST_TARGET_SHARE or share < LEAST_TARGET_SHARE):
        return  # also if `share` is NaN
    tokens = window.target_tokens[np.isfinite(window.target_tokens)]
    # A smaller number is due to padding if it changes from step to step and
    # tokens/s x step time matches the batch.
    changes = len(set(tokens.tolist())) > 1
    if share < LEAST_TARGET_SHARE and changes and _has_same_shapes(window, baseline):
        return
    batch_tokens = count_tokens(baseline)
    text = f"total_weights is {tokens.max():g} tokens a step, the baseline has {batch_tokens}: a different batch or sequence length"
    yield text, int(window.line[0])


def _compute_target_share(window: Steps, baseline: Baseline) -> float:
    """Return the largest number of target tokens as a share of a step's tokens.

    NaN if the log prints no target tokens.
    """
    tokens = window.target_tokens[np.isfinite(window.target_tokens)]
    batch_tokens = count_tokens(baseline)
    if not len(tokens) or not batch_tokens:
        return float("nan")
    return float(tokens.max()) / batch_tokens


def _has_same_shapes(window: Steps, baseline: Baseline) -> bool:
    """True if tokens/s x step time matches the tokens of the baseline's batch.

    Then the tensors of a step have the baseline's shapes.
    """
    tokens = window.tokens_per_second_per_gpu * window.seconds * baseline.key.gpus
    printed = tokens[np.isfinite(tokens)]
    if not len(printed):
        return False
    return abs(compute_median(printed) / count_tokens(baseline) - 1) <= SHAPES_BAND


def count_tokens(baseline: Baseline) -> int:
    """Return the number of tokens in the baseline's global batch."""
    return (
        baseline.configuration.architecture.sequence_length
        * baseline.configuration.global_batch_size
    )


def check_claims(run: Run, baseline: Baseline) -> Iterator[Problem]:
    """Yield a problem for each value in a name or metadata that the baseline contradicts.

    Depends on the hints of the run only.
    """
    configuration = baseline.configuration
    expected = {
        name: getattr(configuration.parallelism, name) for name in CLAIMED_FIELDS
    }
    expected |= {
        "global_batch_size": configuration.global_batch_size,
        "micro_batch_size": configuration.micro_batch_size,
        "sequence_length": configuration.architecture.sequence_length,
    }
    for hint in run.found.hints:
        value = expected.get(hint.field)
        if value and hint.value != str(value):
            text = f"{hint.field.replace('_', ' ')} {hint.value} in {hint.source}, {value} in the baseline"
            yield Problem(Reason.WRONG_CONFIGURATION, text)


def _check_rates(timing: Timing, baseline: Baseline) -> Iterator[Problem]:
    """Yield a problem if printed rates imply another model, batch or GPU count.

    Rates times step time give the work of a step, which the baseline determines.
    """
    configuration, steps, counted = baseline.configuration, timing.steps, timing.counted
    # A time computed from tokens/s always agrees with them.
    printed = counted & ~timing.filled
    # First check: TFLOP/s x step time is the work that model and batch determine.
    work = steps.tflops_per_gpu[counted] * steps.seconds[counted]
    tflop_per_step = metric_definitions.compute_tflops_per_gpu(configuration, 1.0)
    expected = tflop_per_step * (baseline.logged_tflops_factor or 1.0)
    has_known_factor = baseline.logged_tflops_factor or configuration.logged_tflop
    band = KNOWN_FACTOR_BAND if has_known_factor else UNKNOWN_FACTOR_BAND
    ratio = _compute_finite_median(work) / expected
    # The rounding is computed only if it can decide: it is slow.
    if abs(ratio - 1) > band and abs(ratio - 1) > band + _compute_rounding(
        steps, steps.tflops_per_gpu, counted
    ):
        text = (
            f"logged TFLOP/s x step time is {ratio:.3g} x what the baseline's model and batch need: "
            "a different batch size, sequence length or number of layers"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)
    # Second check: tokens/s x step time is the number of tokens of the batch.
    tokens_per_gpu = _compute_finite_median(
        steps.tokens_per_second_per_gpu[printed] * steps.seconds[printed]
    )
    tokens = tokens_per_gpu * configuration.key.gpus
    batch_tokens = count_tokens(baseline)
    difference = 0.0
    if batch_tokens and configuration.key.gpus:
        difference = abs(tokens / batch_tokens - 1)
    if difference > TOKENS_BAND and difference > TOKENS_BAND + _compute_rounding(
        steps, steps.tokens_per_second_per_gpu, printed
    ):
        text = (
            f"logged tokens/s x step time is {tokens:.6g} tokens a step on {configuration.key.gpus} GPUs, "
            f"the baseline has {batch_tokens}: a different batch size, sequence length or number of GPUs"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)


def _find_less_work(
    timing: Timing, baseline: Baseline, rewarded: bool
) -> Iterator[Problem]:
    """Yield a problem if steps contain less work than recorded.

    Also yields a drop of the work within the window. Training on rewards (`rewarded`)
    may do LESS_ANSWERED less work than recorded, and its work may drop.
    """
    recorded = baseline.observed
    allowed = LESS_ANSWERED if rewarded else LESS_THAN_RECORDED
    for name, work in _list_work(timing).items():
        median = compute_median(work)
        share = median / recorded[name] if recorded.get(name) else 1.0
        line = int(timing.window.line[0])
        noise = DEVIATIONS * _estimate_error(work)
        drop = "" if rewarded else _describe_drop(work, WORK[name], noise)
        # Twice the rounding, because the recorded work is rounded as well. Computing the
        # rounding is slow, so only if it can decide.
        if share < 1 - max(allowed, noise) and share < 1 - max(
            allowed, 2 * _compute_work_rounding(name, timing)
        ):
            text = _compare_work(name, median, recorded[name])
            yield Problem(Reason.LESS_WORK, text, line)
        elif drop:
            yield Problem(Reason.LESS_WORK, drop, line)


def _compute_work_rounding(name: Observed, timing: Timing) -> float:
    """Return the rounding error of work computed from a printed rate, as a fraction.

    0 for counted work.
    """
    steps, counted = timing.steps, timing.counted
    if name is Observed.TOKENS_BY_RATE:
        return _compute_rounding(steps, steps.tokens_per_second_per_gpu, counted)
    if name is Observed.SAMPLES_BY_RATE:
        return _compute_rounding(steps, steps.samples_per_second, counted)
    return 0.0


@lru_cache(1)  # for the problems of a run, and then for its observed work
def _list_work(timing: Timing) -> Mapping[Observed, Floats]:
    """Return the work of each step of the window, for each quantity that the log
    prints.

    Of several sources of a quantity, the first with a printed value is used.
    """
    window = timing.window
    if not len(window):
        return {}
    # A time computed from tokens/s always agrees with them: only printed times count.
    is_printed = ~timing.filled[timing.counted]
    tokens_by_rate = window.tokens_per_second_per_gpu * window.seconds
    sources = {
        Observed.SAMPLES_PER_STEP: [
            _count_samples(timing.steps, timing),
            window.global_batch_size,
        ],
        Observed.TOKENS_PER_STEP: [window.step_tokens],
        Observed.TARGETS_PER_STEP: [window.target_tokens],
        Observed.SAMPLES_BY_RATE: [window.samples_per_second * window.seconds],
        Observed.TOKENS_BY_RATE: [tokens_by_rate[is_printed]],
    }
    work: dict[Observed, Floats] = {}
    for name, columns in sources.items():
        for column in columns:
            printed = column[np.isfinite(column) & (column > 0)]
            if len(printed):
                work[name] = printed
                break
    return work


def _compare_work(name: Observed, work: float, recorded: float) -> str:
    return (
        f"a step contains {work:.6g} {WORK[name]}, in the recorded runs {recorded:.6g}"
    )


def _estimate_error(work: Floats) -> float:
    """Estimate the relative error of the median work from its changes between steps."""
    changes = np.diff(work)
    if not len(changes):
        return 0.0
    standard_error = np.sqrt(np.mean(changes**2) / len(work))
    return float(standard_error / compute_median(work))


def _describe_drop(work: Floats, unit: str, noise: float) -> str:
    """Describe a drop of the work from the window's first third to its last, or "".

    A change below `noise` (a fraction of the work) is not a drop.
    """
    if len(work) < FEWEST_STEPS:
        return ""
    third = len(work) // 3
    first, last = compute_median(work[:third]), compute_median(work[-third:])
    allowed = max(LESS_THAN_BEFORE, noise)
    if last / first >= 1 - allowed:
        return ""
    return f"a step contains {first:.6g} {unit} at the beginning of the window, {last:.6g} at its end"


def _compute_rounding(steps: Steps, rates: Floats, mask: Flags) -> float:
    """Return the rounding error of rate x step time, as a fraction.

    It follows from the digits that the log prints of the rate and the time.
    """
    is_printed = np.isfinite(rates) & (rates > 0)
    printed = rates[is_printed].tolist()
    # one unit in the last digit of each printed rate: 0.01 for 12.39
    units = np.array(refine_units(printed, [find_last_unit(rate) for rate in printed]))
    rate_rounding = (units / rates[is_printed])[mask[is_printed]]
    time_rounding = steps.resolution_seconds[mask] / steps.seconds[mask]
    return _compute_finite_median(rate_rounding) + _compute_finite_median(time_rounding)


def _compute_finite_median(values: Floats) -> float:
    """Return the median of the finite values, NaN if there are none."""
    finite = values[np.isfinite(values)]
    # comparisons with NaN are False, so a missing value yields no problem
    return compute_median(finite) if len(finite) else math.nan
