"""Files that are not called logs: which of them are looked into, and which hold steps
of a training.

A folder may hold a hundred thousand files of data. What is called as the output of a
job is looked into, of other names that differ in numbers alone a few, and of each file
its beginning, middle and end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.run_records import UnnamedFiles
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.job_folders import NOT_READ

# With fewer steps such a file is an excerpt, or of a run that died at once: it is
# listed.
FEWEST_STEPS = 10

NO_STEP = "not called as a log, and no step in its beginning, middle and end; give the file itself to read it as a log"

# Files of these names are listed whatever they hold.
LISTED = (".txt", ".err")

# Of more files whose names differ in numbers alone so many are looked into, and the
# rest if one of them holds steps.
MANY, FEW = 64, 8

# Files of a folder that are looked into in vain.
MOST_LOOKS = 1000

_NUMBER = re.compile(r"[0-9a-f]{8,}|\d+")


@dataclass(frozen=True, slots=True)
class UnnamedChoice:
    """The names of files that hold steps, and what is left out, with the reason."""

    accepted: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()


class Looker:
    """Looks into files for what the records of steps begin with."""

    def __init__(self, definitions: Iterable[RegexDialect], stores: Stores) -> None:
        """Look for the markers of all dialects, also of those that baseline files
        define."""
        self._stores = stores
        markers = {
            marker for dialect in DIALECTS.values() for marker in dialect.markers
        }
        markers |= {definition.find.encode() for definition in definitions}
        self._markers = tuple(sorted(markers))

    def choose(
        self,
        files: UnnamedFiles,
        *,
        own: Collection[str] = (),
        has_log: bool = False,
        has_log_near: bool = False,
    ) -> UnnamedChoice:
        """Choose the files of a folder that are logs.

        `own` are at the place of a baseline, and logs whatever they hold. `has_log`: a
        log in the folder holds steps; `has_log_near`: also above or below it.
        """
        at_own = frozenset(own)
        others = [name for name in files.names if name not in at_own]
        listed = [
            name
            for name in others
            if names.is_like_log(name) and not name.lower().endswith(LISTED)
        ]
        if has_log:
            return UnnamedChoice(tuple(own), tuple((name, NOT_READ) for name in listed))
        wanted = (
            [name for name in others if names.is_job_output(name)]
            if has_log_near
            else others
        )
        looked: dict[str, bool] = {}

        def holds_steps(name: str) -> bool:
            if name not in looked:
                looked[name] = self.holds_steps(files, name)
            return looked[name]

        found: list[str] = []
        not_looked: dict[str, str] = {}
        kinds = _list_kinds(wanted)
        for place, kind in enumerate(kinds):
            if len(looked) - len(found) >= MOST_LOOKS and not names.is_job_output(
                kind[0]
            ):
                more = sum(map(len, kinds[place:])) - 1
                not_looked[kind[0]] = (
                    f"not looked into, nor {more} more: {MOST_LOOKS} files beside it hold no step"
                )
                break
            found += _search_kind(kind, holds_steps)
        logs, ranks = _leave_out_ranks(_choose_outputs(found, files.names))
        streams = {names.name_paired_stream(name, "stderr") for name in logs}
        taken = {*logs, *streams}
        left = {
            name: NO_STEP if name in looked else NOT_READ
            for name in listed
            if name not in taken
        }
        return UnnamedChoice(
            (*own, *logs), tuple({**left, **ranks, **not_looked}.items())
        )

    def holds_steps(self, files: UnnamedFiles, name: str) -> bool:
        """True if a sample of a text holds what the records of steps begin with; False
        if it cannot be read."""
        try:
            samples = self._stores.read_samples(files.folder / name)
        except LogError:
            return False
        if b"\0" in samples[0]:
            return False
        return any(marker in sample for sample in samples for marker in self._markers)


def _list_kinds(wanted: Sequence[str]) -> list[list[str]]:
    """Return names that differ in numbers alone together, those of jobs' outputs and of
    few files first."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in wanted:
        kinds[_NUMBER.sub("#", name.lower())].append(name)
    return sorted(
        kinds.values(),
        key=lambda kind: (not names.is_job_output(kind[0]), len(kind), kind[0]),
    )


def _search_kind(
    kind: Sequence[str], holds_steps: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the names of one kind whose files hold steps."""
    few = kind[:: max(1, len(kind) // FEW)]
    if names.is_job_output(kind[0]) or len(kind) <= MANY or any(map(holds_steps, few)):
        yield from filter(holds_steps, kind)


def _choose_outputs(found: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return standard output in the place of the standard error of its job: reading
    both shows which is the log."""
    files = set(there)
    outputs = {name: names.name_paired_stream(name, "stdout") for name in found}
    return list(
        dict.fromkeys(
            output if output in files else name for name, output in outputs.items()
        )
    )


def _leave_out_ranks(found: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the files without those of further processes of a run, and these with the
    reason."""
    first: dict[str, tuple[int, str]] = {}
    ranks = {name: rank for name in found if (rank := names.read_rank(name))}
    for name, (shared, number) in ranks.items():
        first[shared] = min(first.get(shared, (number, name)), (number, name))
    further = {
        name: f"another process of the run that {first[shared][1]} logs"
        for name, (shared, _) in ranks.items()
        if first[shared][1] != name
    }
    return [name for name in found if name not in further], further
