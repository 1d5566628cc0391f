"""The dialects of training logs: what to look for, and where each one's parser lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from pytest_llmbench.parse.dropped import Tally
from pytest_llmbench.parse.records import Origin, StepRecord, Torn

Reader = Callable[[bytes, int, int, Origin], StepRecord | Torn | None]
Settler = Callable[[Sequence[StepRecord], Tally], list[StepRecord]]
Joiner = Callable[[Sequence[StepRecord], Tally], list[StepRecord]]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way of writing steps.

    needles: a record begins with one of them. reader: "module:function" that reads the record, loaded on use.
    starts: printed when a process starts, so that later steps are of another attempt. ends: printed after the last
    step. total: a regular expression for the number of steps that a start says. joiner: "module:function" that makes
    one of several records of a step, in the order of the log, before ranks are told apart. settler: "module:function"
    that makes steps of one rank certain which only the neighbours tell.
    """

    needles: tuple[bytes, ...]
    reader: str
    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()
    total: bytes = rb"(?!)"
    joiner: str = ""
    settler: str = ""


NEMO_STARTS = (b"Copying Trainer's 'max_steps'", b"restart_count=")
NEMO_ENDS = (b"`Trainer.fit` stopped: `max_steps=", b"`Trainer.fit` stopped: `max_epochs=")

DIALECTS = {
    "nemo1": Dialect(
        needles=(b"Epoch ", b"DLL "),
        reader="pytest_llmbench.parse.nemo1:read_step",
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
        settler="pytest_llmbench.parse.nemo1:settle",
    ),
    "nemo2": Dialect(
        needles=(b"Training epoch ",),
        reader="pytest_llmbench.parse.nemo2:read_step",
        starts=NEMO_STARTS,
        ends=NEMO_ENDS,
    ),
    "maxtext": Dialect(
        needles=(b"completed step: ",),
        reader="pytest_llmbench.parse.maxtext:read_step",
        starts=(b"Config param steps: ",),
        total=rb"Config param steps: (\d{1,15})[ \t]*[\r\n]",
    ),
    "megatron": Dialect(
        needles=(b"elapsed time per iteration", b"Step Time : "),
        reader="pytest_llmbench.parse.megatron:read_step",
        joiner="pytest_llmbench.parse.megatron:join",
        settler="pytest_llmbench.parse.megatron:settle",
    ),
    "torchtitan": Dialect(
        needles=(b"tps: ",),
        reader="pytest_llmbench.parse.torchtitan:read_step",
        settler="pytest_llmbench.parse.torchtitan:settle",
    ),
    "paxml": Dialect(
        needles=(b"train_step() took ",),
        reader="pytest_llmbench.parse.paxml:read_step",
        settler="pytest_llmbench.parse.paxml:settle",
    ),
    "huggingface": Dialect(
        needles=(b"'train_runtime': ", b'"train_runtime": '),
        reader="pytest_llmbench.parse.huggingface:read_step",
    ),
}


def load_reader(name: str) -> Reader:
    """Return the function that reads a record of a dialect."""
    return cast(Reader, _load(DIALECTS[name].reader))


def load_joiner(name: str) -> Joiner:
    """Return the function that puts records of one step together."""
    joiner = DIALECTS[name].joiner
    return cast(Joiner, _load(joiner)) if joiner else _settled


def load_settler(name: str) -> Settler:
    """Return the function that makes a dialect's steps certain."""
    settler = DIALECTS[name].settler
    return cast(Settler, _load(settler)) if settler else _settled


def _load(place: str) -> object:
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)


def _settled(records: Sequence[StepRecord], _tally: Tally) -> list[StepRecord]:
    return list(records)
