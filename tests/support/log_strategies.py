"""Generated logs of every dialect, together with the expected parsing result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import NamedTuple

from generator import lines
from hypothesis import strategies as st

STARTED = datetime(2026, 5, 4, 6, 5, 54, 392000)  # noqa: DTZ001 (logs name no zone)
TOTAL = 4000

NOISE = (
    "",
    "[NeMo I 2026-05-04 06:05:54 nemo_logging:393] a line of another module",
    "validate step: 13000  loss:  5.97670  memory: 28.18GiB(89.87%)",
    "Completed eval after train step 500",
    " validation loss at iteration 2500 | lm loss value: 5.976700E+00 | lm loss PPL: 3.9E+02 |",
    "[Rank 0] (after 100 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5",
    "  loading checkpoint, starting from iteration 8000",
    "Config param base_emb_dim: 8192",
    "W0307 22:33:45.123456 1204 api.py:793] a warning: of several words | with a bar",
    "AssertionError: Training epoch must be a number",
)


class Step(NamedTuple):
    """The expected values of one step. `printed` is a text that occurs only on the line
    of its record."""

    step: int
    seconds: float
    loss: float | None
    printed: str


class Value(NamedTuple):
    """The measured values of one step, before printing. `ended` is the time at which
    the step ended."""

    step: int
    seconds: float
    loss: float
    ended: datetime


Pairs = frozenset[tuple[int | None, float]]


@dataclass(frozen=True, slots=True)
class Written:
    """A log and its expected contents.

    `lines` include their line ends. `truth` has the steps of each run, for the rank
    that counts. `times` and `losses` are all (step, value) pairs that a reader may
    return if lines are lost; the step is None if the lines do not print step numbers.
    """

    dialect: str
    lines: tuple[bytes, ...]
    truth: tuple[tuple[Step, ...], ...]
    times: Pairs
    losses: Pairs

    @property
    def data(self) -> bytes:
        """The whole log."""
        return b"".join(self.lines)


@dataclass(frozen=True, slots=True)
class Framework:
    """The log format of one framework.

    `text` formats a step (given the previous step), and `printed_step` returns the
    values that this text contains. `numbered` is True if lines contain the step number.
    `start` is the first line that a process prints, "" if readers know none. `prefixes`
    are alternative line prefixes of one or several ranks. `first` are possible first
    step numbers. If lines are lost, `fallback` returns the values that may be read
    instead, and `gaps` the (step, seconds) pairs that may result.
    """

    dialect: str
    text: Callable[[Value, Value | None], str]
    printed_step: Callable[[Value, Value | None], Step]
    numbered: bool = True
    start: str = ""
    prefixes: tuple[tuple[str, ...], ...] = (
        ("",),
        ("0: ",),
        ("9: [default3]:",),
        ("0: ", "1: "),
        ("[rank0]:", "[rank4]:"),
    )
    first: tuple[int, ...] = (0, 1, 12)
    fallback: Callable[[Value, Value | None], Step] | None = None
    gaps: Callable[[Sequence[Value]], Iterator[tuple[int, float]]] = field(
        default=lambda run: iter(())
    )


def _bar(now: Value, shown: Value | None) -> str:
    """Format a progress bar after step `now` that shows the values of step `shown`.

    The first stale bar shows no values.
    """
    values = {}
    if shown is not None:
        values = {
            "reduced_train_loss": shown.loss,
            "global_step": float(shown.step),
            "consumed_samples": (shown.step + 1) * 512.0,
            "train_step_timing in s": shown.seconds,
        }
    return lines.nemo1_bar(now.step + 1, TOTAL, 79.9, 718.0, values)


def _nemo1(now: Value, before: Value | None) -> str:
    return f"{_bar(now, before)}\n{_bar(now, now)}\n"


def _nemo1_step(now: Value, _before: Value | None) -> Step:
    time = lines.bar_number(now.seconds)
    return Step(
        now.step,
        float(time),
        float(lines.bar_number(now.loss)),
        f"train_step_timing in s={time}]",
    )


def _dll(now: Value, before: Value | None) -> str:
    values = {
        "reduced_train_loss": now.loss,
        "lr": 0.0,
        "global_step": float(now.step),
        "consumed_samples": (now.step + 1) * 512.0,
        "train_step_timing in s": now.seconds,
        "epoch": 0,
    }
    record = lines.dllogger_record(now.ended, now.step, values)
    return f"{_bar(now, before)}\r{_bar(now, now)}{record}\n"


def _dll_step(now: Value, _before: Value | None) -> Step:
    return Step(
        now.step, now.seconds, now.loss, f" train_step_timing in s : {now.seconds} "
    )


def _nemo2(now: Value, _before: Value | None) -> str:
    values = {
        "lr": 7.496e-06,
        "global_batch_size": 128,
        "global_step": now.step,
        "reduced_train_loss": now.loss,
        "train_step_timing in s": now.seconds,
    }
    return (
        lines.nemo2_line(
            now.step,
            TOTAL,
            values | ({"consumed_samples": 128 * now.step} if now.step else {}),
        )
        + "\n"
    )


def _nemo2_step(now: Value, _before: Value | None) -> Step:
    time = lines.nemo2_number(now.seconds)
    return Step(
        now.step,
        float(time),
        float(lines.nemo2_number(now.loss)),
        f"train_step_timing in s: {time}",
    )


def _maxtext(now: Value, _before: Value | None) -> str:
    line = lines.maxtext_line(
        now.step,
        now.seconds,
        tflops=460.48,
        tokens_per_second=1035.97,
        total_weights=524288,
        loss=now.loss,
    )
    return line + "\n"


def _maxtext_step(now: Value, _before: Value | None) -> Step:
    return Step(now.step, now.seconds, now.loss, f"seconds: {now.seconds:.3f},")


def _megatron(now: Value, _before: Value | None) -> str:
    line = lines.megatron_line(
        now.ended, now.step, TOTAL, now.seconds, batch=128, tflops=64.9, loss=now.loss
    )
    return line + "\n"


def _megatron_step(now: Value, _before: Value | None) -> Step:
    return Step(now.step, now.seconds, now.loss, f"(ms): {now.seconds * 1000:.1f} |")


def _step_time(now: Value, _before: Value | None) -> str:
    return lines.step_time_line(now.seconds, 528.1) + "\n"


def _step_time_step(now: Value, _before: Value | None) -> Step:
    return Step(
        now.step, round(now.seconds, 2), None, f"Step Time : {now.seconds:.2f}s"
    )


def _titan(now: Value, _before: Value | None) -> str:
    line = lines.torchtitan_line(
        now.ended,
        now.step,
        loss=now.loss,
        tokens_per_second=2110 / now.seconds,
        tflops=12.83,
    )
    return line + "\n"


def _titan_step(now: Value, before: Value | None) -> Step:
    seconds = math.nan if before is None else now.seconds
    return Step(now.step, seconds, now.loss, f"step: {now.step:2}  ")


def _titan_gaps(run: Sequence[Value]) -> Iterator[tuple[int, float]]:
    """Yield the time per step between every pair of lines.

    The reader divides the time since the previous line by the number of steps.
    """
    for index, late in enumerate(run):
        for early in run[:index]:
            yield (
                late.step,
                (late.ended - early.ended).total_seconds() / (late.step - early.step),
            )


def _paxml(now: Value, _before: Value | None) -> str:
    return lines.paxml_line(now.seconds) + "\n"


def _paxml_step(now: Value, _before: Value | None) -> Step:
    return Step(
        now.step, round(now.seconds, 2), None, f"took {now.seconds:.2f} seconds."
    )


def _metrics(now: Value, _before: Value | None) -> str:
    values = {"lm loss": now.loss, "iteration-time": now.seconds}
    return "".join(
        lines.metric_line(now.ended, now.step, TOTAL, value, name) + "\n"
        for name, value in values.items()
    )


def _metrics_step(now: Value, _before: Value | None) -> Step:
    return Step(now.step, now.seconds, now.loss, f" {now.seconds!r} iteration-time")


def _trainer(now: Value, _before: Value | None) -> str:
    return (
        lines.trainer_record(
            now.step, TOTAL, (now.ended - STARTED).total_seconds(), now.loss
        )
        + "\n"
    )


def _trainer_step(now: Value, before: Value | None) -> Step:
    seconds = (
        math.nan
        if before is None
        else float(_elapsed_seconds(now) - _elapsed_seconds(before)) or math.nan
    )
    return Step(now.step, seconds, now.loss, f'"current_steps": {now.step}, ')


def _trainer_gaps(run: Sequence[Value]) -> Iterator[tuple[int, float]]:
    for index, late in enumerate(run):
        for early in run[:index]:
            yield (
                late.step,
                (_elapsed_seconds(late) - _elapsed_seconds(early))
                / (late.step - early.step),
            )
        yield late.step, _elapsed_seconds(late) / late.step


def _elapsed_seconds(value: Value) -> int:
    return int((value.ended - STARTED).total_seconds())


def _mlperf(now: Value, _before: Value | None) -> str:
    return lines.mlperf_step(now.step, now.seconds, now.loss, 768) + "\n"


def _mlperf_step(now: Value, _before: Value | None) -> Step:
    return Step(now.step, now.seconds, now.loss, f'"train_step_time": {now.seconds}, ')


NEMO_START = "restart_count=1"

FRAMEWORKS = {
    "nemo1": Framework("nemo1", _nemo1, _nemo1_step, start=NEMO_START, first=(0, 1, 12, 985, 1990)),
    "nemo1-dllogger": Framework("nemo1", _dll, _dll_step, start=NEMO_START, fallback=_nemo1_step),
    "nemo2": Framework("nemo2", _nemo2, _nemo2_step, start=NEMO_START, first=(0, 1, 12, 1990)),
    "maxtext": Framework("maxtext", _maxtext, _maxtext_step, start="Config param steps: 4000"),
    "megatron": Framework("megatron", _megatron, _megatron_step, first=(1, 12, 1990)),
    "megatron-step-time": Framework(
        "megatron", _step_time, _step_time_step, numbered=False, prefixes=(("",), ("0: ",)), first=(1,)
    ),
    "torchtitan": Framework(
        "torchtitan", _titan, _titan_step, prefixes=(("",), ("[rank0]:", "[rank4]:")), first=(1, 12, 1990),
        gaps=_titan_gaps,
    ),
    "paxml": Framework("paxml", _paxml, _paxml_step, numbered=False, prefixes=(("",), ("0: ",)), first=(0,)),
    "trainer": Framework(
        "trainer",
        _trainer,
        _trainer_step,
        start="***** Running training *****",
        prefixes=(("",), ("0: ",)),  # only the first process writes records
        first=(3, 12),
        gaps=_trainer_gaps,
    ),
    "metrics": Framework("metrics", _metrics, _metrics_step, prefixes=(("",),), first=(1, 12, 1990)),
    "mlperf": Framework("mlperf", _mlperf, _mlperf_step, start=lines.mlperf_record("run_start", None)),
}  # fmt: skip


SUMMARIES = "huggingface"
NAMES = (*FRAMEWORKS, SUMMARIES)

GAPS = ("torchtitan", "trainer")
"""Dialects whose times are gaps between lines. A restart cannot be detected if the
lines around it are lost."""
ROUNDED = ("nemo1", "nemo1-dllogger")
"""Dialects whose bars round step numbers from 995 on. If most of the second prints are
lost, stale bars cannot be recognised."""


@st.composite
def written(draw: st.DrawFn, name: str, *, lines_get_lost: bool = False) -> Written:
    """Draw a log of one to three runs with four to nine steps each.

    The runs have one or two ranks and are surrounded by other lines. With
    `lines_get_lost`, the log has only as many runs and rounded steps as its reader can
    still distinguish after losing lines.
    """
    one_run = lines_get_lost and name in GAPS
    if name == SUMMARIES:
        return summaries(
            draw(st.integers(1, 1 if one_run else 3)), draw(st.integers(0, 2**16))
        )
    framework = FRAMEWORKS[name]
    runs = 1 if one_run or not framework.numbered else draw(st.integers(1, 3))
    return write(
        framework,
        first=draw(
            st.sampled_from(
                [
                    number
                    for number in framework.first
                    if not (lines_get_lost and name in ROUNDED and number > 990)
                ]
            )
        ),
        lengths=draw(st.lists(st.integers(4, 9), min_size=runs, max_size=runs)),
        prefixes=draw(st.sampled_from(framework.prefixes)),
        starts=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


def write(
    framework: Framework,
    *,
    first: int,
    lengths: Sequence[int],
    prefixes: Sequence[str],
    starts: bool,
    seed: int,
) -> Written:
    """Write a log of runs that all begin with step `first`.

    The values and the lines between records are drawn from `seed`.
    """
    random = Random(seed)
    clock = STARTED
    text: list[str] = []
    truth = []
    times: set[tuple[int | None, float]] = set()
    losses: set[tuple[int | None, float]] = set()
    for length in lengths:
        if starts and framework.start:
            text.append(framework.start)
        run = _run(first, length, clock, random)
        clock = run[-1].ended + timedelta(minutes=3)
        other_ranks = [_run(first, length, run[0].ended, random) for _ in prefixes[1:]]
        values_of_ranks = [run, *other_ranks]
        truth.append(tuple(framework.printed_step(*pair) for pair in _pairs(run)))
        for values in values_of_ranks:
            printed_steps = [
                get_step(*pair)
                for get_step in (framework.printed_step, framework.fallback)
                if get_step
                for pair in _pairs(values)
            ]
            times |= {
                (step.step if framework.numbered else None, step.seconds)
                for step in printed_steps
            }.union(framework.gaps(values))
            losses |= {
                (step.step, step.loss)
                for step in printed_steps
                if step.loss is not None
            }
        for pairs in zip(*(_pairs(values) for values in values_of_ranks), strict=True):
            text += [
                _with_prefix(prefix, framework.text(*pair))
                for prefix, pair in zip(prefixes, pairs, strict=True)
            ]
            text += random.choices(NOISE, k=random.randrange(3))
    data = "".join(
        line if line.endswith("\n") else f"{line}\n" for line in text
    ).encode()
    return Written(
        framework.dialect,
        tuple(data.splitlines(keepends=True)),
        tuple(truth),
        frozenset(times),
        frozenset(losses),
    )


def summaries(runs: int, seed: int) -> Written:
    """Write a log of Hugging Face trainers that print only a summary.

    Each run has a single line with a single step record.
    """
    random = Random(seed)
    text: list[str] = []
    truth = []
    for steps in random.sample(range(20, 500), runs):
        runtime = steps * random.randrange(150, 1900) / 1000
        loss = random.randrange(100, 1300) / 100
        printed = lines.huggingface_summary(
            runtime, 32 * steps / runtime, steps / runtime, loss
        )
        text += [
            *random.choices(NOISE, k=3),
            printed,
            *random.choices(NOISE, k=random.randrange(3)),
        ]
        seconds = float(f"{runtime:.4f}") / steps
        truth.append((Step(steps, seconds, loss, printed),))
    all_steps = [step for run in truth for step in run]
    return Written(
        SUMMARIES,
        tuple(f"{line}\n".encode() for line in text),
        tuple(truth),
        frozenset((step.step, step.seconds) for step in all_steps),
        frozenset(
            (step.step, step.loss) for step in all_steps if step.loss is not None
        ),
    )


def _with_prefix(prefix: str, text: str) -> str:
    return "".join(prefix + part for part in text.splitlines(keepends=True))


def _run(first: int, length: int, clock: datetime, random: Random) -> list[Value]:
    """Draw the values of a run. No time (in ms) and no loss (in hundredths) occurs
    twice."""
    values = []
    milliseconds = random.sample(range(150, 99_999), length)
    losses = random.sample(range(100, 1300), length)
    for step, time, loss in zip(
        range(first, first + length), milliseconds, losses, strict=True
    ):
        clock += timedelta(milliseconds=time)
        values.append(Value(step, time / 1000, loss / 100, clock))
    return values


def _pairs(values: Sequence[Value]) -> list[tuple[Value, Value | None]]:
    return list(zip(values, [None, *values[:-1]], strict=True))
