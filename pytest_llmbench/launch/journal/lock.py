"""A lock on a file that the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError


def take(path: Path) -> int | None:
    """Return an open file that holds the lock until it is closed, None where another has it; LaunchError."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LaunchError(f"{path} cannot be opened: {error.strerror}; see that the folder can be written") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        text = (
            f"{path} cannot be locked: {error.strerror}; start pytest in a folder whose file system has locks and room"
        )
        raise LaunchError(text) from None
    return handle


def is_held(path: Path) -> bool:
    """Whether somebody has the lock; one who takes it in this moment is refused, so ask where nobody can."""
    handle = os.open(path, os.O_RDONLY) if path.exists() else None
    if handle is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def read_holder(path: Path) -> str:
    """Return who took the lock last: `1234 on login1`."""
    return path.read_text(encoding="utf-8", errors="replace").strip() or "unknown"


def release(handle: int | None) -> None:
    """Give a lock back."""
    if handle is not None:
        os.close(handle)
