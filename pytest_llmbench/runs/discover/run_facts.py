"""The facts that a run of any framework states of its configuration, and the own
baseline that they fit.

A baseline with `match` is of the runs at its place that contradict nothing that it
states. A run that states a fact of weight otherwise is of another configuration. A fact
that only one side states contradicts nothing: log levels and versions of frameworks
change what is printed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_llmbench.core.baseline_records import Baseline, Recipe
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.log_records import ParsedLog, Segment, StatedField
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.runs.discover.evidence import CERTAIN_DIGITS
from pytest_llmbench.runs.discover.path_patterns import generalise, matches

_DIGITS = re.compile(r"\d+")

STEPS = "steps"
BATCH_OF_STEPS = "batch of the steps"
_OF_STEPS = (STEPS, BATCH_OF_STEPS)
"""Facts that come from the records of the steps."""

LISTED = ", "
"""Between the values of a fact of which a log states several."""

# Of one run and no other: a profiler is seen by the checks of a run. A version may
# change, and is no configuration.
_PASSING = (StatedField.PROFILER,)
_VERSIONS = ("release",)

_SETTINGS = frozenset(
    map(str, list(StatedField)[list(StatedField).index(StatedField.MODEL_SIZES) :])
)
"""The facts that settings before the first step state. Older recorded baselines state
none of them."""

_LABELLED = _SETTINGS | {str(StatedField.LAYOUT), str(StatedField.NUMBERS)}
_NAMES = frozenset(map(str, (StatedField.MODEL, StatedField.NAMED)))

_LIGHT = frozenset(
    (
        STEPS,
        *map(
            str,
            (
                StatedField.OPTIMIZER,
                StatedField.DATA,
                StatedField.ATTENTION_BACKEND,
                StatedField.SHARDING,
            ),
        ),
        *map(str, (StatedField.POWER_LIMIT, StatedField.KERNELS, StatedField.LISTING)),
    )
)
"""A run that states one of these otherwise is of the same configuration, and its reader
is warned."""

_DEFAULTS = frozenset(
    map(str, (StatedField.CAPACITY, StatedField.DROP_POLICY, StatedField.RECOMPUTE))
)
"""The facts whose defaults change with versions of frameworks: under another version
they are light."""

_ONLY_IF_USED = frozenset(
    map(
        str,
        (
            StatedField.QUANTIZATION,
            StatedField.ENGINE,
            StatedField.OBJECTIVE,
            StatedField.ADAPTER,
        ),
    )
)
_UNUSED = ("none", "not fp8", "full")
_APPLIED = "applied "
"""The facts that logs print only of what is used, and the values and beginnings that
show it."""

_NOT_FRAMEWORK = frozenset(
    ("device", "power_limit", "clocks", "driver", "cuda_driver", "commit")
)
"""What the environment of a run states besides versions of software."""


@dataclass(frozen=True, slots=True)
class RunFact:
    """One thing that a run says of itself."""

    name: str
    values: tuple[str, ...]  # sorted; several where it says several
    source: str
    last: str  # of several the one that it says last: the first ones may be defaults
    sources: tuple[str, ...] = ()  # of each value, where all are kept

    @property
    def text(self) -> str:
        """The values as a baseline file states them."""
        return LISTED.join(self.values)


def collect_facts(run: RunFiles, logs: Sequence[ParsedLog]) -> tuple[RunFact, ...]:
    """Return what log and metadata of a run say of its configuration, sorted by
    name."""
    facts = {
        fact.name: fact for fact in (*_list_logged(run, logs), *_list_recorded(run))
    }
    return tuple(facts[name] for name in sorted(facts))


def is_identifiable(facts: Iterable[RunFact]) -> bool:
    """Whether a run prints its configuration: a number of GPUs and a batch. A log of
    bare steps may be of any."""
    names = {fact.name for fact in facts}
    batches = {str(field) for field in (StatedField.BATCH, StatedField.MICRO_BATCH)}
    return str(StatedField.GPUS) in names and not names.isdisjoint(
        {*batches, BATCH_OF_STEPS}
    )


class FactKey(NamedTuple):
    """A fact, and which of the settings that it consists of, empty for a fact with one
    value."""

    name: str
    label: str

    def __str__(self) -> str:
        return f"{self.name} {self.label}".rstrip()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a run and a baseline at its place state."""

    baseline: Baseline
    differences: tuple[str, ...]  # empty if the run may be of the baseline
    changes: tuple[str, ...] = ()  # differences without weight
    agreed: frozenset[FactKey] = frozenset()
    missing: tuple[str, ...] = ()  # stated by the baseline alone
    added: tuple[str, ...] = ()  # stated by the run alone

    @property
    def one_sided(self) -> tuple[str, ...]:
        """What only one side states, in a sentence for each side."""
        sides = (
            ("the run no longer states", self.missing),
            ("the baseline does not state", self.added),
        )
        return tuple(
            f"{verb} {join_first(list(names), 6)}: not compared"
            for verb, names in sides
            if names
        )

    def is_closer_than(self, other: Comparison) -> bool:
        """Whether the run states more of what this baseline states, or lacks nothing of
        it as the other does."""
        if self.agreed == other.agreed:
            return bool(other.missing) and not self.missing
        return self.agreed > other.agreed


def compare_baselines_at_path(
    run: RunFiles, logs: Sequence[ParsedLog], recipes: Iterable[Recipe]
) -> list[Comparison]:
    """Return comparisons with the baselines at whose place a run lies, or at one of
    another number."""
    parts = list_parts(run)
    own = [
        (each, each.match.path)
        for recipe in recipes
        for each in recipe.baselines
        if each.match
    ]
    near = [
        (each, path)
        for each, path in own
        if parts and matches(_DIGITS.sub("#", path), parts)
    ]
    if not near:
        return []
    stated = _list_values(collect_facts(run, logs))
    readable = [log.dialects for log in logs if log.segments]
    versions = _collect_versions(run, logs)
    comparisons = []
    for baseline, path in near:
        comparison = (
            _compare(baseline, stated, versions)
            if readable
            else Comparison(baseline, ())
        )
        others = [*_compare_places(path, parts), *_compare_dialects(baseline, readable)]
        comparisons.append(
            replace(comparison, differences=(*others, *comparison.differences))
        )
    return comparisons


def select_closest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons without a difference that no other one is closer than."""
    fitting = [each for each in comparisons if not each.differences]
    return [
        each
        for each in fitting
        if not any(other.is_closer_than(each) for other in fitting)
    ]


def _compare_places(pattern: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return in which number of its place a run differs; nothing where it lies at the
    place."""
    names = pattern.split("/")
    return (
        ()
        if matches(pattern, parts)
        else (f"its place {'/'.join(parts[-len(names) :])}, not {pattern}",)
    )


def is_at_baseline_path(run: RunFiles, recipes: Iterable[Recipe]) -> bool:
    """Whether a run lies where a baseline says that its runs do: one without a step
    died there."""
    parts = list_parts(run)
    return bool(parts) and any(
        matches(path, parts) for path in list_baseline_paths(recipes)
    )


def list_baseline_paths(recipes: Iterable[Recipe]) -> list[str]:
    """Return the places at which baselines say that their runs lie."""
    return [
        each.match.path for recipe in recipes for each in recipe.baselines if each.match
    ]


def list_parts(run: RunFiles) -> tuple[str, ...]:
    """Return the names of the folders of a run's first log, and its own; nothing
    without a log."""
    return run.attempts[0].log.parts if run.attempts else ()


def _compare_dialects(
    baseline: Baseline, readable: Sequence[frozenset[str]]
) -> Iterator[str]:
    if any(baseline.dialect not in dialects for dialects in readable):
        yield f"a log of another framework than {baseline.dialect}"


Values = Mapping[FactKey, Mapping[str, str]]
"""The values of each fact, each with its source."""


def _list_values(facts: Iterable[RunFact]) -> Values:
    """Return the values of facts by setting: `recompute_method: none` is the value
    `none` of that setting."""
    values: dict[FactKey, dict[str, str]] = {}
    for fact in facts:
        for value, source in zip(
            fact.values, fact.sources or (fact.source,) * len(fact.values), strict=True
        ):
            for key, text in _split_value(fact.name, value):
                values.setdefault(key, {})[text] = source
    return values


def _split_value(name: str, text: str) -> Iterator[tuple[FactKey, str]]:
    for item in text.split(LISTED):
        label, separator, value = (
            item.partition("=" if "=" in item else ": ")
            if name in _LABELLED
            else ("", "", item)
        )
        # The folder of an experiment differs from user to user, its name does not.
        last = (
            value.rstrip("/").rpartition("/")[2] if name == StatedField.MODEL else value
        )
        yield (
            (FactKey(name, label), last)
            if separator or name not in _LABELLED
            else (FactKey(name, ""), item)
        )


def _compare(
    baseline: Baseline, stated: Values, versions: Mapping[str, str]
) -> Comparison:
    """Compare the facts that a run and a baseline state."""
    recorded: dict[FactKey, set[str]] = {}
    for name, text in baseline.match.says if baseline.match else ():
        for key, value in _split_value(name, text):
            recorded.setdefault(key, set()).add(value)
    shared = sorted(recorded.keys() & stated.keys())
    agreed = frozenset(
        key for key in shared if _agree(key, recorded[key], stated[key].keys())
    )
    contrary = [key for key in shared if key not in agreed]
    missing = sorted(recorded.keys() - stated.keys())
    added = sorted(stated.keys() - recorded.keys())
    is_other_version = _differ(baseline, versions)
    light = _LIGHT | _DEFAULTS if is_other_version else _LIGHT
    telling = set(
        _select_telling(recorded, stated, has_same_defaults=not is_other_version)
    )
    differing = [*contrary, *(key for key in (*missing, *added) if key in telling)]
    weighty = [key for key in differing if key.name not in light]
    is_silent = all(
        key.name in _OF_STEPS for key in stated
    )  # a log without its head, or of another log level
    if not is_silent and all(key.name == STEPS for key in agreed):
        weighty += [
            key for key in missing if key not in weighty
        ]  # nothing identifies the run any more
    # the number of steps has a note of its own
    changed = [key for key in differing if key not in weighty and key.name != STEPS]
    changed += [
        key for key in added if key not in telling and _is_used(key, stated[key])
    ]
    return Comparison(
        baseline,
        tuple(_describe(key, recorded, stated) for key in weighty),
        tuple(_describe(key, recorded, stated) for key in changed),
        agreed,
        _list_names(missing, (*weighty, *changed)),
        _list_names(added, (*weighty, *changed)),
    )


def _agree(key: FactKey, recorded: Set[str], stated: Set[str]) -> bool:
    """Whether both sides state the same. Names are printed of optimizers and schedules,
    too: one more is no other."""
    return recorded == stated or (
        key.name in _NAMES and (recorded <= stated or stated <= recorded)
    )


def _select_telling(
    recorded: Mapping[FactKey, Collection[str]],
    stated: Values,
    *,
    has_same_defaults: bool,
) -> Iterator[FactKey]:
    """Yield the facts that one side alone states and that differ all the same: what is
    not printed is not used, or is the default where only other values are listed.

    A run that lacks most of what the baseline states may have been printed with another
    log level.
    """
    listing = FactKey(StatedField.LISTING, "")
    common = recorded.keys() & stated.keys()
    plain = [
        key
        for key in recorded
        if key.name not in _ONLY_IF_USED and key.name not in _OF_STEPS
    ]
    prints_all = 2 * len(common.intersection(plain)) >= len(plain)
    for key in recorded.keys() ^ stated.keys():
        is_known = prints_all if key in recorded else _was_read(key, recorded)
        by_use = is_known and _is_used(key, recorded.get(key) or stated[key])
        if by_use or (
            has_same_defaults and listing in common and key.name in _SETTINGS
        ):
            yield key


def _is_used(key: FactKey, values: Collection[str]) -> bool:
    """Whether a fact is one that is printed only of what is used."""
    if any(value.startswith(_APPLIED) for value in values):
        return True
    return (
        key.name in _ONLY_IF_USED
        and not key.label
        and any(value not in _UNUSED for value in values)
    )


def _was_read(key: FactKey, recorded: Iterable[FactKey]) -> bool:
    """Whether a fact would be in a baseline if its runs had stated it; an older file
    lacks what was not read then."""
    return key.name not in _SETTINGS or any(
        other.name in _SETTINGS for other in recorded
    )


def _describe(
    key: FactKey, recorded: Mapping[FactKey, Collection[str]], stated: Values
) -> str:
    """Return `router top-k 4 (line 12), not 8`, or which side states nothing."""
    before = LISTED.join(sorted(recorded.get(key, ())))
    if key not in stated:
        return f"{key} is not stated ({before} in the baseline)"
    sources = stated[key]
    others = [
        source for text, source in sources.items() if text not in recorded.get(key, ())
    ]
    value, source = LISTED.join(sorted(sources)), (others or list(sources.values()))[-1]
    if key not in recorded:
        return f"{key} {value} ({source}), which the baseline does not state"
    return f"{key} {value} ({source}), not {before}"


def _list_names(keys: Iterable[FactKey], told: Collection[FactKey]) -> tuple[str, ...]:
    """Return the names of facts without those that are reported as differences, and
    without the number of steps: the record of a whole run states it on one day and,
    rounded otherwise, not on the next."""
    return tuple(
        dict.fromkeys(key.name for key in keys if key not in told and key.name != STEPS)
    )


def _collect_versions(run: RunFiles, logs: Sequence[ParsedLog]) -> dict[str, str]:
    """Return the versions of software that a run states."""
    environment = {
        name: value for log in logs for name, value in log.environment
    } | dict(run.environment)
    return {
        name: value for name, value in environment.items() if name not in _NOT_FRAMEWORK
    }


def _differ(baseline: Baseline, versions: Mapping[str, str]) -> bool:
    """Whether a version that the recorded runs and this one state is another one."""
    recorded = dict(baseline.recording.environment) if baseline.recording else {}
    return any(
        recorded[name] != value for name, value in versions.items() if name in recorded
    )


def _list_logged(run: RunFiles, logs: Sequence[ParsedLog]) -> Iterator[RunFact]:
    """Yield what all parts of all logs state, and what the steps themselves say."""
    values: dict[str, dict[str, str]] = {}
    for files, log in zip(run.attempts, logs, strict=False):
        place = f"{files.log.name}:" if len(run.attempts) > 1 else "line "
        for segment in log.segments:
            for statement in segment.stated:
                if statement.field not in _PASSING:
                    of_field = values.setdefault(str(statement.field), {})
                    source = f"{place}{statement.line}"
                    value = redact_text(statement.value)
                    if (
                        str(statement.field) not in _SETTINGS
                    ):  # a number of parameters looks like that of a job
                        value = _generalise_value(value, run.job_id)
                    of_field.pop(value, None)
                    of_field[value] = source
            if segment.total_steps is not None:
                values.setdefault(STEPS, {}).setdefault(
                    str(segment.total_steps), "its steps"
                )
            printed = segment.steps.global_batch_size
            sizes = [size for size in printed.tolist() if not math.isnan(size)]
            if sizes:
                # A batch that grows says its size last.
                values.setdefault(BATCH_OF_STEPS, {}).setdefault(
                    f"{sizes[-1]:g}", "its steps"
                )
    if any(_is_estimated(segment) for log in logs for segment in log.segments):
        values.pop(STEPS, None)
    for name, of_field in values.items():
        last, source = list(of_field.items())[-1]
        ordered = sorted(of_field)
        yield RunFact(
            name,
            tuple(ordered),
            source,
            last,
            tuple(of_field[value] for value in ordered),
        )


def _is_estimated(segment: Segment) -> bool:
    """Whether the digits of the record of a whole run leave several numbers of steps:
    each night may tell another."""
    steps = segment.steps
    if len(steps) != 1 or steps.mean_of[0] == 1 or segment.total_steps is None:
        return False
    return bool(steps.resolution_seconds[0] * segment.total_steps >= steps.seconds[0])


def _generalise_value(value: str, job_id: str) -> str:
    """Return a value without the numbers of its run; a short job id may be that of a
    size: `micro batch size: 1`."""
    return generalise(value, job_id if len(job_id) >= CERTAIN_DIGITS else "")


def _list_recorded(run: RunFiles) -> Iterator[RunFact]:
    """Yield what the metadata file beside a run says."""
    if run.metadata is None:
        return
    for hint in run.hints:
        if hint.source == run.metadata.name and hint.field not in _VERSIONS:
            value = _generalise_value(redact_text(hint.value), run.job_id)
            yield RunFact(f"metadata {hint.field}", (value,), hint.source, value)
