"""Patterns of the places where the runs of one configuration lie: what changes from
night to night is left open.

`#` stands for digits and `*` for any text within a name. A number is left open if it is
one of a job, a date or a time, or counts runs (`version_3`); any other number is kept:
it may be that of the GPUs, or a size of the model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from pytest_llmbench.runs.discover.evidence import CERTAIN_DIGITS
from pytest_llmbench.runs.discover.names import strip_compression

_TIME = r"[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?"
_DATE = re.compile(
    rf"(?<!\d)(?:19|20)\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]+{_TIME})?(?!\d)"
)
_MONTH = re.compile(
    rf"(?<![A-Za-z])(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)([0-3]\d[-_]{_TIME})(?!\d)"
)
# Words with the number of a job, and words that count runs: Lightning's `version_3`,
# MLPerf's `result_2.txt`. `trial` and `seed` are not among them: they distinguish the
# configurations of a study. Runs of several configurations that such a number alone
# distinguishes are one place, and a recording refuses them if their times disagree.
_OF_JOB = re.compile(
    r"(?<![a-z])(?:job|jobid|slurm|pid|night|day)[-_.]?\d+(?![\da-z])", re.IGNORECASE
)
_OF_RUN = re.compile(
    r"(?<![a-z])(?:run|version|result|attempt|restart)[-_.]?\d+(?![\da-z])",
    re.IGNORECASE,
)
# A number of a job, or of a node; one that letters touch may be a size.
_LONG = re.compile(r"(?<![A-Za-z\d])\d{6,}(?![A-Za-z\d])")
_ROUND = (64, 1000)
"""What sizes are multiples of: a vocabulary, a sequence length, a number of steps. Of
eight digits on it is no size."""

# A shorter number of a job, in names of files and folders. Sizes of that length are
# round, too, or have a word beside them; 72 GPUs are a rack.
_SHORT = re.compile(r"(?<![A-Za-z\d])(?<!\d\.)\d{4,5}(?![A-Za-z\d])")
_SHORT_ROUND = (64, 72, 100)
_SIZE_WORDS = frozenset(
    (
        *(
            "gpu",
            "gpus",
            "node",
            "nodes",
            "rank",
            "world",
            "tp",
            "pp",
            "cp",
            "ep",
            "dp",
            "vp",
            "fsdp",
            "top",
            "topk",
        ),
        *(
            "bs",
            "bsz",
            "gbs",
            "mbs",
            "ga",
            "batch",
            "batchsize",
            "seq",
            "seqlen",
            "sequence",
            "ctx",
            "context",
            "len",
        ),
        *(
            "length",
            "token",
            "tokens",
            "vocab",
            "hidden",
            "dim",
            "ffn",
            "embd",
            "layer",
            "layers",
            "head",
            "heads",
        ),
        *(
            "expert",
            "experts",
            "step",
            "steps",
            "iter",
            "iters",
            "epoch",
            "epochs",
            "sample",
            "samples",
            "warmup",
        ),
        *(
            "seed",
            "trial",
            "lr",
            "port",
            "hz",
            "mhz",
            "watt",
            "b",
            "m",
            "k",
            "param",
            "params",
        ),
    )
)
"""Words beside a number that is one of a configuration."""

_EPOCH_DIGITS = (
    10,
    13,
    19,
)  # seconds, milliseconds and nanoseconds since 1970: the time of a submission
# the names of a path that may hold the number of a job: that of the log, and of two
# folders
NEAREST = 3
_WORD_BEFORE = re.compile(r"([A-Za-z]+)[-_.=]*\Z")
_WORD_AFTER = re.compile(r"[-_.]*([A-Za-z]+)")
_DIGITS = re.compile(r"\d+")
# What a tracker adds behind a time, at random.
_RANDOM = re.compile(r"(?<=#)([-_])(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{8}(?![a-z0-9])")
# The number of the job in what PBS and Grid Engine call its output.
_OUTPUT = re.compile(r"(?<=\.[oe])\d+(?:[.-]\d+)?\Z")
_EVENTS = "events.out.tfevents."
# torchrun's `--log-dir` holds a folder of each launch, whose name ends at random, with
# `attempt_0/<rank>/` in it.
_LAUNCH = re.compile(r"(.*_)[a-z0-9_]{8}", re.DOTALL)
_ATTEMPT = re.compile(r"attempt_\d+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def generalise(text: str, job_id: str = "") -> str:
    """Return a name with `#` and `*` for what another run of the same configuration may
    have in its place."""
    text = _OUTPUT.sub(_open_numbers, _UUID.sub("*", text))
    if job_id:
        text = re.sub(
            rf"(?<![A-Za-z0-9]){re.escape(job_id)}(?![A-Za-z0-9])", _open_numbers, text
        )
    text = _MONTH.sub(
        lambda match: "*" + _DIGITS.sub("#", match[1]), _DATE.sub(_open_numbers, text)
    )
    text = _OF_RUN.sub(_open_numbers, _OF_JOB.sub(_open_numbers, text))
    return _RANDOM.sub(r"\1*", _LONG.sub(_open_unless_round, text))


def _open_unless_round(match: re.Match[str]) -> str:
    number = match[0]
    return (
        number
        if len(number) < 8 and any(int(number) % unit == 0 for unit in _ROUND)
        else "#"
    )


def _generalise_name(name: str, job_id: str) -> str:
    """Return the name of a file or folder generalised, with `#` for a short number of a
    job, too."""
    return _SHORT.sub(_open_unless_size, generalise(name, job_id))


def _open_unless_size(match: re.Match[str]) -> str:
    before, after = (
        _WORD_BEFORE.search(match.string, 0, match.start()),
        _WORD_AFTER.match(match.string, match.end()),
    )
    beside = {word[1].lower() for word in (before, after) if word}
    is_size = any(
        int(match[0]) % unit == 0 for unit in _SHORT_ROUND
    ) or not beside.isdisjoint(_SIZE_WORDS)
    return match[0] if is_size else "#"


def _open_numbers(match: re.Match[str]) -> str:
    return _DIGITS.sub("#", match[0])


def find_job_number(parts: Sequence[str]) -> str:
    """Return the number that may be that of a run's job: the only one of its kind in
    the name of its log, else of the nearest folder; "" without one."""
    for name in reversed(parts[-NEAREST:]):
        undated = _MONTH.sub(
            "#", _DATE.sub("#", _UUID.sub("*", strip_compression(name)))
        )
        long = [
            match
            for match in _LONG.finditer(undated)
            if len(match[0]) not in _EPOCH_DIGITS
        ]
        numbers = [match[0] for match in long if _open_unless_round(match) == "#"]
        numbers += [
            match[0]
            for match in _SHORT.finditer(undated)
            if _open_unless_size(match) == "#"
        ]
        if numbers:
            return numbers[0] if len(numbers) == 1 else ""
    return ""


def make_pattern(parts: Sequence[str], job_id: str = "") -> str:
    """Return the pattern of a log's path from the names of its folders, outermost
    first, and its own."""
    *folders, log = parts
    # A short number of a job may be that of the GPUs in the name of a folder.
    of_folders = job_id if len(job_id) >= CERTAIN_DIGITS else ""
    launches = [
        _ATTEMPT.fullmatch(below) and _LAUNCH.fullmatch(part)
        for part, below in pairwise((*folders, ""))
    ]
    opened = [
        _generalise_name(launch[1], of_folders) + "*"
        if launch
        else _generalise_name(part, of_folders)
        for part, launch in zip(folders, launches, strict=True)
    ]
    plain = strip_compression(log)
    # Behind the time stand the node and the process.
    name = (
        f"{_EVENTS}*" if plain.startswith(_EVENTS) else _generalise_name(plain, job_id)
    )
    return "/".join((*opened, name))


def matches(pattern: str, parts: Sequence[str]) -> bool:
    """Whether a path ends as a pattern says, name by name."""
    names = pattern.split("/")
    if len(names) > len(parts):
        return False
    path = (*parts[:-1], strip_compression(parts[-1]))
    return all(
        _compile(name).fullmatch(part) is not None
        for name, part in zip(names, path[-len(names) :], strict=True)
    )


@lru_cache(4096)
def _compile(name: str) -> re.Pattern[str]:
    wild = {"#": r"[0-9]+", "*": r".*"}
    return re.compile(
        "".join(wild.get(letter) or re.escape(letter) for letter in name), re.DOTALL
    )
