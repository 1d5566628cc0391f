"""Identify the configuration of a run from its names, metadata and content.

Never guesses: a wrong answer could compare a slow run with a slower baseline. All
sources have to agree, and the precision and the number of GPUs have to be stated.
Fields that only the choice of baselines implies are listed as assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Baseline, Key, Recipe
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.log_records import ParsedLog, Segment
from pytest_llmbench.core.metric_definitions import compute_tflops_per_gpu
from pytest_llmbench.core.run_records import Identity, RunFiles
from pytest_llmbench.runs.discover.baseline_matches import (
    Claim,
    Claims,
    Match,
    Matching,
    Subject,
    collect_claims,
    find_nearest,
    find_possible,
    is_near,
    match_baselines,
)
from pytest_llmbench.runs.discover.run_facts import (
    Comparison,
    compare_baselines_at_path,
    select_closest,
)
from pytest_llmbench.runs.layouts.megatron_bridge import (
    Tables,
    collect_hints,
    is_readable,
    names_model,
)

_NEEDED = ("recipe", "size", "dtype", "gpus")
_ALL = (*_NEEDED, "gpu", "release")
"""Fields that a Megatron-Bridge run has to state.

Its logs do not print all of them, and rows of its tables may differ in one only.
"""

_OPTIONS = {"release": "--llmb-release", "gpu": "--llmb-gpu"}
_KEY_FIELDS = tuple(field.name for field in fields(Key))

# The facts of its configuration that a log can contain.
FACTS = ("dialect", "global_batch_size", "total_steps", "tflops")
TFLOPS_MARGIN = 0.05


def identify(
    run: RunFiles,
    logs: Sequence[ParsedLog],
    recipes: Sequence[Recipe],
    *,
    release: str = "",
    gpu: str = "",
    baseline_release: str = "",
    find: Matching = match_baselines,
    tables: Tables | None = None,
) -> Identity:
    """Identify the configuration of a run, or explain why it is unknown.

    `release` and `gpu` fill in fields that no source states; `baseline_release`
    overrides the run's release. If there are many runs, pass the result of
    `cache_matches` as `find`.

    A batch size in the log that contradicts the names is ignored here: measuring the
    run reports that contradiction. Baselines with a path and facts (`match`) take
    precedence over names. The `tables` of Megatron-Bridge are tried last, and require
    that the run states every field that distinguishes their rows.
    """
    path_comparisons = (
        [] if baseline_release else compare_baselines_at_path(run, logs, recipes)
    )
    closest = select_closest(path_comparisons)
    keys = tuple(sorted({comparison.baseline.key for comparison in closest}))
    if len(keys) == 1:
        explanation = (
            "its path, and the facts in its log and metadata, match the baseline file"
        )
        return Identity(
            keys[0],
            explanation,
            changes=closest[0].changes,
            one_sided=closest[0].one_sided,
        )
    if keys:
        return _make_ambiguous_by_facts(closest, keys)
    ordinary_recipes = [recipe for recipe in recipes if recipe.name != MEGATRON_BRIDGE]
    options = {"release": release, "gpu": gpu}
    identity = _identify_by_names(
        run,
        logs,
        ordinary_recipes,
        options,
        baseline_release=baseline_release,
        find=find,
    )
    if path_comparisons and identity.key is None:
        return _add_differences(identity, path_comparisons)
    is_undecided = identity.key is None and (
        not identity.candidates or identity.fits_none
    )
    if tables is None or not is_undecided or not is_readable(logs):
        return identity
    companions = tables.read_companions(run)
    if not names_model(run, companions):
        return identity
    rows = [
        *tables.read_recipes(),
        *(recipe for recipe in recipes if recipe.name == MEGATRON_BRIDGE),
    ]
    run = replace(
        run,
        hints=collect_hints(run, logs, companions, {recipe.release for recipe in rows}),
    )
    by_row = _identify_by_names(
        run,
        logs,
        rows,
        options,
        baseline_release=baseline_release,
        find=find,
        needed=_ALL,
    )
    return replace(
        by_row, may_be=tuple(dict.fromkeys((*by_row.may_be, *identity.may_be)))
    )


def _make_ambiguous_by_facts(
    closest: Sequence[Comparison], keys: tuple[Key, ...]
) -> Identity:
    """Return an identity without a key: several baselines fit the facts equally well."""
    missing = dict.fromkeys(
        name for comparison in closest for name in comparison.missing
    )
    reason = (
        f"it does not state {join_first(list(missing))}"
        if missing
        else "their paths and facts are the same"
    )
    explanation = f"could be {join_first([key.id for key in keys])}: {reason}"
    return Identity(
        None, explanation, candidates=keys, may_be=keys, summary=explanation
    )


def _add_differences(
    identity: Identity, path_comparisons: Sequence[Comparison]
) -> Identity:
    """Explain the mismatch with the closest baseline that has the same path."""
    nearest = min(
        path_comparisons,
        key=lambda comparison: (len(comparison.differences), comparison.baseline.key),
    )
    key = nearest.baseline.key
    summary = (
        f"another configuration than {key.id}: {join_first(list(nearest.differences))}"
    )
    candidates = tuple(dict.fromkeys((key, *identity.nearest)))
    may_be = tuple(
        dict.fromkeys(
            (
                *(comparison.baseline.key for comparison in path_comparisons),
                *identity.may_be,
            )
        )
    )
    return replace(
        identity,
        because=summary,
        summary=summary,
        nearest=candidates[:3],
        may_be=may_be,
        advice="",
    )


def _identify_by_names(
    run: RunFiles,
    logs: Sequence[ParsedLog],
    recipes: Sequence[Recipe],
    options: Mapping[str, str],
    *,
    baseline_release: str,
    find: Matching,
    needed: Sequence[str] = _NEEDED,
) -> Identity:
    """Identify a run by its names and metadata, or explain why it is unknown."""
    hints = [
        hint for hint in run.hints if not (baseline_release and hint.field == "release")
    ]
    claims = _add_options(collect_claims(hints, recipes), options, baseline_release)
    dialects = frozenset(log.dialect for log in logs if log.dialect)
    readable = tuple(log.dialects for log in logs if log.dialect)
    subject = Subject(claims, "" if baseline_release else run.layout, readable, recipes)
    matches = find(subject)
    fitting = [match for match in matches if not match.differences]
    if claims.contradictions:
        identity = _make_contradicted(subject, find)
    elif fitting:
        identity = _choose_key(claims, fitting, logs, needed)
    else:
        identity = _make_unmatched(
            claims, matches, _summarise_claims(claims, run.layout, dialects), recipes
        )
    stated_release = next(
        (hint for hint in run.hints if baseline_release and hint.field == "release"),
        None,
    )
    if stated_release is None:
        return identity
    return replace(
        identity,
        because=f"{identity.because}; its own release {stated_release.value} ({stated_release.source}) is ignored",
    )


def _add_options(
    claims: Claims, options: Mapping[str, str], baseline_release: str
) -> Claims:
    """Add the values of options for fields that the run leaves open."""
    contradicted = {
        claim.field for conflicting in claims.contradictions for claim in conflicting
    }
    added = {
        field: Claim(field, value.casefold(), (_OPTIONS[field],))
        for field, value in options.items()
        if value and field not in claims.by_field and field not in contradicted
    }
    if baseline_release:
        added["release"] = Claim(
            "release", baseline_release.casefold(), ("--llmb-baseline-release",)
        )
    return replace(claims, by_field={**claims.by_field, **added})


def _choose_key(
    claims: Claims,
    fitting: Sequence[Match],
    logs: Sequence[ParsedLog],
    needed: Sequence[str],
) -> Identity:
    """Identify a run if its claims, with the facts in its logs, leave a single key.

    Otherwise the identity has no key and lists the candidates.
    """
    missing = [field for field in needed if not _is_stated(field, claims)]
    keys = _list_keys(fitting)
    if len(keys) == 1 and not missing:
        return _make_identity(keys[0], claims, missing)
    checked = [(match.key, _check_facts(logs, match.baseline)) for match in fitting]
    consistent = [(key, facts) for key, facts in checked if all(facts.values())]
    remaining = tuple(sorted({key for key, _ in consistent}))
    suffices = needed == _NEEDED and all(
        _do_facts_suffice(facts, missing) for _, facts in consistent
    )
    if len(remaining) == 1 and (suffices or not missing):
        return _make_identity(remaining[0], claims, missing)
    return _make_ambiguous(
        remaining or keys, claims, missing, contradicted=not remaining
    )


@dataclass(frozen=True, slots=True)
class LogSummary:
    """The facts of a run's logs."""

    dialects: frozenset[str]
    batch_sizes: frozenset[float]
    totals: frozenset[int]  # of steps
    tflop_per_step: float  # the work of a step on one GPU, 0 if unknown


def _summarise_logs(logs: Sequence[ParsedLog]) -> LogSummary:
    """Collect the facts of a run's logs.

    The work of a step (TFLOP/s times seconds) is the same for fast and slow steps.
    """
    segments = [segment for log in logs for segment in log.segments]
    batches = {
        value
        for segment in segments
        for value in segment.steps.global_batch_size.tolist()
    }
    work = [value for segment in segments for value in _compute_work(segment)]
    return LogSummary(
        dialects=frozenset(log.dialect for log in logs if log.dialect),
        batch_sizes=frozenset(value for value in batches if not math.isnan(value)),
        totals=frozenset(
            segment.total_steps
            for segment in segments
            if segment.total_steps is not None
        ),
        tflop_per_step=statistics.median(work) if work else 0.0,
    )


def _check_facts(logs: Sequence[ParsedLog], baseline: Baseline) -> dict[str, bool]:
    """Compare the facts of the logs, read in the baseline's dialect, with the baseline.

    Returns True or False for each fact that the logs contain.
    """
    summary = _summarise_logs([log.read_as(baseline.dialect) for log in logs])
    fits = {}
    if summary.dialects:
        fits["dialect"] = summary.dialects == {baseline.dialect}
    if summary.batch_sizes and baseline.configuration.global_batch_size:
        fits["global_batch_size"] = summary.batch_sizes == {
            baseline.configuration.global_batch_size
        }
    if summary.totals:
        fits["total_steps"] = baseline.steps in summary.totals
    # TFLOP/s at a step time of one second is the work of a step; some frameworks log a
    # multiple of the documents' formula
    work = compute_tflops_per_gpu(baseline.configuration, 1.0) * (
        baseline.logged_tflops_factor or 1.0
    )
    if summary.tflop_per_step and not math.isnan(work):  # NaN: unknown work
        fits["tflops"] = abs(summary.tflop_per_step / work - 1) <= TFLOPS_MARGIN
    return fits


def _compute_work(segment: Segment) -> Iterator[float]:
    steps = segment.steps
    for seconds, tflops in zip(
        steps.seconds.tolist(), steps.tflops_per_gpu.tolist(), strict=True
    ):
        if 0 < seconds < math.inf and 0 < tflops < math.inf:
            yield seconds * tflops


def _is_stated(field: str, claims: Claims) -> bool:
    return field in claims.by_field or (field == "gpus" and "nodes" in claims.by_field)


def _do_facts_suffice(facts: Collection[str], missing: Sequence[str]) -> bool:
    """True if the facts confirmed by a log make up for the missing fields.

    If only the recipe is missing, the dialect and the batch size or TFLOP/s suffice.
    Otherwise every fact that a log can contain is needed.
    """
    if missing == ["recipe"]:  # older folder layouts do not name the recipe
        return "dialect" in facts and (
            "global_batch_size" in facts or "tflops" in facts
        )
    return not missing or set(FACTS) <= set(facts)


def _make_identity(key: Key, claims: Claims, missing: Sequence[str]) -> Identity:
    """Build the identity of a run with one fitting baseline, and its explanation."""
    assumed = tuple(
        field for field in (*_OPTIONS, *missing) if field not in claims.by_field
    )
    sources = dict.fromkeys(
        source for claim in claims.by_field.values() for source in claim.sources
    )
    explanation = (
        f"according to {join_first(list(sources))}"
        if sources
        else "according to the log"
    )
    if assumed:
        explanation += f"; assumed, as it is not stated and no other baseline fits: {', '.join(assumed)}"
    return Identity(key, explanation, assumed=assumed)


def _make_ambiguous(
    candidates: Sequence[Key],
    claims: Claims,
    missing: Sequence[str],
    *,
    contradicted: bool,
) -> Identity:
    """Build the identity of a run that fits several baselines, with an advice.

    `contradicted` is true if the content of the log fits none of them.
    """
    ids = join_first([key.id for key in candidates])
    open_fields = [
        field
        for field in _KEY_FIELDS
        if len({getattr(key, field) for key in candidates}) > 1
    ]
    unstated = [
        field
        for field in dict.fromkeys((*missing, *open_fields))
        if not _is_stated(field, claims)
    ]
    summary_start = f"could be {ids}"
    misfit = (
        "but the batch size, steps or TFLOP/s in its log fit none of them"
        if contradicted
        else ""
    )
    open_text = f"not stated: {', '.join(unstated)}" if unstated else ""
    options = [
        f"{_OPTIONS[field]}={_list_values(candidates, field)}"
        for field in unstated
        if field in _OPTIONS
    ]
    advice = f"give {' and '.join(options)}" if options else ""
    explanation = _join_clauses(summary_start, misfit, open_text, advice)
    summary = _join_clauses(summary_start, open_text)
    keys = tuple(candidates)
    return Identity(
        None,
        explanation,
        candidates=keys,
        may_be=keys,
        summary=summary,
        advice=advice,
        fits_none=contradicted,
    )


def _make_contradicted(subject: Subject, find: Matching) -> Identity:
    """Return an identity without a key: sources contradict each other.

    Candidates are the keys that fit one value of each contradicted field and all other
    fields.
    """
    claims = subject.claims
    fields_in_doubt = {
        claim.field for conflicting in claims.contradictions for claim in conflicting
    }
    first, *further = (
        " but ".join(map(str, conflicting)) for conflicting in claims.contradictions
    )
    fitting = [
        {
            match.key
            for claim in conflicting
            for match in find(
                replace(
                    subject,
                    claims=replace(
                        claims, by_field={**claims.by_field, claim.field: claim}
                    ),
                )
            )
            if set(match.differences) <= fields_in_doubt - {claim.field}
        }
        for conflicting in claims.contradictions
    ]
    candidates = tuple(sorted(set.intersection(*fitting)))
    summary = f"its sources contradict each other: {first}"
    possible = candidates or find_possible(find(subject), *_find_nearness(claims))
    return Identity(
        None,
        _join_clauses(summary, *further),
        candidates=candidates,
        contradicted=tuple(sorted(fields_in_doubt)),
        may_be=tuple(possible),
        summary=summary,
    )


def _make_unmatched(
    claims: Claims, matches: Sequence[Match], summary: str, recipes: Sequence[Recipe]
) -> Identity:
    """Build the identity of a run that fits no baseline, with the nearest baselines."""
    nearby = find_nearest(matches, *_find_nearness(claims))
    differing = frozenset(nearby[0].differences) if nearby else frozenset()
    summary_text = (
        _describe_missing_baseline(claims, differing, recipes)
        or f"no baseline fits {summary}"
    )
    other_release = nearby and differing <= {"release", "layout"}
    advice = (
        f"--llmb-baseline-release={nearby[0].key.release} judges it against that release"
        if other_release
        else ""
    )
    nearby = tuple(match for match in nearby if is_near(match, claims))
    nearest_text = ", ".join(
        f"{match.key.id} ({', '.join(match.differences)})" for match in nearby
    )
    explanation = _join_clauses(
        summary_text, nearest_text and f"nearest: {nearest_text}", advice
    )
    possible = find_possible(matches, *_find_nearness(claims))
    return Identity(
        None,
        explanation,
        nearest=tuple(match.key for match in nearby),
        may_be=possible,
        summary=summary_text,
        advice=advice,
    )


def _join_clauses(*clauses: str) -> str:
    return "; ".join(filter(None, clauses))


def _find_nearness(claims: Claims) -> tuple[str, str]:
    """Return the number of GPUs and the precision, which rank baselines by distance."""
    gpus, dtype = (
        claims.by_field[name].value if name in claims.by_field else ""
        for name in ("gpus", "dtype")
    )
    return gpus, dtype


def _describe_missing_baseline(
    claims: Claims, differing: Collection[str], recipes: Sequence[Recipe]
) -> str:
    """Return a message if the recipe, or only the release, has no baseline, else ""."""
    if "recipe" in differing:
        value = claims.by_field["recipe"].value
        return f"recipe {value} has no baseline{did_you_mean(value, {recipe.name for recipe in recipes})}"
    if "release" in differing and set(differing) <= {"release", "layout"}:
        return f"release {claims.by_field['release'].value} has no baseline"
    return ""


def _summarise_claims(claims: Claims, layout: str, dialects: Collection[str]) -> str:
    """Summarise the known fields of a run in the order of a key."""
    values = [
        f"{field} {claims.by_field[field].value}"
        for field in _KEY_FIELDS
        if field in claims.by_field
    ]
    if layout:
        values.append(f"folders of the {layout} layout")
    values += [f"a {dialect} log" for dialect in sorted(dialects)]
    return ", ".join(values) or "a run without known facts"


def _list_keys(fitting: Sequence[Match]) -> tuple[Key, ...]:
    return tuple(sorted({match.key for match in fitting}))


def _list_values(candidates: Sequence[Key], field: str) -> str:
    return "|".join(sorted({str(getattr(key, field)) for key in candidates}))
