"""Standard input: read once, to its end, into memory or a file without a name."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from weakref import WeakKeyDictionary, finalize

from pytest_llmbench.core.errors import LogError, SettingsError

# The path under which it is known.
PATH = Path("<stdin>")

BLOCK = 1 << 20
# Bytes that are kept in memory; more go to a temporary file that the system removes with the process.
IN_MEMORY = 1 << 26

SpooledInput = tempfile.SpooledTemporaryFile[bytes]

# What streams held that cannot be read twice: a session that judges twice reads them once.
_READ: WeakKeyDictionary[BinaryIO, SpooledInput | LogError] = WeakKeyDictionary()


def check_input(flag: str, source: object) -> Path:
    """Return PATH if something is piped into standard input; SettingsError where nothing can be."""
    if source is None or not hasattr(source, "buffer"):
        raise SettingsError(f"{flag}=- reads standard input, and there is none: pipe a log or an archive into it")
    if getattr(source, "isatty", bool)():
        raise SettingsError(f"{flag}=- reads standard input, which is a terminal: pipe a log or an archive into it")
    return PATH


def read_blocks(source: BinaryIO | None = None) -> Iterator[bytes]:
    """Yield all bytes of a stream, by default of standard input, however often it is asked for them.

    LogError where they cannot be read or kept, then and ever after: what is left of them is no log.
    """
    stream = source or getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise LogError("cannot read standard input: there is none")
    if stream not in _READ:
        _READ[stream] = _copy(stream)
    copy = _READ[stream]
    if isinstance(copy, LogError):
        raise copy
    copy.seek(0)
    while block := copy.read(BLOCK):
        yield block


def _copy(source: BinaryIO) -> SpooledInput | LogError:
    copy: SpooledInput = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
    finalize(source, copy.close)
    try:
        while block := source.read(BLOCK):
            copy.write(block)
    except (OSError, ValueError) as error:
        copy.close()
        return LogError(f"cannot read standard input: {error}")
    return copy
