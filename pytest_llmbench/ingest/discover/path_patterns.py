"""Patterns of the places where the runs of one configuration lie: what changes from night to night is left open.

`#` stands for digits and `*` for any text within a name. A number is left open where it is one of a job, a date, a time
or a run; any other one is kept: it may be that of the GPUs, or the size of the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from pytest_llmbench.ingest.discover.names import strip_compression

_TIME = r"[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?"
_DATE = re.compile(rf"(?<!\d)(?:19|20)\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]+{_TIME})?(?!\d)")
_MONTH = re.compile(rf"(?<![A-Za-z])(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)([0-3]\d[-_]{_TIME})(?!\d)")
# What is counted, with the number behind it; `seed` is not: it may be all that tells two runs of a study apart.
_COUNTED = re.compile(
    r"(?<![a-z])(?:run|job|version|attempt|trial|try|restart|night|day|slurm|jobid|pid)([-_.]?)\d+(?![\da-z])",
    re.IGNORECASE,
)
# A number of a job, or of a node; one of so many digits that letters touch may be a size.
_LONG = re.compile(r"(?<![A-Za-z\d])\d{5,}(?![A-Za-z\d])")
_ROUND = (1000, 1024)
"""What sizes are multiples of: a sequence length, a number of steps."""

_DIGITS = re.compile(r"\d+")
# What a tracker adds behind a time, at random.
_RANDOM = re.compile(r"(?<=#)([-_])(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{8}(?![a-z0-9])")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def generalise(text: str, job_id: str = "") -> str:
    """Return a name with `#` and `*` for what another run of the same configuration may have in its place."""
    text = _UUID.sub("*", text)
    if job_id:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(job_id)}(?![A-Za-z0-9])", "#", text)
    text = _MONTH.sub(lambda match: "*" + _DIGITS.sub("#", match[1]), _DATE.sub(_open_numbers, text))
    text = _COUNTED.sub(_open_numbers, text)
    return _RANDOM.sub(r"\1*", _LONG.sub(_open_unless_round, text))


def _open_unless_round(match: re.Match[str]) -> str:
    number = match[0]
    return number if len(number) < 8 and any(int(number) % unit == 0 for unit in _ROUND) else "#"


def _open_numbers(match: re.Match[str]) -> str:
    return _DIGITS.sub("#", match[0])


def make_pattern(parts: Sequence[str], job_id: str = "") -> str:
    """Return the pattern of a log's path from the names of its folders, outermost first, and its own."""
    *folders, log = parts
    return "/".join(generalise(part, job_id) for part in (*folders, strip_compression(log)))


def matches(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path ends as a pattern says, name by name."""
    names = pattern.split("/")
    if len(names) > len(parts):
        return False
    path = (*parts[:-1], strip_compression(parts[-1]))
    return all(
        _compile(name).fullmatch(part) is not None for name, part in zip(names, path[-len(names) :], strict=True)
    )


@lru_cache(4096)
def _compile(name: str) -> re.Pattern[str]:
    wild = {"#": r"[0-9]+", "*": r".*"}
    return re.compile("".join(wild.get(letter) or re.escape(letter) for letter in name), re.DOTALL)
