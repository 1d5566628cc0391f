"""Find logs among the files that are not named like logs.

A folder may contain a hundred thousand data files. All files named like job output are
examined. If other names differ only in numbers, a few of them are examined. Only
samples of a file are read: its beginning, middle and end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import UnnamedFiles
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.runs.discover import names
from pytest_llmbench.runs.discover.job_folders import NOT_READ

# A file with fewer steps is an excerpt, or its run died at once: it is only listed.
FEWEST_STEPS = 10

NO_STEP = "not named like a log, and no training step in samples of it; give the file's own path to read it"

# Files with these suffixes are never reported as ignored.
UNREPORTED = (".txt", ".err")

# Of more than MANY files whose names differ only in numbers, about FEW are examined,
# and all of them if one contains steps.
MANY, FEW = 64, 8

# Limit of files without steps to examine in a folder.
MOST_EXAMINED = 1000

_NUMBER = compile_on_use(r"[0-9a-f]{8,}|\d+")


class UnnamedChoice(Struct, frozen=True):
    """The names of the files that contain steps, and the ignored ones with reasons."""

    accepted: tuple[str, ...] = ()
    ignored: tuple[tuple[str, str], ...] = ()


class LogDetector:
    """Detects logs by the markers with which step records begin."""

    def __init__(self, definitions: Iterable[RegexDialect], stores: Stores) -> None:
        """Collect the markers of all dialects, including `definitions` of baseline
        files."""
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
        at_baseline_path: Collection[str] = (),
        has_log: bool = False,
        has_log_near: bool = False,
    ) -> UnnamedChoice:
        """Choose the files of a folder that are logs.

        `at_baseline_path` contains the files that match the path of a baseline; they
        are always chosen. `has_log` is true if the folder contains a log with steps:
        no other file is chosen. `has_log_near` is true if a parent folder or subfolder
        contains such a log: only files named like job output are examined.
        """
        baseline_files = frozenset(at_baseline_path)
        others = [name for name in files.names if name not in baseline_files]
        reportable = [
            name
            for name in others
            if names.has_log_word(name) and not name.lower().endswith(UNREPORTED)
        ]
        if has_log:  # choose only the files of baselines
            return UnnamedChoice(
                tuple(at_baseline_path), tuple((name, NOT_READ) for name in reportable)
            )
        to_examine = (
            [name for name in others if names.is_job_output(name)]
            if has_log_near
            else others
        )
        examined: dict[str, bool] = {}

        def contains_steps(name: str) -> bool:
            """True if a file contains steps; remembers the result in `examined`."""
            if name not in examined:
                examined[name] = self.contains_steps(files, name)
            return examined[name]

        logs_found: list[str] = []
        not_examined: dict[str, str] = {}
        # a kind is a group of names that differ only in numbers
        kinds = _list_kinds(to_examine)
        for index, kind in enumerate(kinds):
            without_steps = len(examined) - len(logs_found)
            if without_steps >= MOST_EXAMINED and not names.is_job_output(kind[0]):
                remaining = sum(map(len, kinds[index:])) - 1
                not_examined[kind[0]] = (
                    f"not examined, like {remaining} more: {MOST_EXAMINED} files in this folder contain no step"
                )
                break
            logs_found += _find_logs_of_kind(kind, contains_steps)
        logs, ranks = _drop_further_ranks(_choose_outputs(logs_found, files.names))
        # standard error is read together with its log, so it is not ignored
        streams = {names.name_paired_stream(name, "stderr") for name in logs}
        used = {*logs, *streams}
        ignored = {
            name: NO_STEP if name in examined else NOT_READ
            for name in reportable
            if name not in used
        }
        return UnnamedChoice(
            (*at_baseline_path, *logs),
            tuple({**ignored, **ranks, **not_examined}.items()),
        )

    def contains_steps(self, files: UnnamedFiles, name: str) -> bool:
        """True if samples of a file contain a step marker.

        False for unreadable and for binary files.
        """
        try:
            samples = self._stores.read_samples(files.folder / name)
        except LogError:
            return False
        is_binary = b"\0" in samples[0]
        if is_binary:
            return False
        return any(marker in sample for sample in samples for marker in self._markers)


def _list_kinds(file_names: Sequence[str]) -> list[list[str]]:
    """Group names that differ only in numbers.

    Groups of job outputs come first, then small groups.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in file_names:
        kinds[_NUMBER.sub("#", name.lower())].append(name)
    return sorted(
        kinds.values(),
        key=lambda kind: (not names.is_job_output(kind[0]), len(kind), kind[0]),
    )


def _find_logs_of_kind(
    kind: Sequence[str], contains_steps: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the names whose files contain steps.

    `kind` is a group of names that differ only in numbers. Of more than MANY names,
    about FEW are examined first; the group is skipped if none of these contains steps.
    Job outputs are all examined.
    """
    sample = kind[:: max(1, len(kind) // FEW)]
    if (
        names.is_job_output(kind[0])
        or len(kind) <= MANY
        or any(map(contains_steps, sample))
    ):
        yield from filter(contains_steps, kind)


def _choose_outputs(log_names: Sequence[str], existing: Sequence[str]) -> list[str]:
    """Replace standard error by the standard output of its job, if that exists.

    A caller that reads the standard output also reads its standard error, and then
    decides which of the two is the log.
    """
    files = set(existing)
    outputs = {name: names.name_paired_stream(name, "stdout") for name in log_names}
    return list(
        dict.fromkeys(
            output if output in files else name for name, output in outputs.items()
        )
    )


def _drop_further_ranks(log_names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Keep the log of the first process of each run.

    Returns the kept names, and the reason for each dropped name.
    """
    # (rank, file name) of the logs whose names differ only in the rank
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in log_names:
        name_and_rank = names.read_rank(name)
        if name_and_rank is not None:
            shared_name, rank = name_and_rank
            groups[shared_name].append((rank, name))
    dropped: dict[str, str] = {}
    for group in groups.values():
        _, first_name = min(group)
        reason = f"another process of the run that is logged in {first_name}"
        dropped |= {name: reason for _, name in group if name != first_name}
    return [name for name in log_names if name not in dropped], dropped
