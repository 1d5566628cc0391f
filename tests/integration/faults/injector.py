"""The preloaded library that makes calls fail: building it, and calling it from Python."""

from __future__ import annotations

import ctypes
import errno
import mmap
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("faults.c")
KIND_BYTES, PATH_BYTES, MOST_CALLS, HEAD_BYTES = 16, 240, 60_000, 64
OFF, ONCE, FROM, HALF, COUNT = range(5)

WRITING = ("create", "write", "fsync", "truncate", "mkdir", "rename")
"""What a full disk refuses."""

ERRORS = {
    "open": ("EIO", "EACCES", "EMFILE", "ESTALE"),
    "create": ("ENOSPC", "EACCES", "EMFILE", "EIO"),
    "read": ("EIO", "ESTALE"),
    "write": ("ENOSPC", "EIO"),
    "fsync": ("EIO", "ENOSPC"),
    "truncate": ("EIO",),
    "lock": ("ENOLCK",),
    "stat": ("EIO", "EACCES", "ESTALE"),
    "access": ("EACCES",),
    "readlink": ("EIO",),
    "readdir": ("EIO", "EACCES"),
    "mmap": ("ENOMEM",),
    "close": ("EIO",),
    "rename": ("EIO", "EACCES", "ENOSPC"),
    "unlink": ("EIO", "EACCES"),
    "mkdir": ("ENOSPC", "EACCES"),
    "chmod": ("EACCES",),
}
"""What each kind of call may answer; the first is the likeliest."""


class Call(NamedTuple):
    """A call on a path below the watched folders: `place` is the relative path."""

    kind: str
    path: str
    place: str


class Fault(NamedTuple):
    """A call to fail and its error; a failing allocation has the error ENOMEM."""

    at: int
    mode: int
    error: str
    kinds: tuple[str, ...] = ()

    def describe(self, call: Call | None) -> str:
        """Describe the fault in a few words."""
        how = {ONCE: "once", FROM: "from there on", HALF: "half of it"}[self.mode]
        what = (
            "allocation"
            if self.kinds == ALLOCATIONS
            else f"{call.kind} {call.place}"
            if call
            else "not reached"
        )
        return f"{self.at} {self.error} {how}: {what}"


ALLOCATIONS = ("allocation",)


def build_library(folder: Path) -> Path | None:
    """Compile the library, or return None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "libllmb-faults.so"
    subprocess.run(
        [compiler, "-O2", "-w", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"],
        check=True,
    )
    return library


class Injector:
    """The preloaded library of this process; forked processes share its memory."""

    def __init__(self, watched: Sequence[str]) -> None:
        self._library = ctypes.CDLL(None)
        self._memory = mmap.mmap(
            -1, HEAD_BYTES + (KIND_BYTES + PATH_BYTES) * MOST_CALLS
        )
        self._library.llmb_faults_share(
            ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self._memory)))
        )
        self._library.llmb_faults_disarm.restype = ctypes.c_long
        self._folders = tuple(watched)
        self._watched = "".join(f"{path}\n" for path in watched).encode()

    def arm(self, fault: Fault) -> None:
        """Start counting in this process, and make calls fail."""
        if fault.kinds == ALLOCATIONS:
            last = fault.at + 1 if fault.mode == ONCE else 1 << 62
            self._library.llmb_faults_arm_allocations(
                ctypes.c_long(fault.at), ctypes.c_long(last)
            )
            return
        number = getattr(errno, fault.error, 0)
        kinds = "".join(f"{kind}\n" for kind in fault.kinds).encode()
        self._library.llmb_faults_arm(
            ctypes.c_long(fault.at), fault.mode, number, self._watched, kinds
        )

    def disarm(self) -> int:
        """Stop counting; return the number of allocations."""
        return int(self._library.llmb_faults_disarm())

    def list_calls(self) -> list[Call]:
        """Return the calls since the library was armed, in this process or a forked
        one."""
        count = min(int.from_bytes(self._memory[:8], "little"), MOST_CALLS - 1)
        return [self._read_call(number) for number in range(1, count + 1)]

    def find_struck(self) -> Call | None:
        """Return the first call that failed."""
        number = int.from_bytes(self._memory[8:16], "little")
        return self._read_call(number) if number else None

    def _read_call(self, number: int) -> Call:
        start = HEAD_BYTES + number * (KIND_BYTES + PATH_BYTES)
        kind, path = (
            self._memory[start : start + KIND_BYTES],
            self._memory[start + KIND_BYTES : start + 256],
        )
        text = path.split(b"\0")[0].decode(errors="replace")
        line_number = next(
            (
                text.removeprefix(folder)
                for folder in self._folders
                if text.startswith(folder)
            ),
            text,
        )
        return Call(kind.split(b"\0")[0].decode(), text, line_number)
