"""What a log says of what its run ran on: the versions of driver, libraries and frameworks, and the container."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.ingest.parse.facts import FARTHEST, HEAD
from pytest_llmbench.ingest.parse.scan import REACH_BACK

if TYPE_CHECKING:
    from pytest_llmbench.ingest.parse.scan import Hit

VersionTexts = tuple[str, ...]

_VERSION = rb"(\d{1,5}(?:\.[\w+-]{1,40}){1,7})"
_LINE_ENDS = rb"[ \t]*[\r\n]"
_LINE_BEGINS = HEAD.pattern


class VersionPattern(NamedTuple):
    """One way to say a version: what stands in the line before `marker` and, to the end of the line, behind it.

    The groups of `after` are the values of `names`. A value without the end of its line may be cut, and is none.
    """

    names: VersionTexts
    marker: bytes
    before: re.Pattern[bytes]
    after: re.Pattern[bytes]


def _compile_pattern(names: str, marker: bytes, before: bytes, after: bytes) -> VersionPattern:
    return VersionPattern(tuple(names.split()), marker, re.compile(before), re.compile(after))


# Of several that say one name the first one here counts.
STATEMENTS = (
    _compile_pattern("nccl", b"L version ", rb"(?:%s|[^\r\n]*NCCL INFO )NCC" % _LINE_BEGINS, _VERSION + _LINE_ENDS),
    # DeepSpeed's report, and the `datasets` package of Hugging Face, which may not know the local part
    _compile_pattern("pytorch", b"rch version ", _LINE_BEGINS + b"to", rb"\.{2,60} " + _VERSION + _LINE_ENDS),
    _compile_pattern("pytorch", b"rch version ", rb"[^\r\n]*\bPyTo", _VERSION + rb" available\." + _LINE_ENDS),
    # MaxText
    _compile_pattern("jax", b"Version: ", rb"[^\r\n]*\bSystem Information: Jax ", _VERSION + _LINE_ENDS),
    # nvidia-smi, of which "CUDA Version" is the newest that the driver supports
    _compile_pattern(
        "driver cuda_driver",
        b"Version: ",
        rb"[^\r\n]*\| NVIDIA-SMI [\d.]+ +Driver ",
        _VERSION + rb" +CUDA Version: " + _VERSION + rb" +\|" + _LINE_ENDS,
    ),
    # the greeting of NVIDIA's containers: `25.01 (build 134983853)`, of NeMo's perhaps the build alone
    _compile_pattern(
        "nvidia_release",
        b"NVIDIA Release ",
        _LINE_BEGINS,
        rb"([\w.-]{1,20}(?: \(build \d{1,12}\))?|\(build \d{1,12}\))" + _LINE_ENDS,
    ),
    # Slurm's plugin for containers, when it fetches one
    _compile_pattern(
        "container", b"porting docker image: ", rb"[^\r\n]*\bpyxis: im", rb"([\w.:/@#+-]{1,200})" + _LINE_ENDS
    ),
)

# None begins with a blank: such a marker makes the search of a log half as fast again.
MARKERS = tuple(dict.fromkeys(statement.marker for statement in STATEMENTS))

# The statements at a marker, with their places in STATEMENTS.
_BY_NEEDLE = {
    marker: [(number, each) for number, each in enumerate(STATEMENTS) if each.marker == marker] for marker in MARKERS
}


class Versions:
    """The values of one log. What it says first counts; of a statement that it contradicts later nothing does."""

    def __init__(self) -> None:
        self._values: dict[int, VersionTexts | None] = {}

    def add(self, hit: Hit) -> None:
        """Take what is said at a marker, unless it is so far into the log that another run may say it."""
        if hit.offset >= FARTHEST:
            return
        for number, statement in _BY_NEEDLE[hit.marker]:
            values = _read_values(statement, hit)
            if values and self._values.setdefault(number, values) != values:
                self._values[number] = None

    def result(self) -> tuple[tuple[str, str], ...]:
        """Return names with their values, sorted by name."""
        values: dict[str, str] = {}
        for number, values_of_statement in sorted(self._values.items()):
            for name, value in zip(STATEMENTS[number].names, values_of_statement or (), strict=False):
                values.setdefault(name, value)
        return tuple(sorted(values.items()))


def _read_values(statement: VersionPattern, hit: Hit) -> VersionTexts | None:
    """Return the values at a marker, None where it stands in another sentence or is damaged."""
    prefix = hit.text[max(0, hit.start - REACH_BACK) : hit.start]
    begin = max(prefix.rfind(b"\n"), prefix.rfind(b"\r")) + 1
    match = statement.after.match(hit.text, hit.start + len(statement.marker))
    if match is None or not statement.before.fullmatch(prefix, begin):
        return None
    return tuple(value.decode("ascii") for value in match.groups())
