"""Quotes from logs have their own type, and can be changed in all records."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core import log_records as logs
from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ParsedLog,
    Quote,
    Unread,
)

ENDING = Ending(
    EndingCode.NCCL_TIMEOUT,
    Quote("said 1"),
    7,
    beside=Ending(EndingCode.TRACEBACK, Quote("said 2"), 9, rank="rank 3"),
)
LOG = ParsedLog(
    dialect=None,
    segments=(),
    dropped=(
        DroppedRecords(DropReason.TORN, 1, 3, "", Quote("said 3")),
        DroppedRecords(DropReason.REPEATED, 1, 4, "step 3 again: 2 s"),
    ),
    ending=ENDING,
    unread=(
        Unread("regex:mine-1", "ms", 1, 5, Quote("said 4")),
        Unread("regex:mine-1", "ms"),
    ),
)


def test_with_quotes_replaces_quotes_of_a_parsed_log_and_nothing_else() -> None:
    log = replace(LOG, readings=(LOG,))
    changed = log.with_quotes(lambda quote: Quote("hidden"))
    assert "said" not in str(changed)
    assert changed.ending == replace(
        ENDING,
        quote=Quote("hidden"),
        beside=replace(ENDING.beside, quote=Quote("hidden")) if ENDING.beside else None,
    )
    assert [dropped.shown for dropped in changed.dropped] == [
        "hidden",
        "step 3 again: 2 s",
    ]
    assert [unread.quote for unread in changed.readings[0].unread] == [
        "hidden",
        NO_QUOTE,
    ]
    assert replace(log, readings=()).with_quotes(lambda quote: quote) == LOG


def test_only_three_record_classes_contain_quotes() -> None:
    """`with_quotes` must handle every record that contains a quote."""
    records = [
        kind
        for kind in vars(logs).values()
        if isinstance(kind, type) and issubclass(kind, Struct) and kind is not Struct
    ]
    quoting = {
        kind.__name__ for kind in records if "Quote" in kind.__annotations__.values()
    }
    assert quoting == {"Ending", "DroppedRecords", "Unread"}
