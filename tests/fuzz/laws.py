"""Laws for all targets: only this project's errors, with a location, and well-typed
records."""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from enum import Enum
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pytest_llmbench.cli.main import main
from pytest_llmbench.core.errors import LaunchError, LlmbenchError, SettingsError


class Finding(Exception):  # noqa: N818 (it is what a fuzzer looks for, not something that goes wrong)
    """An input violates a law."""


def require(holds: object, problem: str) -> None:
    """Raise Finding if a law is violated."""
    if not holds:
        raise Finding(problem)


@contextmanager
def refusals(*errors: type[LlmbenchError], naming: str) -> Iterator[None]:
    """Accept errors of these types if they name the file and are printable."""
    try:
        yield
    except errors as error:
        require(naming in str(error), "a message that does not name the file")
        if not isinstance(error, SettingsError | LaunchError):  # escaped when printed
            require_printable(str(error), "a message")


def require_printable(text: str, what: str) -> None:
    """Raise Finding for a text with control characters, or that cannot be encoded."""
    require(
        all(line.isprintable() for line in text.split("\n")),
        f"{what} that cannot be printed",
    )


def call(*arguments: object, naming: str) -> str:
    """Run `llmbench` and return its output, "" if it refused the input and named the
    file."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    if code == 2:
        require(
            err.getvalue().startswith("llmbench: ") and naming in err.getvalue(),
            "a refusal without the file",
        )
        require_printable(err.getvalue(), "a refusal")
        return ""
    require(code in (0, 1), f"exit code {code}")
    require_printable(err.getvalue(), "what stands beside the output")
    return out.getvalue()


# --- files ----------------------------------------------------------------------------


MEMORY = "/dev/shm"  # noqa: S108 (folders of unknown names)


@cache
def find_home() -> Path:
    """Return a folder of this process, in memory if possible: databases wait for disks
    often."""
    here = tempfile.tempdir or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=here))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def empty_folder() -> Iterator[Path]:
    """Provide an empty folder, always at the same path, so that caches by path are
    filled once."""
    folder = find_home() / "any"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def written(name: str, data: bytes) -> Iterator[Path]:
    """Write an input to the empty folder."""
    with empty_folder() as folder:
        path = folder / name
        path.write_bytes(data)
        yield path


def make_path(folder: Path, name: bytes) -> Path | None:
    """Create the file that a path of arbitrary bytes names, or return None if
    impossible."""
    pieces = [
        piece
        for piece in name.split(b"/")
        if piece not in (b"", b".", b"..") and b"\0" not in piece
    ][:12]
    if not pieces or any(len(piece) > 255 for piece in pieces):
        return None
    path = folder.joinpath(
        *(piece.decode("utf-8", "surrogateescape") for piece in pieces)
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError:  # another file is in the way
        return None
    return None if path.is_dir() else path


# --- types ----------------------------------------------------------------------------


def require_types(value: object, hint: Any) -> None:
    """Raise Finding if a record contains a value of an undeclared type."""
    if problem := find_misfit(value, hint):
        raise Finding(f"of another type: {problem}")


def find_misfit(value: object, hint: Any, place: str = "") -> str:
    """Describe the first value that does not match its declared type, or return ""."""
    hint = getattr(hint, "__supertype__", hint)
    origin, pieces = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return (
            ""
            if not all(find_misfit(value, piece, place) for piece in pieces)
            else _tell(value, place)
        )
    if origin is Literal:
        return "" if value in pieces else _tell(value, place)
    if hint in _PLAIN:
        return "" if type(value) in _PLAIN[hint] else _tell(value, place)
    kind = origin or hint
    if not isinstance(kind, type) or issubclass(kind, Enum) or kind is Callable:  # type: ignore[comparison-overlap]
        return (
            ""
            if not isinstance(kind, type) or isinstance(value, kind)
            else _tell(value, place)
        )
    if not isinstance(value, kind):
        return _tell(value, place)
    return next(
        (problem for problem in _find_inside(value, pieces, place) if problem), ""
    )


_PLAIN: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
    None: (NoneType,),
}


def _tell(value: object, place: str) -> str:
    return f"{place or 'value'} is of {type(value).__name__}"


def _find_inside(value: object, parts: tuple[Any, ...], place: str) -> Iterator[str]:
    if _list_names(type(value)):
        kind: Any = type(value)
        for name, hint in _list_fields(kind).items():
            yield find_misfit(
                getattr(value, name), hint, f"{type(value).__name__}.{name}"
            )
    elif isinstance(value, tuple) and parts:
        same = len(parts) == 2 and parts[1] is ...
        if not same and len(parts) != len(value):
            yield f"{place} has {len(value)} parts"
        hints = [parts[0]] * len(value) if same else parts
        yield from (
            find_misfit(piece, hint, place)
            for piece, hint in zip(value, hints, strict=False)
        )
    elif isinstance(value, Mapping) and len(parts) == 2:
        yield from (
            find_misfit(name, parts[0], place) or find_misfit(piece, parts[1], place)
            for name, piece in value.items()
        )
    elif (
        isinstance(value, Collection) and len(parts) == 1 and not isinstance(value, str)
    ):
        yield from (find_misfit(piece, parts[0], place) for piece in value)


@cache
def _list_fields(kind: Any) -> Mapping[str, Any]:
    """Return the types of a record's fields, empty if some are imported for type
    checkers only."""
    try:
        hints = get_type_hints(kind)
    except NameError:
        return {}
    return {name: hints[name] for name in _list_names(kind)}


def _list_names(kind: Any) -> Sequence[str]:
    """Return the field names of a record type, empty for another type."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    names = getattr(kind, "__struct_fields__", None) or getattr(kind, "_fields", ())
    return cast("Sequence[str]", names)
