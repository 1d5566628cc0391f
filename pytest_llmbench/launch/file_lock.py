"""File locks that the kernel releases when the process dies."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.userfile import path_exists


def acquire_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, or None if another process holds the lock.

    Creates the file, and writes the process into it: `4711 on login1`. Closing the
    descriptor releases the lock. Raises LaunchError if the file cannot be
    opened or locked.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise LaunchError(
            f"cannot open {path}: {error.strerror}. Make its folder writable"
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
        remedy = "Choose a folder whose file system supports locks and has free space: --llmb-journal=DIR"
        raise LaunchError(f"cannot lock {path}: {error.strerror}. {remedy}") from None
    return handle


def is_locked(path: Path) -> bool:
    """True if a process holds the lock.

    Acquires a shared lock for a moment. Another process that tries to acquire the lock
    in that moment is refused, so call this only while no other process can try.
    """
    if not path_exists(path):
        return False
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released by close
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
