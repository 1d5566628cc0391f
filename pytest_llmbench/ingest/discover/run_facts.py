"""What a run of any framework says of its configuration, and which baseline states exactly that.

A baseline with `match` is of the runs at its place whose logs and metadata say what it states: neither more nor less. A
run that says one thing otherwise is of another configuration, and a run that no longer says it may be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.models import Baseline, ParsedLog, Recipe, RunFiles, Segment, StatedField
from pytest_llmbench.core.redaction import redact_text
from pytest_llmbench.ingest.discover.path_patterns import generalise, matches

_DIGITS = re.compile(r"\d+")

STEPS = "steps"
BATCH_OF_STEPS = "batch of the steps"
"""Facts that the steps themselves say."""

LISTED = ", "
"""Between the values of a fact of which a log states several."""

# Of one run and no other: a profiler is seen by the checks of a run. A version may change, and is no configuration.
_PASSING = (StatedField.PROFILER,)
_VERSIONS = ("release",)

# Baselines that were recorded before these were read say nothing of them, and stay those of their runs.
_READ_LATER = frozenset((str(StatedField.HIDDEN), str(StatedField.HEADS)))


@dataclass(frozen=True, slots=True)
class RunFact:
    """One thing that a run says of itself."""

    name: str
    values: tuple[str, ...]  # sorted; several where it says several
    source: str
    last: str  # of several the one that it says last: the first ones may be defaults

    @property
    def text(self) -> str:
        """The values as a baseline file states them."""
        return LISTED.join(self.values)


def collect_facts(run: RunFiles, logs: Sequence[ParsedLog]) -> tuple[RunFact, ...]:
    """Return what log and metadata of a run say of its configuration, sorted by name."""
    facts = {fact.name: fact for fact in (*_list_logged(run, logs), *_list_recorded(run))}
    return tuple(facts[name] for name in sorted(facts))


def says_enough(facts: Iterable[RunFact]) -> bool:
    """Whether a run prints its configuration: a number of GPUs and a batch. A log of bare steps may be of any."""
    names = {fact.name for fact in facts}
    batches = {str(field) for field in (StatedField.BATCH, StatedField.MICRO_BATCH)}
    return str(StatedField.GPUS) in names and not names.isdisjoint({*batches, BATCH_OF_STEPS})


def find_own_baselines(
    run: RunFiles, logs: Sequence[ParsedLog], recipes: Iterable[Recipe]
) -> list[tuple[Baseline, tuple[str, ...]]]:
    """Return the baselines at whose place a run lies, or at one of another number, each with what it says otherwise:
    nothing where it is one of theirs."""
    parts = list_parts(run)
    own = [(each, each.match.path) for recipe in recipes for each in recipe.baselines if each.match]
    near = [(each, path) for each, path in own if parts and matches(_DIGITS.sub("#", path), parts)]
    if not near:
        return []
    said = {fact.name: fact for fact in collect_facts(run, logs)}
    readable = [log.dialects for log in logs if log.segments]
    return [(each, (*_compare_places(path, parts), *_list_differences(each, said, readable))) for each, path in near]


def _compare_places(pattern: str, parts: tuple[str, ...]) -> tuple[str, ...]:
    """Return in which number of its place a run differs; nothing where it lies at the place."""
    names = pattern.split("/")
    return () if matches(pattern, parts) else (f"its place {'/'.join(parts[-len(names) :])}, not {pattern}",)


def lies_at_own_place(run: RunFiles, recipes: Iterable[Recipe]) -> bool:
    """Whether a run lies where a baseline says that its runs do: one without a step died there."""
    parts = list_parts(run)
    return bool(parts) and any(matches(path, parts) for path in list_own_places(recipes))


def list_own_places(recipes: Iterable[Recipe]) -> list[str]:
    """Return the places at which baselines say that their runs lie."""
    return [each.match.path for recipe in recipes for each in recipe.baselines if each.match]


def list_parts(run: RunFiles) -> tuple[str, ...]:
    """Return the names of the folders of a run's first log, and its own; nothing without a log."""
    return run.attempts[0].log.parts if run.attempts else ()


def _list_differences(
    baseline: Baseline, said: dict[str, RunFact], readable: Sequence[frozenset[str]]
) -> Iterator[str]:
    stated = dict(baseline.match.says) if baseline.match else {}
    if not readable:
        return  # a log without a step says nothing: it is a run at this place that died
    for name in sorted({*stated, *said.keys() - _READ_LATER}):
        theirs, ours = said.get(name), stated.get(name)
        if name == STEPS and not (theirs and ours):
            continue  # a record of a whole run tells them on one night and, rounded otherwise, not on the next
        if theirs is None:
            yield f"nothing says its {name} ({ours} in the baseline)"
        elif ours is None:
            yield f"{name} {theirs.text} ({theirs.source}), of which the baseline says nothing"
        elif theirs.text != ours:
            yield f"{name} {theirs.text} ({theirs.source}), not {ours}"
    if any(baseline.dialect not in dialects for dialects in readable):
        yield f"a log of another framework than {baseline.dialect}"


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
                    value = generalise(redact_text(statement.value), run.job_id)
                    of_field.pop(value, None)
                    of_field[value] = source
            if segment.total_steps is not None:
                values.setdefault(STEPS, {}).setdefault(str(segment.total_steps), "its steps")
            printed = segment.steps.global_batch_size
            sizes = [size for size in printed.tolist() if not math.isnan(size)]
            if sizes:
                # A batch that grows says its size last.
                values.setdefault(BATCH_OF_STEPS, {}).setdefault(f"{sizes[-1]:g}", "its steps")
    if any(_is_estimated(segment) for log in logs for segment in log.segments):
        values.pop(STEPS, None)
    for name, of_field in values.items():
        last, source = list(of_field.items())[-1]
        yield RunFact(name, tuple(sorted(of_field)), source, last)


def _is_estimated(segment: Segment) -> bool:
    """Whether the digits of the record of a whole run leave several numbers of steps: each night may tell another."""
    steps = segment.steps
    if len(steps) != 1 or steps.mean_of[0] == 1 or segment.total_steps is None:
        return False
    return bool(steps.resolution_seconds[0] * segment.total_steps >= steps.seconds[0])


def _list_recorded(run: RunFiles) -> Iterator[RunFact]:
    """Yield what the metadata file beside a run says."""
    if run.metadata is None:
        return
    for hint in run.hints:
        if hint.source == run.metadata.name and hint.field not in _VERSIONS:
            value = generalise(redact_text(hint.value), run.job_id)
            yield RunFact(f"metadata {hint.field}", (value,), hint.source, value)
