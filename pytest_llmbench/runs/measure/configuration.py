"""Whether a run is of the configuration that it is measured against: by its names and
metadata, by what its log states (GPUs, precision, model), and by its batches, samples,
tokens and rates."""

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
from pytest_llmbench.core.gpus import LARGEST_MEMORY_GB, read_gpu_type
from pytest_llmbench.core.log_records import Segment, StatedField, Statement, Steps
from pytest_llmbench.core.robust import compute_median
from pytest_llmbench.core.rounding import find_last_unit, refine_units
from pytest_llmbench.core.run_records import Note, Problem, Run
from pytest_llmbench.runs.measure.attempts import Choice
from pytest_llmbench.runs.measure.training import is_rewarded
from pytest_llmbench.runs.measure.window import Timing, begins

if TYPE_CHECKING:
    from pytest_llmbench.core.log_records import Flags, Floats

CLAIMED_FIELDS = ("tp", "pp", "cp", "ep", "etp", "vp")

# How far logged TFLOP/s may lie from computed ones where the recipe's factor between
# them is known
KNOWN_FACTOR_BAND = 0.05

# the same where it is not: frameworks count FLOPs up to some percent differently
UNKNOWN_FACTOR_BAND = 0.2

# How far logged tokens/s times step time may lie from sequence length times batch size:
# rounding of both
TOKENS_BAND = 0.02

# Share of target tokens below which a step is not of the whole batch: padding takes
# less, or its shapes say more
FULL = 0.75
MORE = 1.02  # share of target tokens above which it is of a larger batch
SHAPES_AGREE = (
    0.02  # how far the tokens that shapes hold may lie from those of the batch
)

# How much less work a step may hold than those of the recorded runs, and than those at
# the beginning of its window
LESS_THAN_RECORDED = 0.05
LESS_THAN_BEFORE = 0.1
# the first of them if a model learns from rewards: its answers have other lengths in
# each run
LESS_ANSWERED = 0.3
DEVIATIONS = (
    4  # the same in deviations of a mean, where the work changes from step to step
)
FEWEST_STEPS = 9  # in a shorter window nothing shows that a level changed

WORK = {
    Observed.SAMPLES_PER_STEP: "samples",
    Observed.TOKENS_PER_STEP: "tokens",
    Observed.TARGETS_PER_STEP: "tokens whose loss counts",
    Observed.SAMPLES_BY_RATE: "samples (samples/s x step time)",
    Observed.TOKENS_BY_RATE: "tokens of a GPU (tokens/s x step time)",
}
"""What a recording keeps of the work of a step, in words."""
POWER_LIMIT = "power_limit"  # its name in the environment of a run
SAME_POWER = 0.01  # drivers round it
NUMBER = re.compile(r"\d+(?:\.\d+)?")

NOT = "not "  # begins the name of a precision that a run does not have

SIZE = re.compile(r"(?:^|[_-])(\d+(?:\.\d+)?[bmt])(?:$|[_-])", re.IGNORECASE)
EXPERIMENT = re.compile(
    r"pretrain(?:ing)?_(?P<model>.+?_\d+(?:\.\d+)?[bmt](?:_a\d+b)?)(?:_[^_]+)??_"
    r"(?P<dtype>(?:bf|fp|tf|nvfp|mxfp|int)\d{1,2})(?:[^a-z0-9]|$)",
    re.IGNORECASE,
)
FAMILY = re.compile(
    r"(llama|gemma|mistral|mixtral|gpt|qwen|deepseek|nemotron|grok|kimi)[-_]?v?(\d+(?:\.\d+)?)?(?![a-z0-9])",
    re.IGNORECASE,
)
"""Models that everybody calls by these names; a run of another name is of no known
model."""


class ModelName(NamedTuple):
    """A model by name: its families with their versions, and its size where one is in
    the name."""

    families: frozenset[tuple[str, str]]
    size: str


def find_problems(
    run: Run, choice: Choice, timed: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield what a run claims, what its log states and what its rates say that is not
    so in the baseline."""
    configuration, steps = baseline.configuration, timed.steps
    yield from _check_claims(run, baseline)
    batches = steps.global_batch_size
    other = batches != configuration.global_batch_size
    if (
        configuration.global_batch_size > 0
        and other.any()
        and (other := other & np.isfinite(batches)).any()
    ):
        wrong = batches[other].min()
        row = int(np.argmax(batches == wrong))
        text = f"global batch size {wrong:g} in the log, {configuration.global_batch_size} in the baseline"
        yield Problem(Reason.WRONG_CONFIGURATION, text, int(steps.line[row]))
    yield from _find_misstated(choice, timed, baseline)
    yield from _check_rates(timed, baseline)
    yield from _find_less_work(timed, baseline, is_rewarded(run, choice, baseline))


def _find_misstated(
    choice: Choice, timed: Timing, baseline: Baseline
) -> Iterator[Problem]:
    """Yield what the judged part of a log states that is not so in the baseline's
    configuration."""
    for text, line in (
        *_check_gpus(choice.segment, baseline),
        *_check_gpu_type(choice.segment, baseline),
        *_check_gpu_memory(choice.segment, baseline),
        *_check_sizes(choice.segment, baseline),
        *_check_precision(choice.segment, baseline),
        *_check_model(choice.segment, baseline),
        *_check_samples(choice.segment.steps, timed, baseline),
        *_check_target_tokens(timed, baseline),
    ):
        yield Problem(Reason.WRONG_CONFIGURATION, text, line)


def list_notes(
    timed: Timing, baseline: Baseline, observed_work: Mapping[Observed, float]
) -> Iterator[Note]:
    """Yield that padding takes much of a batch, and that a step holds more work than
    those of the recorded runs.

    `observed_work` is what `observe` yields.
    """
    share = _compute_target_share(timed.window, baseline)
    if share < FULL and not any(_check_target_tokens(timed, baseline)):
        text = f"{share * 100:.0f} % of the tokens of a step are targets: the rest is padding, and takes as long"
        yield Note(NoteCode.PADDED, text, int(timed.window.line[0]))
    for name, work in observed_work.items():
        recorded = baseline.observed.get(name, math.inf)
        if work > recorded * (1 + LESS_THAN_RECORDED):
            yield Note(
                NoteCode.MORE_WORK,
                _compare_work(name, work, recorded),
                int(timed.window.line[0]),
            )


def observe(timed: Timing) -> Iterator[tuple[Observed, float]]:
    """Yield what a recording keeps of the work of a step: samples and tokens."""
    for name, work in _list_work(timed).items():
        yield name, compute_median(work)


def compare_power(run: Run, choice: Choice, baseline: Baseline) -> Iterator[Note]:
    """Yield a power limit of the GPUs that is another one than in the recorded runs."""
    recorded = dict(baseline.recording.environment) if baseline.recording else {}
    environment = {
        **dict(choice.attempt.log.environment),
        **dict(run.found.environment),
    }
    before, now = recorded.get(POWER_LIMIT, ""), environment.get(POWER_LIMIT, "")
    if before and now and not _are_alike(before, now):
        yield Note(
            NoteCode.SETTING_CHANGED,
            f"power limit {now}, in the recorded runs {before}",
        )


def _are_alike(text: str, other: str) -> bool:
    """Whether two texts state the same number: `700.00 W` and `700 W`."""
    numbers = [NUMBER.search(each) for each in (text, other)]
    if not all(numbers):
        return text == other
    first, second = (float(match[0]) for match in numbers if match)
    return math.isclose(first, second, rel_tol=SAME_POWER)


def find_profiler(choice: Choice) -> Statement | None:
    """Return where a profiler was switched on or off in the judged part of a log, None
    where it was not."""
    return next(
        (
            statement
            for statement in choice.segment.stated
            if statement.field == StatedField.PROFILER
        ),
        None,
    )


def _check_gpus(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    stated = [
        statement for statement in segment.stated if statement.field == StatedField.GPUS
    ][-1:]
    for statement in stated:
        if baseline.key.gpus and int(statement.value) != baseline.key.gpus:
            yield (
                f"the log states {statement.value} GPUs, the baseline has {baseline.key.gpus}",
                statement.line,
            )


def _check_gpu_type(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield GPUs of another type, also where only their form differs: H100 PCIe and NVL
    have peaks of their own. What a machine has says nothing of a run on its CPU."""
    if baseline.key.gpu == "cpu":
        return
    stated = (
        statement
        for statement in segment.stated
        if statement.field == StatedField.GPU_TYPE
    )
    for statement in stated:
        if statement.value != read_gpu_type(baseline.key.gpu):
            yield (
                f"the log states {statement.value} GPUs, the baseline is of {baseline.key.gpu}",
                statement.line,
            )


def _check_gpu_memory(
    segment: Segment, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield a memory that is larger than any of the GPU's type; a part of a GPU has
    less."""
    most = LARGEST_MEMORY_GB.get(read_gpu_type(baseline.key.gpu))
    stated = (
        statement
        for statement in segment.stated
        if statement.field == StatedField.GPU_MEMORY
    )
    for statement in stated:
        if most and int(statement.value.removesuffix(" GB")) > most:
            text = f"the log states GPUs with {statement.value}, a {baseline.key.gpu} has at most {most} GB"
            yield text, statement.line


def _check_sizes(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield each size of model and batch of which the log states none that is the
    baseline's."""
    configuration = baseline.configuration
    model = configuration.architecture
    sizes = (
        (StatedField.LAYERS, model.layers),
        (StatedField.SEQUENCE, model.sequence_length),
        (StatedField.BATCH, configuration.global_batch_size),
    )
    for field, size in sizes:
        stated = [statement for statement in segment.stated if statement.field == field]
        # Any of them may be it: parts of a model may have layers of their own.
        if (
            size
            and stated
            and str(size) not in {statement.value for statement in stated}
        ):
            yield (
                f"{field} {stated[-1].value} in the log, {size} in the baseline",
                stated[-1].line,
            )


def _check_precision(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield another precision, where neither what is stated of the numbers nor a name
    in the log is the baseline's."""
    expected = _name_family(baseline.key.dtype)
    stated = [
        statement
        for statement in segment.stated
        if statement.field == StatedField.QUANTIZATION
    ]
    if stated and not any(_fits(statement.value, expected) for statement in stated):
        value = stated[-1].value
        what = (
            f"is {value}"
            if value.startswith(NOT)
            else f"computes in {_name_precision(value)}"
        )
        yield (
            f"the run {what} by its log, the baseline is of {baseline.key.dtype}",
            stated[-1].line,
        )
    named = [
        (_name_family(match["dtype"]), statement)
        for statement, match in _find_experiments(segment)
    ]
    if named and expected not in {family for family, _ in named}:
        statement = named[-1][1]
        yield (
            f"the log calls the run {statement.value}, the baseline is of {baseline.key.dtype}",
            statement.line,
        )


def _fits(value: str, expected: str) -> bool:
    return (
        value.removeprefix(NOT) != expected
        if value.startswith(NOT)
        else value == expected
    )


def _name_precision(value: str) -> str:
    return "16 or 32 bits" if value == "none" else value


def _name_family(dtype: str) -> str:
    """Return what a precision is one of: fp8, fp4, int8, int4, or none for floats of 16
    and 32 bits."""
    return next(
        (
            family
            for family in ("fp8", "fp4", "int8", "int4")
            if family in dtype.casefold()
        ),
        "none",
    )


def _check_model(segment: Segment, baseline: Baseline) -> Iterator[tuple[str, int]]:
    """Yield another model, or another size of it: of what states it the last counts,
    names must all say another one."""
    own = _parse_name(f"{baseline.key.recipe}_{baseline.key.size}")
    if (
        not own.families or not own.size
    ):  # the name of something else, as is one of no known family below
        return
    paths = [
        (_parse_name(statement.value.rstrip("/").rpartition("/")[2]), statement)
        for statement in segment.stated
        if statement.field == StatedField.MODEL
    ]
    stated = [pair for pair in paths if pair[0].size and pair[0].families][-1:]
    experiments = [
        (_parse_name(match["model"]), statement)
        for statement, match in _find_experiments(segment)
    ]
    called = [pair for pair in experiments if pair[0].families]
    for pairs in (stated, called):
        if pairs and not any(_is_same(named, own) for named, _ in pairs):
            name, line = pairs[-1][1].value, pairs[-1][1].line
            yield (
                f"the log names the model {name}, the baseline is of {baseline.key.recipe} {baseline.key.size}",
                line,
            )


def _find_experiments(segment: Segment) -> Iterator[tuple[Statement, re.Match[str]]]:
    named = (
        (statement, _match_experiment(statement.value))
        for statement in segment.stated
        if statement.field == StatedField.NAMED
    )
    return ((statement, match) for statement, match in named if match)


@lru_cache(1024)
def _match_experiment(text: str) -> re.Match[str] | None:
    return EXPERIMENT.match(text)


@lru_cache(1024)
def _parse_name(text: str) -> ModelName:
    size = SIZE.search(text)
    families = frozenset(
        (word.casefold(), version.replace(".", ""))
        for word, version in FAMILY.findall(text)
    )
    return ModelName(families, size[1].casefold() if size else "")


def _is_same(name: ModelName, other: ModelName) -> bool:
    return name.size == other.size and any(
        word == other_word
        and (version.startswith(other_version) or other_version.startswith(version))
        for word, version in name.families
        for other_word, other_version in other.families
    )


def _check_samples(
    steps: Steps, timed: Timing, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield another number of samples in a step than the batch size, by how the samples
    of the run grow."""
    wanted = baseline.configuration.global_batch_size
    grown = _count_samples(steps, timed)
    if wanted and len(grown) and compute_median(grown) != wanted:
        line = int(timed.window.line[0])
        yield (
            f"consumed samples grow by {compute_median(grown):g} a step, the baseline's batch has {wanted}",
            line,
        )


def _count_samples(steps: Steps, timed: Timing) -> Floats:
    """Return by how many samples a step the count of the run grows in the window; empty
    for fewer than two counts."""
    finite = np.flatnonzero(np.isfinite(steps.consumed_samples))
    if len(finite) < 2 or not len(timed.window):
        return steps.consumed_samples[:0]
    index, samples = steps.index[finite], steps.consumed_samples[finite]
    inside = (index[1:] >= begins(timed.window)[0]) & (
        index[1:] <= timed.window.index[-1]
    )
    grown: Floats = (np.diff(samples) / np.diff(index))[inside]
    return grown


def _check_target_tokens(
    timed: Timing, baseline: Baseline
) -> Iterator[tuple[str, int]]:
    """Yield another number of target tokens than a batch has."""
    window, share = timed.window, _compute_target_share(timed.window, baseline)
    if not (share > MORE or share < FULL):
        return
    tokens = window.target_tokens[np.isfinite(window.target_tokens)]
    # Fewer are padding where they change from step to step and the shapes, by tokens/s
    # x step time, are the batch's.
    if (
        share < FULL
        and len(set(tokens.tolist())) > 1
        and _has_same_shapes(window, baseline)
    ):
        return
    wanted = _count_tokens(baseline)
    text = f"total_weights is {tokens.max():g} tokens a step, the baseline has {wanted}: another batch or sequence length"
    yield text, int(window.line[0])


def _compute_target_share(window: Steps, baseline: Baseline) -> float:
    """Return the largest number of target tokens as a share of a step's tokens, NaN
    where the log has none."""
    tokens, wanted = (
        window.target_tokens[np.isfinite(window.target_tokens)],
        _count_tokens(baseline),
    )
    return float(tokens.max()) / wanted if len(tokens) and wanted else float("nan")


def _has_same_shapes(window: Steps, baseline: Baseline) -> bool:
    tokens = window.tokens_per_second_per_gpu * window.seconds * baseline.key.gpus
    finite = tokens[np.isfinite(tokens)]
    return (
        len(finite) > 0
        and abs(compute_median(finite) / _count_tokens(baseline) - 1) <= SHAPES_AGREE
    )


def _count_tokens(baseline: Baseline) -> int:
    return (
        baseline.configuration.architecture.sequence_length
        * baseline.configuration.global_batch_size
    )


def _check_claims(run: Run, baseline: Baseline) -> Iterator[Problem]:
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


def _check_rates(timed: Timing, baseline: Baseline) -> Iterator[Problem]:
    configuration, steps, counted = baseline.configuration, timed.steps, timed.counted
    stated = (
        counted & ~timed.filled
    )  # a time that follows from tokens/s agrees with them whatever they are
    work = steps.tflops_per_gpu[counted] * steps.seconds[counted]
    expected = metric_definitions.compute_tflops_per_gpu(configuration, 1.0) * (
        baseline.logged_tflops_factor or 1.0
    )
    known = baseline.logged_tflops_factor or configuration.logged_tflop
    band = KNOWN_FACTOR_BAND if known else UNKNOWN_FACTOR_BAND
    ratio = _take_median(work) / expected
    if abs(ratio - 1) > band and abs(ratio - 1) > band + _compute_rounding(
        steps, steps.tflops_per_gpu, counted
    ):
        text = (
            f"logged TFLOP/s x step time is {ratio:.3g} x what the baseline's model and batch need: "
            "another batch size, sequence length or number of layers"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)
    tokens = (
        _take_median(steps.tokens_per_second_per_gpu[stated] * steps.seconds[stated])
        * configuration.key.gpus
    )
    wanted = (
        configuration.architecture.sequence_length * configuration.global_batch_size
    )
    apart = abs(tokens / wanted - 1) if wanted and configuration.key.gpus else 0.0
    if apart > TOKENS_BAND and apart > TOKENS_BAND + _compute_rounding(
        steps, steps.tokens_per_second_per_gpu, stated
    ):
        text = (
            f"logged tokens/s x step time is {tokens:.6g} tokens a step on {configuration.key.gpus} GPUs, "
            f"the baseline has {wanted}: another batch size, sequence length or number of GPUs"
        )
        yield Problem(Reason.WRONG_CONFIGURATION, text)


def _find_less_work(
    timed: Timing, baseline: Baseline, rewarded: bool
) -> Iterator[Problem]:
    """Yield steps that hold less work than those of the recorded runs, or than the
    first ones of the window."""
    recorded = baseline.observed
    least = LESS_ANSWERED if rewarded else LESS_THAN_RECORDED
    for name, work in _list_work(timed).items():
        median = compute_median(work)
        share = median / recorded[name] if recorded.get(name) else 1.0
        line = int(timed.window.line[0])
        coarse = _compute_rounding_of(name, timed)
        if share < 1 - max(least, DEVIATIONS * _estimate_error(work), 2 * coarse):
            yield Problem(
                Reason.LESS_WORK, _compare_work(name, median, recorded[name]), line
            )
        elif not rewarded and (text := _describe_drop(work, WORK[name])):
            yield Problem(Reason.LESS_WORK, text, line)


def _compute_rounding_of(name: Observed, timed: Timing) -> float:
    """Return how far work that follows from a printed rate may be off, as a fraction; 0
    for counted work."""
    if name is Observed.TOKENS_BY_RATE:
        return _compute_rounding(
            timed.steps, timed.steps.tokens_per_second_per_gpu, timed.counted
        )
    if name is Observed.SAMPLES_BY_RATE:
        return _compute_rounding(
            timed.steps, timed.steps.samples_per_second, timed.counted
        )
    return 0.0


def _list_work(timed: Timing) -> Mapping[Observed, Floats]:
    """Return the work of the steps of the window, as far as the log counts it."""
    window = timed.window
    if not len(window):
        return {}
    by_rate = (
        timed.steps.tokens_per_second_per_gpu[timed.counted]
        * timed.steps.seconds[timed.counted]
    )
    columns = {
        Observed.SAMPLES_PER_STEP: [
            _count_samples(timed.steps, timed),
            window.global_batch_size,
        ],
        Observed.TOKENS_PER_STEP: [window.step_tokens],
        Observed.TARGETS_PER_STEP: [window.target_tokens],
        Observed.SAMPLES_BY_RATE: [window.samples_per_second * window.seconds],
        Observed.TOKENS_BY_RATE: [by_rate[~timed.filled[timed.counted]]],
    }
    finite = {
        name: [values[np.isfinite(values) & (values > 0)] for values in of]
        for name, of in columns.items()
    }
    return {
        name: present[0]
        for name, of in finite.items()
        if (present := [values for values in of if len(values)])
    }


def _compare_work(name: Observed, work: float, recorded: float) -> str:
    return (
        f"a step holds {work:.6g} {WORK[name]}, one of the recorded runs {recorded:.6g}"
    )


def _estimate_error(work: Floats) -> float:
    """Return the error of a median of the work of steps, by its changes from step to
    step, as a share of it."""
    changes = np.diff(work)
    return (
        float(np.sqrt(np.mean(changes**2) / len(work)) / compute_median(work))
        if len(changes)
        else 0.0
    )


def _describe_drop(work: Floats, unit: str) -> str:
    """Return that steps hold less work in the last third of the window than in its
    first, empty if they do not."""
    third = len(work) // 3
    if len(work) < FEWEST_STEPS:
        return ""
    first, last = compute_median(work[:third]), compute_median(work[-third:])
    if last / first >= 1 - max(LESS_THAN_BEFORE, DEVIATIONS * _estimate_error(work)):
        return ""
    return f"a step holds {first:.6g} {unit} at the beginning of the window, {last:.6g} at its end"


def _compute_rounding(steps: Steps, rates: Floats, which: Flags) -> float:
    """Return how far rate x step time may be off by the digits that are printed of
    both, as a fraction."""
    present = np.isfinite(rates) & (rates > 0)
    printed = rates[present].tolist()
    units = np.array(refine_units(printed, [find_last_unit(rate) for rate in printed]))
    rounding = (units / rates[present])[which[present]]
    return _take_median(rounding) + _take_median(
        steps.resolution_seconds[which] / steps.seconds[which]
    )


def _take_median(values: Floats) -> float:
    """Return the median of the finite values, NaN without any."""
    present = values[np.isfinite(values)]
    return (
        compute_median(present) if len(present) else math.nan
    )  # a comparison with NaN raises no problem
