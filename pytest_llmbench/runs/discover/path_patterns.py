"""Patterns of the paths of one configuration's runs, open where daily runs differ.

`#` matches digits and `*` any text within a name. A number is replaced if it is a job
id, a date or a time, or counts runs (`version_3`). Other numbers are kept, because they
may be a number of GPUs or a size of the model.
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
# Words before a job number, and words that count runs: Lightning's `version_3`,
# MLPerf's `result_2.txt`. `trial` and `seed` are excluded: they distinguish the
# configurations of a study. If only such a number distinguishes configurations, their
# runs match one pattern, and recording them fails if their times disagree.
_OF_JOB = re.compile(
    r"(?<![a-z])(?:job|jobid|slurm|pid|night|day)[-_.]?\d+(?![\da-z])", re.IGNORECASE
)
_OF_RUN = re.compile(
    r"(?<![a-z])(?:run|version|result|attempt|restart)[-_.]?\d+(?![\da-z])",
    re.IGNORECASE,
)
# A number of a job or node, not adjacent to letters: `70b` may be a size.
_LONG = re.compile(r"(?<![A-Za-z\d])\d{6,}(?![A-Za-z\d])")
_ROUND = (64, 1000)
"""Divisors of sizes: a vocabulary, a sequence length, a number of steps.

Numbers of eight or more digits are never sizes.
"""

# A shorter job number, in names of files and folders. Sizes of that length are round or
# adjacent to a word; 72 GPUs are a rack.
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
"""Words that mark an adjacent number as part of the configuration."""

# digits of seconds, milliseconds and nanoseconds since 1970: a submission time
_EPOCH_DIGITS = (10, 13, 19)
# path components that may contain the job number: the log and two folders
NEAREST = 3
_WORD_BEFORE = re.compile(r"([A-Za-z]+)[-_.=]*\Z")
_WORD_AFTER = re.compile(r"[-_.]*([A-Za-z]+)")
_DIGITS = re.compile(r"\d+")
# Random characters that experiment trackers append to a time.
_RANDOM = re.compile(r"(?<=#)([-_])(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{8}(?![a-z0-9])")
# The job number in the output names of PBS and Grid Engine.
_OUTPUT = re.compile(r"(?<=\.[oe])\d+(?:[.-]\d+)?\Z")
_EVENTS = "events.out.tfevents."
# torchrun's `--log-dir` contains a folder for each launch, with a random suffix and
# with `attempt_0/<rank>/` in it.
_LAUNCH = re.compile(r"(.*_)[a-z0-9_]{8}", re.DOTALL)
_ATTEMPT = re.compile(r"attempt_\d+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def generalise(text: str, job_id: str = "") -> str:
    """Replace the parts of a name that differ between runs by `#` and `*`."""
    text = _OUTPUT.sub(_replace_numbers, _UUID.sub("*", text))
    if job_id:
        text = re.sub(
            rf"(?<![A-Za-z0-9]){re.escape(job_id)}(?![A-Za-z0-9])",
            _replace_numbers,
            text,
        )
    text = _MONTH.sub(
        lambda match: "*" + _DIGITS.sub("#", match[1]),
        _DATE.sub(_replace_numbers, text),
    )
    text = _OF_RUN.sub(_replace_numbers, _OF_JOB.sub(_replace_numbers, text))
    return _RANDOM.sub(r"\1*", _LONG.sub(_replace_unless_round, text))


def _replace_unless_round(match: re.Match[str]) -> str:
    number = match[0]
    return (
        number
        if len(number) < 8 and any(int(number) % unit == 0 for unit in _ROUND)
        else "#"
    )


def _generalise_name(name: str, job_id: str) -> str:
    """Generalise a file or folder name, including short job numbers."""
    return _SHORT.sub(_replace_unless_size, generalise(name, job_id))


def _replace_unless_size(match: re.Match[str]) -> str:
    word_before = _WORD_BEFORE.search(match.string, 0, match.start())
    word_after = _WORD_AFTER.match(match.string, match.end())
    adjacent_words = {word[1].lower() for word in (word_before, word_after) if word}
    is_size = any(
        int(match[0]) % unit == 0 for unit in _SHORT_ROUND
    ) or not adjacent_words.isdisjoint(_SIZE_WORDS)
    return match[0] if is_size else "#"


def _replace_numbers(match: re.Match[str]) -> str:
    return _DIGITS.sub("#", match[0])


def find_job_number(parts: Sequence[str]) -> str:
    """Return the number in a run's path that may be its job id, or "".

    Searches the log's name, then its folders from the nearest on. The first name with
    candidates decides: "" if it contains several.
    """
    for name in reversed(parts[-NEAREST:]):
        undated = _MONTH.sub(
            "#", _DATE.sub("#", _UUID.sub("*", strip_compression(name)))
        )
        long_numbers = [
            match
            for match in _LONG.finditer(undated)
            if len(match[0]) not in _EPOCH_DIGITS
        ]
        numbers = [
            match[0] for match in long_numbers if _replace_unless_round(match) == "#"
        ]
        numbers += [
            match[0]
            for match in _SHORT.finditer(undated)
            if _replace_unless_size(match) == "#"
        ]
        if numbers:
            return numbers[0] if len(numbers) == 1 else ""
    return ""


def make_pattern(parts: Sequence[str], job_id: str = "") -> str:
    """Return the pattern of a log's path.

    `parts` are its folders, outermost first, and its name.
    """
    *folders, log = parts
    # In a folder name, a number equal to a short job id may be the number of GPUs.
    folder_job_id = job_id if len(job_id) >= CERTAIN_DIGITS else ""
    launches = [
        _ATTEMPT.fullmatch(next_part) and _LAUNCH.fullmatch(part)
        for part, next_part in pairwise((*folders, ""))
    ]
    folder_patterns = [
        _generalise_name(launch[1], folder_job_id) + "*"
        if launch
        else _generalise_name(part, folder_job_id)
        for part, launch in zip(folders, launches, strict=True)
    ]
    plain_name = strip_compression(log)
    # Node and process follow the time in the name of an event file.
    name = (
        f"{_EVENTS}*"
        if plain_name.startswith(_EVENTS)
        else _generalise_name(plain_name, job_id)
    )
    return "/".join((*folder_patterns, name))


def matches(pattern: str, parts: Sequence[str]) -> bool:
    """True if the last components of a path match a pattern, name by name."""
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
    wildcards = {"#": r"[0-9]+", "*": r".*"}
    return re.compile(
        "".join(wildcards.get(character) or re.escape(character) for character in name),
        re.DOTALL,
    )
