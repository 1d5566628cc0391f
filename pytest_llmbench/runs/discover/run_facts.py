"""Facts of a run's configuration, compared with user-defined baselines.

A baseline with `match` applies to the runs at its path that contradict none of its
facts. If a major fact differs, the run has another configuration. A fact stated by one
side only is no contradiction: it may depend on log levels and framework versions.
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
"""Facts taken from the records of the steps."""

LISTED = ", "
"""Separator between several values of one fact."""

# A profiler concerns a single run and is found by its checks. A version may change
# without changing the configuration.
_IGNORED_FIELDS = (StatedField.PROFILER,)
_VERSIONS = ("release",)

_SETTINGS = frozenset(
    map(str, list(StatedField)[list(StatedField).index(StatedField.MODEL_SIZES) :])
)
"""Facts from the settings printed before the first step.

Older recorded baselines contain none of them.
"""

_LABELLED = _SETTINGS | {str(StatedField.LAYOUT), str(StatedField.NUMBERS)}
_NAMES = frozenset(map(str, (StatedField.MODEL, StatedField.NAMED)))

_MINOR = frozenset(
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
"""Facts that may differ within one configuration; the user is warned."""

_VERSION_DEPENDENT = frozenset(
    map(str, (StatedField.CAPACITY, StatedField.DROP_POLICY, StatedField.RECOMPUTE))
)
"""Facts whose defaults depend on the framework version: minor if the versions differ.
"""

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
"""Facts that logs print only if used (`_ONLY_IF_USED`), with their unused values.

Values that begin with `_APPLIED` are used, too.
"""

_NOT_FRAMEWORK = frozenset(
    ("device", "power_limit", "clocks", "driver", "cuda_driver", "commit")
)
"""Entries of a run's environment that are not software versions."""


@dataclass(frozen=True, slots=True)
class RunFact:
    """One fact that a run states."""

    name: str
    values: tuple[str, ...]  # sorted, all distinct values
    source: str
    last: str  # the value printed last: earlier ones may be defaults
    sources: tuple[str, ...] = ()  # the source of each value, or empty

    @property
    def text(self) -> str:
        """The values as written in a baseline file."""
        return LISTED.join(self.values)


def collect_facts(run: RunFiles, logs: Sequence[ParsedLog]) -> tuple[RunFact, ...]:
    """Return the facts in a run's logs and metadata, sorted by name."""
    facts = {
        fact.name: fact for fact in (*_list_logged(run, logs), *_list_recorded(run))
    }
    return tuple(facts[name] for name in sorted(facts))


def is_identifiable(facts: Iterable[RunFact]) -> bool:
    """True if the facts include a number of GPUs and a batch size.

    A log that prints only steps may be of any configuration.
    """
    names = {fact.name for fact in facts}
    batches = {str(field) for field in (StatedField.BATCH, StatedField.MICRO_BATCH)}
    return str(StatedField.GPUS) in names and not names.isdisjoint(
        {*batches, BATCH_OF_STEPS}
    )


class FactKey(NamedTuple):
    """The name of a fact and the label of one of its settings ("" for a single value)."""

    name: str
    label: str

    def __str__(self) -> str:
        return f"{self.name} {self.label}".rstrip()


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a run with a baseline at its path."""

    baseline: Baseline
    differences: tuple[str, ...]  # empty if the run may be of the baseline
    changes: tuple[str, ...] = ()  # minor differences
    agreed: frozenset[FactKey] = frozenset()
    missing: tuple[str, ...] = ()  # stated by the baseline only
    added: tuple[str, ...] = ()  # stated by the run only

    @property
    def one_sided(self) -> tuple[str, ...]:
        """One sentence for each side that states facts the other side lacks."""
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
        """True if this baseline is closer to the run than that of `other`.

        The run must agree with all facts that it agrees with in `other`, and with
        further facts. If the facts are the same, only `other` must have missing facts.
        """
        if self.agreed == other.agreed:
            return bool(other.missing) and not self.missing
        return self.agreed > other.agreed


def compare_baselines_at_path(
    run: RunFiles, logs: Sequence[ParsedLog], recipes: Iterable[Recipe]
) -> list[Comparison]:
    """Compare a run with the baselines at its path, ignoring the numbers in the path."""
    parts = list_parts(run)
    candidates = [
        (baseline, baseline.match.path)
        for recipe in recipes
        for baseline in recipe.baselines
        if baseline.match
    ]
    near = [
        (baseline, path)
        for baseline, path in candidates
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
        others = [*_compare_paths(path, parts), *_compare_dialects(baseline, readable)]
        comparisons.append(
            replace(comparison, differences=(*others, *comparison.differences))
        )
    return comparisons


def select_closest(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons without differences, except if another is closer."""
    fitting = [comparison for comparison in comparisons if not comparison.differences]
    return [
        comparison
        for comparison in fitting
        if not any(other.is_closer_than(comparison) for other in fitting)
    ]


def _compare_paths(pattern: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the difference between the path and the pattern, empty if they match."""
    names = pattern.split("/")
    return (
        ()
        if matches(pattern, parts)
        else (f"its path {'/'.join(parts[-len(names) :])}, not {pattern}",)
    )


def is_at_baseline_path(run: RunFiles, recipes: Iterable[Recipe]) -> bool:
    """True if the run's first log is at the path of a baseline.

    A run without steps at such a path is a failed run of that baseline.
    """
    parts = list_parts(run)
    return bool(parts) and any(
        matches(path, parts) for path in list_baseline_paths(recipes)
    )


def list_baseline_paths(recipes: Iterable[Recipe]) -> list[str]:
    """Return the paths of all baselines that define one."""
    return [
        baseline.match.path
        for recipe in recipes
        for baseline in recipe.baselines
        if baseline.match
    ]


def list_parts(run: RunFiles) -> tuple[str, ...]:
    """Return the path components of a run's first log, () without a log."""
    return run.attempts[0].log.parts if run.attempts else ()


def _compare_dialects(
    baseline: Baseline, readable: Sequence[frozenset[str]]
) -> Iterator[str]:
    if any(baseline.dialect not in dialects for dialects in readable):
        yield f"a log of another framework than {baseline.dialect}"


Values = Mapping[FactKey, Mapping[str, str]]
"""The values of each fact, with the source of each value."""


def _list_values(facts: Iterable[RunFact]) -> Values:
    """Group the values of facts: {setting: {value: source}}.

    `recompute_method: none` is the value `none` of the setting `recompute_method`.
    """
    values: dict[FactKey, dict[str, str]] = {}
    for fact in facts:
        for value, source in zip(
            fact.values, fact.sources or (fact.source,) * len(fact.values), strict=True
        ):
            for key, text in _split_value(fact.name, value):
                values.setdefault(key, {})[text] = source
    return values


def _split_value(name: str, text: str) -> Iterator[tuple[FactKey, str]]:
    """Yield each (fact key, value) of a stated value that may list several."""
    for item in text.split(LISTED):
        label, separator, value = (
            item.partition("=" if "=" in item else ": ")
            if name in _LABELLED
            else ("", "", item)
        )
        # Users keep an experiment in different folders, but its name is the same.
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
    """Compare the facts of a run and a baseline."""
    recorded: dict[FactKey, set[str]] = {}
    for name, text in baseline.match.says if baseline.match else ():
        for key, value in _split_value(name, text):
            recorded.setdefault(key, set()).add(value)
    shared = sorted(recorded.keys() & stated.keys())
    agreed = frozenset(
        key
        for key in shared
        if _do_values_agree(key, recorded[key], stated[key].keys())
    )
    contradicting = [key for key in shared if key not in agreed]
    missing = sorted(recorded.keys() - stated.keys())
    added = sorted(stated.keys() - recorded.keys())
    is_other_version = _has_other_version(baseline, versions)
    minor = _MINOR | _VERSION_DEPENDENT if is_other_version else _MINOR
    significant = set(
        _select_significant_one_sided(
            recorded, stated, has_same_defaults=not is_other_version
        )
    )
    differing = [
        *contradicting,
        *(key for key in (*missing, *added) if key in significant),
    ]
    major = [key for key in differing if key.name not in minor]
    # a log without its head, or of another log level, states only its steps
    is_silent = all(key.name in _OF_STEPS for key in stated)
    # without any agreement nothing identifies the run
    if not is_silent and all(key.name == STEPS for key in agreed):
        major += [key for key in missing if key not in major]
    # a separate note reports the number of steps
    changed = [key for key in differing if key not in major and key.name != STEPS]
    changed += [
        key for key in added if key not in significant and _is_used(key, stated[key])
    ]
    return Comparison(
        baseline,
        tuple(_describe(key, recorded, stated) for key in major),
        tuple(_describe(key, recorded, stated) for key in changed),
        agreed,
        _list_names(missing, (*major, *changed)),
        _list_names(added, (*major, *changed)),
    )


def _do_values_agree(key: FactKey, recorded: Set[str], stated: Set[str]) -> bool:
    """True if both sides state the same values.

    Of names, one side may state more: logs also print names of optimizers and
    schedules.
    """
    return recorded == stated or (
        key.name in _NAMES and (recorded <= stated or stated <= recorded)
    )


def _select_significant_one_sided(
    recorded: Mapping[FactKey, Collection[str]],
    stated: Values,
    *,
    has_same_defaults: bool,
) -> Iterator[FactKey]:
    """Yield the facts stated by one side only that count as differences.

    A fact that shows the use of a feature counts: the other side did not use the
    feature. If both logs list only values that differ from the defaults, and the
    defaults are the same, each setting counts. A used fact that the run lacks does not
    count if the run lacks most of the baseline's facts, because its log level is
    probably another.
    """
    listing = FactKey(StatedField.LISTING, "")
    shared = recorded.keys() & stated.keys()
    plain = [
        key
        for key in recorded
        if key.name not in _ONLY_IF_USED and key.name not in _OF_STEPS
    ]
    prints_all = 2 * len(shared.intersection(plain)) >= len(plain)
    for key in recorded.keys() ^ stated.keys():
        is_known = prints_all if key in recorded else _could_be_recorded(key, recorded)
        is_used_fact = is_known and _is_used(key, recorded.get(key) or stated[key])
        if is_used_fact or (
            has_same_defaults and listing in shared and key.name in _SETTINGS
        ):
            yield key


def _is_used(key: FactKey, values: Collection[str]) -> bool:
    """True if the values show that the fact is used, so that its absence matters."""
    if any(value.startswith(_APPLIED) for value in values):
        return True
    return (
        key.name in _ONLY_IF_USED
        and not key.label
        and any(value not in _UNUSED for value in values)
    )


def _could_be_recorded(key: FactKey, recorded: Iterable[FactKey]) -> bool:
    """True if the baseline would contain the fact if its runs had printed it.

    Older baseline files contain no settings.
    """
    return key.name not in _SETTINGS or any(
        other.name in _SETTINGS for other in recorded
    )


def _describe(
    key: FactKey, recorded: Mapping[FactKey, Collection[str]], stated: Values
) -> str:
    """Describe a difference, such as `router top-k 4 (line 12), not 8`.

    If one side does not state the fact, describes this instead.
    """
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


def _list_names(
    keys: Iterable[FactKey], reported: Collection[FactKey]
) -> tuple[str, ...]:
    """Return the names of facts that are not reported as differences.

    Omits the number of steps: logs with one record of the whole run print it only on
    some days, depending on rounding.
    """
    return tuple(
        dict.fromkeys(
            key.name for key in keys if key not in reported and key.name != STEPS
        )
    )


def _collect_versions(run: RunFiles, logs: Sequence[ParsedLog]) -> dict[str, str]:
    """Return the software versions of a run by name."""
    environment = {
        name: value for log in logs for name, value in log.environment
    } | dict(run.environment)
    return {
        name: value for name, value in environment.items() if name not in _NOT_FRAMEWORK
    }


def _has_other_version(baseline: Baseline, versions: Mapping[str, str]) -> bool:
    """True if a software version differs between the recorded runs and this run."""
    recorded = dict(baseline.recording.environment) if baseline.recording else {}
    return any(
        recorded[name] != value for name, value in versions.items() if name in recorded
    )


def _list_logged(run: RunFiles, logs: Sequence[ParsedLog]) -> Iterator[RunFact]:
    """Yield the facts in all segments of all logs, including the facts of the steps."""
    values: dict[str, dict[str, str]] = {}
    for files, log in zip(run.attempts, logs, strict=False):
        source_prefix = f"{files.log.name}:" if len(run.attempts) > 1 else "line "
        for segment in log.segments:
            for statement in segment.stated:
                if statement.field not in _IGNORED_FIELDS:
                    sources_by_value = values.setdefault(str(statement.field), {})
                    source = f"{source_prefix}{statement.line}"
                    value = redact_text(statement.value)
                    # settings keep their numbers, which may look like a job id
                    if str(statement.field) not in _SETTINGS:
                        value = _generalise_value(value, run.job_id)
                    sources_by_value.pop(value, None)
                    sources_by_value[value] = source
            if segment.total_steps is not None:
                values.setdefault(STEPS, {}).setdefault(
                    str(segment.total_steps), "its steps"
                )
            printed = segment.steps.global_batch_size
            sizes = [size for size in printed.tolist() if not math.isnan(size)]
            if sizes:
                # The last size is the final size of a growing batch.
                values.setdefault(BATCH_OF_STEPS, {}).setdefault(
                    f"{sizes[-1]:g}", "its steps"
                )
    if any(_is_estimated(segment) for log in logs for segment in log.segments):
        values.pop(STEPS, None)
    for name, sources_by_value in values.items():
        last, source = list(sources_by_value.items())[-1]
        ordered = sorted(sources_by_value)
        yield RunFact(
            name,
            tuple(ordered),
            source,
            last,
            tuple(sources_by_value[value] for value in ordered),
        )


def _is_estimated(segment: Segment) -> bool:
    """True if the number of steps is uncertain because one record covers the whole run.

    Rounding may then yield another number on each day.
    """
    steps = segment.steps
    if len(steps) != 1 or steps.mean_of[0] == 1 or segment.total_steps is None:
        return False
    return bool(steps.resolution_seconds[0] * segment.total_steps >= steps.seconds[0])


def _generalise_value(value: str, job_id: str) -> str:
    """Replace the run's own numbers in a value.

    Short job ids are kept, since they may equal a size: `micro batch size: 1`.
    """
    return generalise(value, job_id if len(job_id) >= CERTAIN_DIGITS else "")


def _list_recorded(run: RunFiles) -> Iterator[RunFact]:
    """Yield the facts in the metadata file of a run."""
    if run.metadata is None:
        return
    for hint in run.hints:
        if hint.source == run.metadata.name and hint.field not in _VERSIONS:
            value = _generalise_value(redact_text(hint.value), run.job_id)
            yield RunFact(f"metadata {hint.field}", (value,), hint.source, value)
