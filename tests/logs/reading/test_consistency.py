"""A cached result that cannot come from its log is ignored, even if signed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from msgspec.structs import replace
from support.cached_folders import CachedFolder
from support.log_folders import write_runs

from pytest_llmbench.core.log_records import (
    NO_QUOTE,
    CheckpointAction,
    CheckpointRecord,
    Checkpoints,
    DroppedRecords,
    DropReason,
    Ending,
    EndingCode,
    ParsedLog,
    StatedField,
    Statement,
    Unread,
    replace_columns,
)
from pytest_llmbench.logs.reading.codec import FileReading, FileToRead
from pytest_llmbench.logs.reading.consistency import is_consistent
from pytest_llmbench.logs.reading.file_reader import read_file

Change = Callable[[ParsedLog], Any]


def with_segment(**changes: Any) -> Change:
    return lambda log: replace(log, segments=(replace(log.segments[0], **changes),))


def with_column(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(log: ParsedLog) -> ParsedLog:
        column = np.array(getattr(log.segments[0].steps, name))
        steps = replace_columns(log.segments[0].steps, **{name: change(column)})
        return replace(log, segments=(replace(log.segments[0], steps=steps),))

    return changed


def with_values(**changes: Any) -> Change:
    return lambda log: replace(log, **changes)


def end_at(line: int) -> Ending:
    return Ending(EndingCode.EXITED, NO_QUOTE, line)


FAR = 10**6
CONTRADICTIONS: dict[str, Change] = {
    "no log": lambda _log: None,
    "an ending in place of a log": lambda _log: end_at(3),
    "more lines than bytes": lambda log: replace(log, lines=log.size_bytes + 2),
    "another size": lambda log: replace(log, size_bytes=log.size_bytes + 1),
    "another fingerprint": with_values(fingerprint="1-00000000"),
    "steps without a dialect": with_values(dialect=None),
    "a dialect without steps": with_values(segments=()),
    "a segment behind the end": with_segment(last_line=FAR),
    "a segment before the begin": with_segment(first_line=0),
    "one segment twice": lambda log: replace(log, segments=log.segments * 2),
    "no step": lambda log: with_segment(steps=cut_steps(log, 0))(log),
    "steps behind their segment": with_column("line", lambda line: line + FAR),
    "steps before their segment": with_column("line", lambda line: line - FAR),
    "a step twice": with_column("index", lambda index: np.maximum(index, index[1])),
    "steps backwards": with_column("index", lambda index: index[::-1]),
    "a mean of no steps": with_column("mean_of", lambda mean_of: mean_of * 0),
    "a statement elsewhere": with_segment(
        stated=(Statement(StatedField.GPUS, "8", FAR),)
    ),
    "an ending elsewhere": with_values(ending=end_at(FAR)),
    "what happened beside elsewhere": with_values(
        ending=replace(end_at(1), beside=end_at(-1))
    ),
    "a dropped record elsewhere": with_values(
        dropped=(DroppedRecords(DropReason.TORN, 1, FAR, ""),)
    ),
    "an unread line elsewhere": with_values(unread=(Unread("regex:x", "x", 1, FAR),)),
    "a checkpoint elsewhere": with_values(
        checkpoints=Checkpoints((CheckpointRecord(CheckpointAction.SAVE, FAR),))
    ),
    "a trace elsewhere": with_values(nccl_line=1, nccl_last_line=FAR),
    "a trace that ends before it begins": with_values(nccl_line=2, nccl_last_line=1),
    "a new start elsewhere": with_values(begun_again_line=-1),
    "another reading that contradicts itself": lambda log: replace(
        log, readings=(replace(log, lines=1),)
    ),
}


def cut_steps(log: ParsedLog, count: int) -> Any:
    steps = log.segments[0].steps
    return replace_columns(
        steps,
        **{name: getattr(steps, name)[:count] for name in steps.__dataclass_fields__},
    )


def read(cached_folder: CachedFolder) -> FileReading:
    return read_file(
        FileToRead(str(cached_folder.logs[1]), is_log=True), (), with_state=True
    )


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> FileReading:
    (log,) = write_runs(tmp_path_factory.mktemp("runs"), 1)
    return read_file(FileToRead(str(log), is_log=True), (), with_state=True)


def test_cache_entry_of_an_unchanged_log_passes_the_consistency_check(
    reading: FileReading,
) -> None:
    for readings in ((), (cast("ParsedLog", reading.result),)):
        log = replace(
            cast("ParsedLog", reading.result), readings=readings, ending=end_at(1)
        )
        assert is_consistent(reading._replace(result=log))
    error = FileToRead(reading.file.path, is_log=False)
    assert is_consistent(FileReading(error, None, reading.state))
    assert is_consistent(FileReading(error, end_at(4), reading.state))
    assert not is_consistent(FileReading(error, reading.result, reading.state))
    assert not is_consistent(FileReading(error, end_at(-4), reading.state))
    assert not is_consistent(reading._replace(state=None))


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_parsed_log_with_contradicting_fields_fails_the_consistency_check(
    reading: FileReading, change: Change
) -> None:
    log = cast("ParsedLog", reading.result)
    assert is_consistent(reading)
    assert not is_consistent(reading._replace(result=change(log)))


@pytest.mark.slow
def test_log_with_an_inconsistent_cache_entry_is_read_again(
    cached_folder: CachedFolder,
) -> None:
    """The entry is signed with the key."""
    reading = read(cached_folder)
    cached_folder.again()
    cached_folder.forge([reading._replace(result=end_at(3))])
    assert cached_folder.again() == sorted(cached_folder.logs)
    assert cached_folder.again() == []


@pytest.mark.slow
def test_cache_entry_of_another_log_is_ignored(cached_folder: CachedFolder) -> None:
    """The entry is copied to this log's name, without and with this log's digest. In
    the latter case the sizes differ."""
    other, own = (
        read(cached_folder),
        FileToRead(str(cached_folder.logs[0]), is_log=True),
    )
    cached_folder.logs[1].write_bytes(
        cached_folder.logs[1].read_bytes() + b"a line more\n"
    )
    longer = read(cached_folder)
    assert is_consistent(longer)
    state = read_file(own, (), with_state=True).state
    for entry in (
        other._replace(file=own),
        longer._replace(file=own),
        longer._replace(file=own, state=state),
    ):
        cached_folder.again()
        cached_folder.forge([entry])
        assert cached_folder.again() == sorted(cached_folder.logs)
