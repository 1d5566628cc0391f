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

from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.runs.discover.evidence import CERTAIN_DIGITS
from pytest_llmbench.runs.discover.names import strip_compression

# `0312`, `03:12`, `03-12-45`
_TIME = r"[0-2]\d[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?"
# `2026-03-02`, `20260302_0312`
_DATE = compile_on_use(
    rf"(?<!\d)(?:19|20)\d\d([-_.]?)[01]\d\1[0-3]\d(?:[-_T. ]+{_TIME})?(?!\d)"
)
# `Mar02_03-12-45` (TensorBoard); a host name may follow
_MONTH = compile_on_use(
    rf"(?<![A-Za-z])(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)([0-3]\d[-_]{_TIME})(?!\d)"
)
# Words before a job number, and words that count runs: Lightning's `version_3`,
# MLPerf's `result_2.txt`. `trial` and `seed` are excluded: they distinguish the
# configurations of a study. If only such a number distinguishes configurations, their
# runs match one pattern, and recording them fails if their times disagree.
_OF_JOB = compile_on_use(
    r"(?<![a-z])(?:job|jobid|slurm|pid|night|day)[-_.]?\d+(?![\da-z])", re.IGNORECASE
)
_OF_RUN = compile_on_use(
    r"(?<![a-z])(?:run|version|result|attempt|restart)[-_.]?\d+(?![\da-z])",
    re.IGNORECASE,
)
# A number of a job or node, not adjacent to letters: `70b` may be a size.
_LONG = compile_on_use(r"(?<![A-Za-z\d])\d{6,}(?![A-Za-z\d])")
_ROUND = (64, 1000)
"""Divisors of sizes: a vocabulary, a sequence length, a number of steps."""

_NEVER_SIZE_DIGITS = 8
"""Numbers of this many or more digits are never sizes."""

# A shorter job number, in names of files and folders. Sizes of that length are round or
# adjacent to a word; 72 GPUs are a rack.
_SHORT = compile_on_use(r"(?<![A-Za-z\d])(?<!\d\.)\d{4,5}(?![A-Za-z\d])")
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
_WORD_BEFORE = compile_on_use(r"([A-Za-z]+)[-_.=]*\Z")
_WORD_AFTER = compile_on_use(r"[-_.]*([A-Za-z]+)")
_DIGITS = compile_on_use(r"\d+")
# Random characters that experiment trackers append to a time.
_RANDOM = compile_on_use(r"(?<=#)([-_])(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{8}(?![a-z0-9])")
# The job number in the output names of PBS and Grid Engine.
_OUTPUT = compile_on_use(r"(?<=\.[oe])\d+(?:[.-]\d+)?\Z")
_EVENTS = "events.out.tfevents."
# torchrun's `--log-dir` contains a folder for each launch, with a random suffix and
# with `attempt_0/<rank>/` in it.
# `none_x3k9q2ab` before `attempt_0`
_LAUNCH = compile_on_use(r"(.*_)[a-z0-9_]{8}", re.DOTALL)
_ATTEMPT = compile_on_use(r"attempt_\d+")
_UUID = compile_on_use(r"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def generalise(text: str, job_id: str = "") -> str:
    """Replace the parts of a name that differ between daily runs by `#` and `*`.

    These are job numbers, dates, times, counters and random characters.
    `llama3_70b_2026-03-02_1234567.log` becomes `llama3_70b_#-#-#_#.log`. `job_id` is
    replaced even if it is short.
    """
    text = _UUID.sub("*", text)
    text = _OUTPUT.sub(_replace_numbers, text)
    if job_id:
        separate_job_id = rf"(?<![A-Za-z0-9]){re.escape(job_id)}(?![A-Za-z0-9])"
        text = re.sub(separate_job_id, _replace_numbers, text)
    text = _DATE.sub(_replace_numbers, text)
    # the name of the month is text: `Mar02_03-12` becomes `*#_#-#`
    text = _MONTH.sub(lambda match: f"*{_DIGITS.sub('#', match[1])}", text)
    text = _OF_JOB.sub(_replace_numbers, text)
    text = _OF_RUN.sub(_replace_numbers, text)
    text = _LONG.sub(_replace_unless_round, text)
    return _RANDOM.sub(r"\1*", text)


def _replace_unless_round(match: re.Match[str]) -> str:
    """Return `#` for a matched number, or the number itself if it may be a size.

    A size has fewer than eight digits and is divisible by 64 or 1000.
    """
    number = match[0]
    may_be_size = len(number) < _NEVER_SIZE_DIGITS and any(
        int(number) % divisor == 0 for divisor in _ROUND
    )
    return number if may_be_size else "#"


def _generalise_name(name: str, job_id: str) -> str:
    """Replace dates and job numbers in a file or folder name by `#`.

    Like `generalise`, but also replaces numbers of four or five digits, such as `12345`
    in `train-12345.log`, unless they may be sizes.
    """
    return _SHORT.sub(_replace_unless_size, generalise(name, job_id))


def _replace_unless_size(match: re.Match[str]) -> str:
    """Return `#` for a matched short number, or the number itself if it may be a size.

    A size is round (`4096`), or adjacent to a word for a size: `seq_8193`,
    `1025-steps`.
    """
    word_before = _WORD_BEFORE.search(match.string, 0, match.start())
    word_after = _WORD_AFTER.match(match.string, match.end())
    adjacent_words = {word[1].lower() for word in (word_before, word_after) if word}
    number = match[0]
    is_round = any(int(number) % divisor == 0 for divisor in _SHORT_ROUND)
    is_named = not adjacent_words.isdisjoint(_SIZE_WORDS)
    return number if is_round or is_named else "#"


def _replace_numbers(match: re.Match[str]) -> str:
    """Replace each number in a match by `#`."""
    return _DIGITS.sub("#", match[0])


def find_job_number(parts: Sequence[str]) -> str:
    """Return the number in a run's path that may be its job id, or "".

    Searches the log's name, then its folders from the nearest on. The first name with
    candidates decides: "" if it contains several.
    """
    for name in reversed(parts[-NEAREST:]):
        undated = _UUID.sub("*", strip_compression(name))
        undated = _DATE.sub("#", undated)
        undated = _MONTH.sub("#", undated)
        candidates: list[str] = []
        for match in _LONG.finditer(undated):
            is_time = len(match[0]) in _EPOCH_DIGITS
            if not is_time and _replace_unless_round(match) == "#":
                candidates.append(match[0])
        for match in _SHORT.finditer(undated):
            if _replace_unless_size(match) == "#":
                candidates.append(match[0])
        if candidates:
            return candidates[0] if len(candidates) == 1 else ""
    return ""


def make_pattern(parts: Sequence[str], job_id: str = "") -> str:
    """Return the pattern of a log's path.

    `parts` are its folders, outermost first, and its name. `runs/12345/train.log`
    becomes `runs/#/train.log`.
    """
    *folders, log = parts
    # In a folder name, a number equal to a short job id may be the number of GPUs.
    folder_job_id = job_id if len(job_id) >= CERTAIN_DIGITS else ""
    patterns: list[str] = []
    for folder, next_folder in pairwise((*folders, "")):
        # torchrun's folder of a launch, before `attempt_0`, has a random suffix
        launch = _LAUNCH.fullmatch(folder) if _ATTEMPT.fullmatch(next_folder) else None
        if launch:
            patterns.append(f"{_generalise_name(launch[1], folder_job_id)}*")
        else:
            patterns.append(_generalise_name(folder, folder_job_id))
    plain_name = strip_compression(log)
    if plain_name.startswith(_EVENTS):
        # Node and process follow the time in the name of an event file.
        patterns.append(f"{_EVENTS}*")
    else:
        patterns.append(_generalise_name(plain_name, job_id))
    return "/".join(patterns)


def matches(pattern: str, parts: Sequence[str]) -> bool:
    """True if the last components of a path match a pattern, name by name."""
    name_patterns = pattern.split("/")
    if len(name_patterns) > len(parts):
        return False
    *folders, log = parts
    path = (*folders, strip_compression(log))
    last_names = path[-len(name_patterns) :]
    return all(
        _compile(name_pattern).fullmatch(name) is not None
        for name_pattern, name in zip(name_patterns, last_names, strict=True)
    )


@lru_cache(4096)
def _compile(name_pattern: str) -> re.Pattern[str]:
    """Compile the pattern of one name: `#` is a number, `*` any text."""
    wildcards = {"#": r"[0-9]+", "*": r".*"}
    expressions = [
        wildcards.get(character) or re.escape(character) for character in name_pattern
    ]
    return re.compile("".join(expressions), re.DOTALL)
