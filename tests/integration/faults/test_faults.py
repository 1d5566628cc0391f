"""Sessions with failing calls give no wrong verdict, lose no data, and end with a
message.

See tests/fuzz/README.md.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")

pytestmark = [
    pytest.mark.skipif(
        not (shutil.which("cc") or shutil.which("gcc")),
        reason="no C compiler (cc or gcc)",
    ),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc", reason="the library wraps the calls of glibc"
    ),
]

ONCE_WRONG = [
    *(
        "stat state/l.xml",
        "create state/j.xml",
        "stat logs/packed.tar.gz",
        "close logs/packed.tar.gz",
    ),
    *("rename state/p.html", "fsync state/history.db", "create state/summary.md"),
]
RECORDED = [
    "stat state/recorded/llama3.1/25.04.yaml",
    "fsync state/recorded",
    "rename state/recorded",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("session", "calls"),
    [("night", ONCE_WRONG), ("record", RECORDED)],
    ids=["a night", "a recording"],
)
def test_failed_system_call_has_only_allowed_effects_on_a_session(
    session: str, calls: list[str]
) -> None:
    only = [argument for call in calls for argument in ("--only", call)]
    process = subprocess.run(
        [sys.executable, RUN, session, "--jobs", "1", "--most", "10", *only],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    assert "10 points, 0 wrong" in process.stdout
