"""A lock on a file, which the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.userfile import is_there


def acquire_lock(path: Path) -> int | None:
    """Return an open file that holds the lock until it is closed, None where another
    has it; LaunchError."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LaunchError(
            f"{path} cannot be opened: {error.strerror}; see that the folder can be written"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError as error:
        os.close(handle)
        where = "name a folder whose file system has locks and room: --llmb-journal=DIR"
        raise LaunchError(
            f"{path} cannot be locked: {error.strerror}; {where}"
        ) from None
    return handle


def is_locked(path: Path) -> bool:
    """Whether somebody has the lock; one who takes it in this moment is refused, so ask
    where nobody can."""
    handle = os.open(path, os.O_RDONLY) if is_there(path) else None
    if handle is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
