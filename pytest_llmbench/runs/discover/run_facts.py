"""Facts of a run's configuration, compared with user-defined baselines.

A baseline with `match` applies to the runs at its path that contradict none of its
facts. If a major fact differs, the run has another configuration. A fact stated by one
side only is no contradiction: it may depend on log levels and framework versions.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import Baseline, Recipe
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.log_records import ParsedLog, Segment, StatedField
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.redaction import make_redactor
from pytest_llmbench.core.run_records import RunFiles
from pytest_llmbench.runs.discover.evidence import CERTAIN_DIGITS
from pytest_llmbench.runs.discover.path_patterns import generalise, matches

_DIGITS = compile_on_use(r"\d+")

STEPS = "steps"
BATCH_OF_STEPS = "batch of the steps"
_OF_STEPS = (STEPS, BATCH_OF_STEPS)
"""Facts taken from the records of the steps."""

LISTED = ", "
"""Separator between several values of one fact."""

# A profiler concerns a single run and is found by its checks. The peak for MFU follows
# from the GPU. A version may change without changing the configuration.
_IGNORED_FIELDS = (StatedField.PROFILER, StatedField.MFU_PEAK)
_VERSIONS = ("release",)

_FIELDS = tuple(StatedField)
_SETTINGS = frozenset(map(str, _FIELDS[_FIELDS.index(StatedField.MODEL_SIZES) :]))
"""Facts from the settings printed before the first step.

Older recorded baselines contain none of them.
"""

_LABELLED = _SETTINGS | {str(StatedField.LAYOUT), str(StatedField.NUMBERS)}
"""Facts whose values have labels: `recompute_method: none`, `hidden_size=4096`."""

_NAMES = frozenset(map(str, (StatedField.MODEL, StatedField.NAMED)))

_MINOR = frozenset(
    (
        STEPS,
        str(StatedField.OPTIMIZER),
        str(StatedField.DATA),
        str(StatedField.ATTENTION_BACKEND),
        str(StatedField.SHARDING),
        str(StatedField.POWER_LIMIT),
        str(StatedField.KERNELS),
        str(StatedField.LISTING),
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

# Limit of names in the sentence about facts of one side.
_SHOWN_NAMES = 6

_NOT_FRAMEWORK = frozenset(
    ("device", "power_limit", "clocks", "driver", "cuda_driver", "commit")
)
"""Entries of a run's environment that are not software versions."""


class RunFact(Struct, frozen=True):
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
    batch_names = {
        str(StatedField.BATCH),
        str(StatedField.MICRO_BATCH),
        BATCH_OF_STEPS,
    }
    return str(StatedField.GPUS) in names and not names.isdisjoint(batch_names)


class FactKey(NamedTuple):
    """The name of a fact and the label of one of its settings ("" for a single value)."""

    name: str
    label: str

    def __str__(self) -> str:
        return f"{self.name} {self.label}".rstrip()


class Comparison(Struct, frozen=True):
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
            f"{subject_and_verb} {join_first(list(names), _SHOWN_NAMES)}: not compared"
            for subject_and_verb, names in sides
            if names
        )

    def is_closer_than(self, other: Comparison) -> bool:
        """True if this baseline is closer to the run than that of `other`.

        The run must agree with all facts that it agrees with in `other`, and with
        further facts. If it agrees with the same facts in both, the closer baseline is
        the one without missing facts (stated by the baseline only).
        """
        if self.agreed == other.agreed:
            return bool(other.missing) and not self.missing
        return self.agreed > other.agreed


def compare_baselines_at_path(
    run: RunFiles, logs: Sequence[ParsedLog], recipes: Iterable[Recipe]
) -> list[Comparison]:
    """Compare a run with the baselines at its path, ignoring the numbers in the path.

    A differing number in the path, another dialect and each major fact are differences.
    A run without steps is compared by its path only.
    """
    parts = list_parts(run)
    if not parts:
        return []
    candidates = [
        (baseline, baseline.match.path)
        for recipe in recipes
        for baseline in recipe.baselines
        if baseline.match and matches(_DIGITS.sub("#", baseline.match.path), parts)
    ]
    if not candidates:
        return []
    stated = _list_values(collect_facts(run, logs))
    dialects_by_log = [log.dialects for log in logs if log.segments]
    versions = _collect_versions(run, logs)
    comparisons = []
    for baseline, path in candidates:
        comparison = (
            _compare(baseline, stated, versions)
            if dialects_by_log
            else Comparison(baseline, ())
        )
        differences = (
            *_compare_paths(path, parts),
            *_compare_dialects(baseline, dialects_by_log),
            *comparison.differences,
        )
        comparisons.append(replace(comparison, differences=differences))
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
    if matches(pattern, parts):
        return ()
    depth = len(pattern.split("/"))
    return (f"its path {'/'.join(parts[-depth:])}, not {pattern}",)


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
    baseline: Baseline, dialects_by_log: Sequence[frozenset[str]]
) -> Iterator[str]:
    """Yield the difference if the baseline's dialect cannot read every log."""
    if any(baseline.dialect not in dialects for dialects in dialects_by_log):
        yield f"a log of another framework than {baseline.dialect}"


Values = Mapping[FactKey, Mapping[str, str]]
"""The values of each fact, with the source of each value."""


def _list_values(facts: Iterable[RunFact]) -> Values:
    """Group the values of facts: {setting: {value: source}}.

    `recompute_method: none` is the value `none` of the setting `recompute_method`.
    """
    values_by_key: dict[FactKey, dict[str, str]] = {}
    for fact in facts:
        sources = fact.sources or (fact.source,) * len(fact.values)
        for listed_value, source in zip(fact.values, sources, strict=True):
            for key, value in _split_value(fact.name, listed_value):
                values_by_key.setdefault(key, {})[value] = source
    return values_by_key


def _split_value(name: str, listed_value: str) -> Iterator[tuple[FactKey, str]]:
    """Yield each (fact key, value) of a stated value that may list several.

    `name` is the name of the fact. `hidden_size=4096, ffn_size=11008` are the values of
    two labels.
    """
    for item in listed_value.split(LISTED):
        label, value = "", item
        if name in _LABELLED:
            before, separator, after = item.partition("=" if "=" in item else ": ")
            if separator:
                label, value = before, after
        elif name == StatedField.MODEL:
            # Users keep an experiment in different folders, but its name is the same.
            value = value.rstrip("/").rpartition("/")[2]
        yield FactKey(name, label), value


def _compare(
    baseline: Baseline, stated: Values, versions: Mapping[str, str]
) -> Comparison:
    """Compare the facts that a run states with those recorded in a baseline.

    A major difference means another configuration; a minor one is only reported.
    """
    # the values on both sides
    recorded: dict[FactKey, set[str]] = {}
    recorded_facts = baseline.match.says if baseline.match else ()
    for name, values in recorded_facts:
        for key, value in _split_value(name, values):
            recorded.setdefault(key, set()).add(value)
    shared = sorted(recorded.keys() & stated.keys())
    agreed = frozenset(
        key
        for key in shared
        if _do_values_agree(
            key, recorded_values=recorded[key], stated_values=stated[key].keys()
        )
    )
    # the differences: contradictions, and facts of one side that would be in the other
    contradicting = [key for key in shared if key not in agreed]
    missing = sorted(recorded.keys() - stated.keys())
    added = sorted(stated.keys() - recorded.keys())
    is_other_version = _has_other_version(baseline, versions)
    minor_names = _MINOR | _VERSION_DEPENDENT if is_other_version else _MINOR
    significant_one_sided = set(
        _select_significant_one_sided(
            recorded, stated, has_same_defaults=not is_other_version
        )
    )
    differing = [
        *contradicting,
        *(key for key in (*missing, *added) if key in significant_one_sided),
    ]
    # major differences
    major = [key for key in differing if key.name not in minor_names]
    # a log without its head, or of another log level, states only its steps
    states_only_steps = all(key.name in _OF_STEPS for key in stated)
    agrees_in_nothing_else = all(key.name == STEPS for key in agreed)
    # without any agreement nothing identifies the run: each missing fact is major
    if agrees_in_nothing_else and not states_only_steps:
        major += [key for key in missing if key not in major]
    # minor differences; a separate note reports the number of steps
    minor = [key for key in differing if key not in major and key.name != STEPS]
    minor += [
        key
        for key in added
        if key not in significant_one_sided and _is_used(key, stated[key])
    ]
    reported = (*major, *minor)
    return Comparison(
        baseline,
        differences=tuple(_describe(key, recorded, stated) for key in major),
        changes=tuple(_describe(key, recorded, stated) for key in minor),
        agreed=agreed,
        missing=_list_names(missing, reported),
        added=_list_names(added, reported),
    )


def _do_values_agree(
    key: FactKey, *, recorded_values: Set[str], stated_values: Set[str]
) -> bool:
    """True if both sides state the same values.

    One side may state further names: logs also print names of optimizers and schedules.
    """
    if recorded_values == stated_values:
        return True
    return key.name in _NAMES and (
        recorded_values <= stated_values or stated_values <= recorded_values
    )


def _select_significant_one_sided(
    recorded: Mapping[FactKey, Collection[str]],
    stated: Values,
    *,
    has_same_defaults: bool,
) -> Iterator[FactKey]:
    """Yield the facts stated by one side only that count as differences.

    Two kinds count. First, a fact that shows the use of a feature, because the other
    side did not use it. (But if the run lacks most of the baseline's facts, its log
    level probably differs, and a fact that it lacks does not count.) Second, each
    setting, if both logs list only settings that are not the default, and both have the
    same defaults.
    """
    # stated by a log that lists only settings that are not the default
    listing = FactKey(StatedField.LISTING, "")
    shared = recorded.keys() & stated.keys()
    # facts that do not depend on the use of a feature
    always_printed = [
        key
        for key in recorded
        if key.name not in _ONLY_IF_USED and key.name not in _OF_STEPS
    ]
    has_same_log_level = 2 * len(shared.intersection(always_printed)) >= len(
        always_printed
    )
    each_setting_counts = has_same_defaults and listing in shared
    for key in recorded.keys() ^ stated.keys():
        if key in recorded:
            would_be_printed, values = has_same_log_level, recorded[key]
        else:
            would_be_printed = _could_be_recorded(key, recorded)
            values = stated[key].keys()
        is_use_of_one_side = would_be_printed and _is_used(key, values)
        is_changed_setting = each_setting_counts and key.name in _SETTINGS
        if is_use_of_one_side or is_changed_setting:
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
    if key.name not in _SETTINGS:
        return True
    return any(recorded_key.name in _SETTINGS for recorded_key in recorded)


def _describe(
    key: FactKey, recorded: Mapping[FactKey, Collection[str]], stated: Values
) -> str:
    """Describe a difference, such as `router top-k 4 (line 12), not 8`.

    If one side does not state the fact, describes this instead.
    """
    recorded_values = recorded.get(key, ())
    recorded_text = LISTED.join(sorted(recorded_values))
    if key not in stated:
        return f"{key} is not stated ({recorded_text} in the baseline)"
    source_by_value = stated[key]
    sources_of_differing = [
        source
        for value, source in source_by_value.items()
        if value not in recorded_values
    ]
    # cite the last value that differs, or the last value if none does
    sources = sources_of_differing or list(source_by_value.values())
    source = sources[-1]
    stated_text = LISTED.join(sorted(source_by_value))
    if key not in recorded:
        return f"{key} {stated_text} ({source}), which the baseline does not state"
    return f"{key} {stated_text} ({source}), not {recorded_text}"


def _list_names(
    keys: Iterable[FactKey], reported: Collection[FactKey]
) -> tuple[str, ...]:
    """Return the names of the facts in `keys` that are not reported as differences.

    Omits the number of steps: logs with one record of the whole run print it only on
    some days, depending on rounding.
    """
    return tuple(
        dict.fromkeys(
            key.name for key in keys if key not in reported and key.name != STEPS
        )
    )


def _collect_versions(run: RunFiles, logs: Sequence[ParsedLog]) -> dict[str, str]:
    """Return the software versions of a run by name; metadata override logs."""
    environment = {name: value for log in logs for name, value in log.environment}
    environment |= dict(run.environment)
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
    redact = make_redactor().redact
    sources_by_fact: dict[str, dict[str, str]] = {}  # {name: {value: source}}
    for attempt, log in zip(run.attempts, logs, strict=False):
        # `train.log:12` with several logs, else `line 12`
        source_prefix = f"{attempt.log.name}:" if len(run.attempts) > 1 else "line "
        for segment in log.segments:
            for statement in segment.stated:
                if statement.field not in _IGNORED_FIELDS:
                    name = str(statement.field)
                    sources_by_value = sources_by_fact.setdefault(name, {})
                    source = f"{source_prefix}{statement.line}"
                    value = redact(statement.value)
                    # settings keep their numbers, which may look like a job id
                    if name not in _SETTINGS:
                        value = _generalise_value(value, run.job_id)
                    # move a repeated value to the end: the last value is preferred
                    sources_by_value.pop(value, None)
                    sources_by_value[value] = source
            if segment.total_steps is not None:
                step_count = str(segment.total_steps)
                sources_by_fact.setdefault(STEPS, {}).setdefault(
                    step_count, "its steps"
                )
            printed = segment.steps.global_batch_size
            batch_sizes = [size for size in printed.tolist() if not math.isnan(size)]
            if batch_sizes:
                # a growing batch ends with its final size
                final_size = f"{batch_sizes[-1]:g}"
                sources_by_fact.setdefault(BATCH_OF_STEPS, {}).setdefault(
                    final_size, "its steps"
                )
    if any(_is_estimated(segment) for log in logs for segment in log.segments):
        sources_by_fact.pop(STEPS, None)
    for name, sources_by_value in sources_by_fact.items():
        last_value, last_source = list(sources_by_value.items())[-1]
        values = sorted(sources_by_value)
        yield RunFact(
            name,
            tuple(values),
            source=last_source,
            last=last_value,
            sources=tuple(sources_by_value[value] for value in values),
        )


def _is_estimated(segment: Segment) -> bool:
    """True if the number of steps is uncertain because one record covers the whole run.

    Rounding may then yield another number on each day.
    """
    steps = segment.steps
    if len(steps) != 1 or steps.mean_of[0] == 1 or segment.total_steps is None:
        return False
    # rounding the mean step time changes the number of steps by one or more
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
    redact = make_redactor().redact
    for hint in run.hints:
        if hint.source == run.metadata.name and hint.field not in _VERSIONS:
            value = _generalise_value(redact(hint.value), run.job_id)
            yield RunFact(f"metadata {hint.field}", (value,), hint.source, value)
