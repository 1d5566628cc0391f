"""The dialects of training logs: what to look for, and where each one's parser lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import cast

from pytest_llmbench.core.dialects import FIRST_STEP
from pytest_llmbench.ingest.parse import uniform
from pytest_llmbench.ingest.parse.dropped import Tally
from pytest_llmbench.ingest.parse.records import RecordOrigin, StepRecord, Torn, Unmatched
from pytest_llmbench.ingest.parse.scan import Hit

Reader = Callable[[bytes, int, int, RecordOrigin], StepRecord | Torn | None]
Settler = Callable[[Sequence[StepRecord], Tally], list[StepRecord]]
Joiner = Settler
Timer = Callable[[Sequence[StepRecord]], list[StepRecord]]
Taker = Callable[[Hit, str], Sequence[StepRecord | Torn | Unmatched]]
"""Reads what belongs to a marker, with the rank of the line; several records where they were glued."""

Columnar = uniform.ColumnReader | None

NO_TOTAL = rb"(?!)"


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing steps.

    markers: a record begins with one of them. reader: "module:function" that reads the record, loaded on use. columns:
    "module:function" that reads all records of a log at once where they are alike, as `uniform.Reader`.
    starts: printed when a process starts, so that later steps are of another attempt. ends: printed after the last
    step. total: a regular expression for the number of steps that a start says. joiner: "module:function" that makes
    one of several records of a step, in the order of the log, before ranks are told apart. settler: "module:function"
    that makes steps of one rank certain which only the neighbours tell. timer: "module:function" that says of the steps
    of one attempt, each once and in their order, what only the others tell of their times. ends_divide: whether a step
    after an end is of another attempt; not so where every rank prints the end, each when it gets there. prints_loss:
    whether a step that prints no loss lacks one.
    """

    markers: tuple[bytes, ...]
    reader: str
    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    total: bytes = NO_TOTAL
    joiner: str = ""
    settler: str = ""
    timer: str = ""
    ends_divide: bool = True
    prints_loss: bool = True
    columns: str = ""


NEMO_STARTS = (b"Copying Trainer's 'max_steps'", b"restart_count=")
NEMO_ENDS = (b"`Trainer.fit` stopped: `max_steps=", b"`Trainer.fit` stopped: `max_epochs=")

SEPARATORS = (b"train_samples_per_second",)
"""Starts that stand in a record itself, so that the next record is of another run."""

DIALECTS = {
    "nemo1": Dialect(
        markers=(b"Epoch ", b"DLL "),
        reader="pytest_llmbench.ingest.parse.dialects.nemo1:read_step",
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
        settler="pytest_llmbench.ingest.parse.dialects.nemo1:settle",
        columns="pytest_llmbench.ingest.parse.dialects.nemo1:read_columns",
    ),
    "nemo2": Dialect(
        markers=(b"Training epoch ",),
        reader="pytest_llmbench.ingest.parse.dialects.nemo2:read_step",
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
        columns="pytest_llmbench.ingest.parse.dialects.nemo2:read_columns",
    ),
    "maxtext": Dialect(
        markers=(b"completed step",),  # without the colon, before which a colour may end
        reader="pytest_llmbench.ingest.parse.dialects.maxtext:read_step",
        starts=(b"Config param steps: ",),
        total=rb"Config param steps: (\d{1,15})[ \t]*[\r\n]",
        settler="pytest_llmbench.ingest.parse.dialects.maxtext:settle",
        timer="pytest_llmbench.ingest.parse.dialects.maxtext:time_steps",
        columns="pytest_llmbench.ingest.parse.dialects.maxtext:read_columns",
    ),
    "megatron": Dialect(
        markers=(b"iteration  ", b"iteration (", b"Step Time : "),  # with two blanks: NeMo 2 has one, in every step
        reader="pytest_llmbench.ingest.parse.dialects.megatron:read_step",
        starts=(
            b"-------------------- arguments --------------------",  # Megatron's has more dashes
            b"time to initialize megatron (seconds): ",
            b"> building train, validation, and test datasets ...",
        ),
        ends=(b"[after training is done] datetime: ", b"[exiting program at iteration "),
        joiner="pytest_llmbench.ingest.parse.dialects.megatron:join",
        timer="pytest_llmbench.ingest.parse.dialects.megatron:time_steps",
        ends_divide=False,
    ),
    "torchtitan": Dialect(
        markers=(b"tps: ",),
        reader="pytest_llmbench.ingest.parse.dialects.torchtitan:read_step",
        starts=(b"Trainer is initialized with local batch size ", b"Training starts at step "),
        ends=(b"Training completed",),
        total=rb"Train(?:er|ing) [^\r\n]{1,400}?, total steps (\d{1,15}) \(",
        settler="pytest_llmbench.ingest.parse.dialects.torchtitan:settle",
        timer="pytest_llmbench.ingest.parse.dialects.torchtitan:time_steps",
        ends_divide=False,
    ),
    "paxml": Dialect(
        markers=(
            b"train_step() took ",
            b"initial global_step=",
            b"Starting training loop",
            b"step_i: ",
            b"Elapsed time for <_main>",
        ),
        reader="pytest_llmbench.ingest.parse.dialects.paxml:read_step",
        starts=(b"initial global_step=", b"Starting training loop"),
        ends=(b"E2E time: Elapsed time for <_main>",),
        settler="pytest_llmbench.ingest.parse.dialects.paxml:settle",
        ends_divide=False,
        prints_loss=False,
    ),
    "huggingface": Dialect(
        markers=(
            b"'train_runtime': ",
            b'"train_runtime": ',
            b"Continuing training from global step ",
            b"'learning_rate': ",
        ),
        reader="pytest_llmbench.ingest.parse.dialects.trainer:read_step",
        starts=(b"***** Running training *****", *SEPARATORS),
        joiner="pytest_llmbench.ingest.parse.dialects.trainer:join",
    ),
}


@dataclass(frozen=True, slots=True)
class Grammar:
    """A dialect with all its functions, those that it has none of filled in."""

    dialect: Dialect
    take: Taker
    join: Joiner
    settle: Settler
    time_steps: Timer
    first_step: int
    read_columns: Columnar = None


@cache
def grammar(name: str) -> Grammar:
    """Return a built-in dialect with its functions loaded."""
    dialect = DIALECTS[name]
    read = cast(Reader, _load(dialect.reader))

    def take(hit: Hit, rank: str) -> Sequence[StepRecord | Torn]:
        record = read(hit.text, hit.start, hit.end, RecordOrigin(hit.offset, hit.line, rank))
        return () if record is None else (record,)

    return Grammar(
        dialect,
        take,
        join=cast(Joiner, _load(dialect.joiner, _as_they_are)),
        settle=cast(Settler, _load(dialect.settler, _as_they_are)),
        time_steps=cast(Timer, _load(dialect.timer, list)),
        first_step=FIRST_STEP[name],
        read_columns=cast(Columnar, _load(dialect.columns, None)),
    )


def _load(place: str, default: object = None) -> object:
    module, _, function = place.partition(":")
    return getattr(import_module(module), function) if place else default


def _as_they_are(records: Sequence[StepRecord], _tally: Tally) -> list[StepRecord]:
    return list(records)
