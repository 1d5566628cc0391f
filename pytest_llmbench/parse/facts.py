"""What a log says once, besides its steps: when it started, and the first line of a trace or a checkpoint."""

from __future__ import annotations

import re
from datetime import datetime

from pytest_llmbench.parse.scan import Hit, Window

NCCL_OPERATION = b": opCount "
CHECKPOINT_LOAD = b"Global Checkpoint Load"
CHECKPOINT_SAVE = b"Global Checkpoint Save"
NEEDLES = (NCCL_OPERATION, CHECKPOINT_LOAD, CHECKPOINT_SAVE)

BEFORE = {NCCL_OPERATION: re.compile(rb"NCCL INFO \w{1,40}\Z")}
BEFORE_LENGTH = 64

TIMESTAMP = re.compile(rb"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?")
TIMESTAMP_LENGTH = 26


def confirms(hit: Hit) -> bool:
    """Tell whether a needle of this module stands where it means what it says."""
    pattern = BEFORE.get(hit.needle)
    return pattern is None or bool(pattern.search(hit.text[max(0, hit.start - BEFORE_LENGTH) : hit.start]))


def first_timestamp(window: Window) -> datetime | None:
    """Return the first timestamp that begins in the new part of a window, as printed: without a time zone."""
    limit = min(window.stop + TIMESTAMP_LENGTH, len(window.text))
    for match in TIMESTAMP.finditer(window.text, window.start, limit):
        if match.start() >= window.stop:
            break
        try:
            return datetime.fromisoformat(match[0].decode("ascii"))
        except ValueError:
            continue  # digits that are no date
    return None
