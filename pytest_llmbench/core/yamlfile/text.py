"""The text of a file that people write, or what is wrong with it in words."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.core.errors import LlmbenchError

LARGEST_BYTES = 1 << 24
"""Of a file that people write by hand."""


def read_text(path: Path, what: str, most_bytes: int, raises: type[LlmbenchError]) -> str:
    """Return the text of a file, without a byte order mark; `what` it is called in messages.

    Raises `raises` for what cannot be read, is larger than `most_bytes`, a number of MiB, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except OSError as error:
        raise raises(f"{path}: {error.strerror or error}, expected a readable {what}") from error
    if len(data) > most_bytes:
        raise raises(f"{path}: found more than {most_bytes >> 20} MiB, expected a {what}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise raises(f"{path}:{line}: found byte 0x{byte:02x}, expected UTF-8 text") from error


def read_start(path: Path, most_bytes: int) -> bytes:
    """Return the first bytes of a file; none of one that cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(most_bytes)
    except OSError:
        return b""


def read_text_if_file(path: Path, what: str, raises: type[LlmbenchError]) -> str | None:
    """Return the text of a file that a user may have meant; None where there is no file of that name.

    Raises `raises` where there is one that may not be read, or that is no text; `what` names it in the message.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (PermissionError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "not UTF-8")
        raise raises(f"{what}: {why}, expected a file of configurations, one a line") from error
    except OSError:  # no file, a folder, or longer than a name may be
        return None
