"""Parsed logs as bytes: what comes out is what went in, bit for bit, and nothing else is ever taken for it."""

from __future__ import annotations

import dataclasses
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest
from compared import bits
from shared_data import shared

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.models import (
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    Ending,
    EndingCode,
    ParsedLog,
    RegexDialect,
    Unread,
)
from pytest_llmbench.ingest.parse.read import read_ending, read_log
from pytest_llmbench.ingest.reading.codec import pack, unpack

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "experiments"


@pytest.mark.parametrize("root", ["logs", EXAMPLES], ids=["real", "examples"])
def test_real_logs_come_out_as_they_went_in(root: str | Path) -> None:
    """All of them together: each gets its own part of the columns."""
    files = sorted(path for path in (Path(shared("logs")) if root == "logs" else EXAMPLES).rglob("*.out"))
    said = tuple(read(path) for path in files for read in (read_log, read_ending))
    assert sum(len(one.segments) for one in said if isinstance(one, ParsedLog)) > 5
    assert bits(unpack(pack(said))) == bits(said)


def test_everything_that_a_log_can_hold_comes_out() -> None:
    ending = Ending(
        EndingCode.TRACEBACK, "Ü\udcff\x00'", 3, rank="1", beside=Ending(EndingCode.CUT, "", 0), went_on=True
    )
    log = ParsedLog(
        dialect=None,
        segments=(),
        dropped=(DroppedRecords("torn", 2, 1, "é"), DroppedRecords("torn", 2**40, 1, "")),
        ending=ending,
        started=datetime(2025, 6, 1, 1, 2, 3, 456789),  # noqa: DTZ001 (a log says no zone)
        checkpoints=Checkpoints((CheckpointRecord("save", 1, float("inf")), CheckpointRecord("load", 2, 0.1))),
        prints_loss=False,
        unread=(Unread("regex:mine-1", "step"),),
    )
    log = dataclasses.replace(log, readings=(log, dataclasses.replace(log, started=datetime.now(UTC))))
    said = (log, ending, None, LogError("no"), RegexDialect("a", "b", "c"), (("x", True), ()), 2**62, 0.1, "")
    assert bits(unpack(pack(said))) == bits(said)
    assert unpack(pack(())) == ()


def test_nothing_else_is_packed() -> None:
    for value in (object(), (Path(),), (b"bytes",), ({1, 2},)):
        with pytest.raises(TypeError):
            pack(value)


def test_bytes_that_are_none_are_refused() -> None:
    data = pack((read_log(next(EXAMPLES.rglob("*.out"))), "text"))
    foreign = [
        '{"system":["id"]}',
        '{"Ending":[["cut"],["text"]]}',
        '{"Checkpoints":[[[]],[1,2]]}',
        '{"mixed":[[0,0],[["one"]]]}',
        '{"mixed":[[7],[["one"]]]}',
        '{"rows":[["one"],[]]}',
        '{"steps":[0,1],"rows":[]}',
        "[]",
    ]
    made = [f"[{told},[[],[]]]".encode() for told in foreign]
    wrong = [struct.pack("=Q", len(one)) + one for one in made]
    for damaged in (b"", data[:7], data[: len(data) // 2], data[:-1], b"\xff" * 99, *wrong):
        with pytest.raises((LookupError, TypeError, ValueError, struct.error)):
            unpack(damaged)


def test_texts_that_are_names_of_kinds_stay_texts() -> None:
    said = tuple(CheckpointRecord(name, 1, rank=name) for name in ("same", "mixed", "rows", "same"))
    assert bits(unpack(pack(said))) == bits(said)


def test_equal_numbers_of_other_types_are_told_apart() -> None:
    said = tuple((one,) for one in (1, True, 1.0, 0.0, -0.0, False, 0, float("nan"), None, "1", "", ()))
    assert bits(unpack(pack(said))) == bits(said)


def test_what_many_logs_share_is_kept_once() -> None:
    log = read_log(next(EXAMPLES.rglob("*.out")))
    logs = unpack(pack(tuple(dataclasses.replace(log, lines=number) for number in range(9))))
    assert len({id(one.segments) for one in logs}) == 1
    assert len(pack((log,) * 999)) < len(pack((log,))) + 100
