"""Identify the configuration of a run from its names, metadata and content.

Never guesses: a wrong answer could compare a slow run with a slower baseline. All
sources have to agree, and the precision and the number of GPUs have to be stated.
Fields that only the choice of baselines implies are listed as assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Baseline, Key, Recipe
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.formatting import join_clauses, join_first
from pytest_llmbench.core.log_records import ParsedLog, Segment
from pytest_llmbench.core.metric_definitions import compute_tflops_per_gpu
from pytest_llmbench.core.run_records import Hint, Identity, RunFiles
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

_REQUIRED_FIELDS = ("recipe", "size", "dtype", "gpus")
_REQUIRED_BY_TABLES = (*_REQUIRED_FIELDS, "gpu", "release")
"""Fields that a Megatron-Bridge run has to state.

Its logs do not print all of them, and rows of its tables may differ in one only.
"""

_OPTIONS = {"release": "--llmb-release", "gpu": "--llmb-gpu"}
_KEY_FIELDS = Key.__struct_fields__

# Limit of nearest baselines in an explanation.
_MOST_NEAREST = 3

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
    # 1. baselines with a path and facts
    path_comparisons = (
        [] if baseline_release else compare_baselines_at_path(run, logs, recipes)
    )
    closest = select_closest(path_comparisons)
    keys = tuple(sorted({comparison.baseline.key for comparison in closest}))
    if len(keys) == 1:
        comparison = closest[0]
        explanation = (
            "its path, and the facts in its log and metadata, match the baseline file"
        )
        return Identity(
            comparison.baseline.key,
            explanation,
            changes=comparison.changes,
            one_sided=comparison.one_sided,
        )
    if keys:
        return _make_ambiguous_by_facts(closest, keys)
    # 2. names and metadata
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
    # 3. the tables of Megatron-Bridge, if names leave no candidate or the log fits none
    is_undecided = identity.key is None and (
        not identity.candidates or identity.fits_none
    )
    if tables is None or not is_undecided or not is_readable(logs):
        return identity
    companions = tables.read_companions(run)
    if not names_model(run, companions):
        return identity
    table_recipes = [
        *tables.read_recipes(),
        *(recipe for recipe in recipes if recipe.name == MEGATRON_BRIDGE),
    ]
    releases = {recipe.release for recipe in table_recipes}
    identity_by_tables = _identify_by_names(
        replace(run, hints=collect_hints(run, logs, companions, releases)),
        logs,
        table_recipes,
        options,
        baseline_release=baseline_release,
        find=find,
        required_fields=_REQUIRED_BY_TABLES,
    )
    may_be = dict.fromkeys((*identity_by_tables.may_be, *identity.may_be))
    return replace(identity_by_tables, may_be=tuple(may_be))


def _make_ambiguous_by_facts(
    closest: Sequence[Comparison], keys: tuple[Key, ...]
) -> Identity:
    """Return an identity without a key: several baselines fit the facts equally well."""
    missing_facts = dict.fromkeys(
        name for comparison in closest for name in comparison.missing
    )
    reason = (
        f"it does not state {join_first(list(missing_facts))}"
        if missing_facts
        else "their paths and facts are the same"
    )
    explanation = f"could be {join_first([key.id for key in keys])}: {reason}"
    return Identity(
        None, explanation, candidates=keys, may_be=keys, summary=explanation
    )


def _add_differences(
    identity: Identity, path_comparisons: Sequence[Comparison]
) -> Identity:
    """Explain an unknown identity by the closest baseline that has the run's path.

    The closest baseline differs in the fewest facts.
    """
    closest = min(
        path_comparisons,
        key=lambda comparison: (len(comparison.differences), comparison.baseline.key),
    )
    key = closest.baseline.key
    differences = join_first(list(closest.differences))
    summary = f"another configuration than {key.id}: {differences}"
    nearest_keys = tuple(dict.fromkeys((key, *identity.nearest)))
    keys_at_path = [comparison.baseline.key for comparison in path_comparisons]
    return replace(
        identity,
        because=summary,
        summary=summary,
        nearest=nearest_keys[:_MOST_NEAREST],
        may_be=tuple(dict.fromkeys((*keys_at_path, *identity.may_be))),
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
    required_fields: Sequence[str] = _REQUIRED_FIELDS,
) -> Identity:
    """Identify a run by its names and metadata, or explain why it is unknown.

    With `baseline_release`, the run's release and its layout, which depends on the
    release, are ignored.
    """
    hints = run.hints
    ignored_releases: list[Hint] = []
    if baseline_release:
        hints = tuple(hint for hint in run.hints if hint.field != "release")
        ignored_releases = [hint for hint in run.hints if hint.field == "release"]
    claims = _add_options(collect_claims(hints, recipes), options, baseline_release)
    subject = Subject(
        claims,
        layout="" if baseline_release else run.layout,
        dialects=tuple(log.dialects for log in logs if log.dialect),
        recipes=recipes,
    )
    matches = find(subject)
    fitting = [match for match in matches if not match.differences]
    if claims.contradictions:
        identity = _make_contradicted(subject, find)
    elif fitting:
        identity = _choose_key(claims, fitting, logs, required_fields)
    else:
        dialects = frozenset(log.dialect for log in logs if log.dialect)
        summary = _summarise_claims(claims, run.layout, dialects)
        identity = _make_unmatched(claims, matches, summary, recipes)
    if not ignored_releases:
        return identity
    release = ignored_releases[0]
    return replace(
        identity,
        because=f"{identity.because}; its own release {release.value} ({release.source}) is ignored",
    )


def _add_options(
    claims: Claims, options: Mapping[str, str], baseline_release: str
) -> Claims:
    """Add the values of options for fields that the run leaves open.

    `options` maps the fields of `_OPTIONS` to values, "" for an option that is not
    given. `baseline_release` overrides the run's release.
    """
    contradicted_fields = _list_contradicted_fields(claims)
    claims_by_field = dict(claims.by_field)
    for field, value in options.items():
        is_open = field not in claims.by_field and field not in contradicted_fields
        if value and is_open:
            claims_by_field[field] = Claim(field, value.casefold(), (_OPTIONS[field],))
    if baseline_release:
        claims_by_field["release"] = Claim(
            "release", baseline_release.casefold(), ("--llmb-baseline-release",)
        )
    return replace(claims, by_field=claims_by_field)


def _list_contradicted_fields(claims: Claims) -> set[str]:
    """Return the fields for which sources of a run state different values."""
    return {
        claim.field
        for conflicting_claims in claims.contradictions
        for claim in conflicting_claims
    }


def _choose_key(
    claims: Claims,
    fitting: Sequence[Match],
    logs: Sequence[ParsedLog],
    required_fields: Sequence[str],
) -> Identity:
    """Identify a run if its claims, with the facts in its logs, leave a single key.

    Otherwise the identity has no key and lists the candidates. Facts of the log, such
    as the batch size, may make up for required fields that no source states, except for
    a Megatron-Bridge run.
    """
    missing = [field for field in required_fields if not _is_stated(field, claims)]
    keys = tuple(sorted({match.key for match in fitting}))
    if len(keys) == 1 and not missing:
        return _make_identity(keys[0], claims, missing)
    # several keys fit, or required fields are missing: let the facts of the logs decide
    facts_by_match = [
        (match.key, _check_facts(logs, match.baseline)) for match in fitting
    ]
    consistent = [(key, facts) for key, facts in facts_by_match if all(facts.values())]
    consistent_keys = tuple(sorted({key for key, _ in consistent}))
    is_bridge_run = required_fields != _REQUIRED_FIELDS
    do_facts_suffice = not is_bridge_run and all(
        _do_facts_suffice(facts, missing) for _, facts in consistent
    )
    if len(consistent_keys) == 1 and (do_facts_suffice or not missing):
        return _make_identity(consistent_keys[0], claims, missing)
    return _make_ambiguous(
        consistent_keys or keys, claims, missing, contradicted=not consistent_keys
    )


class LogSummary(Struct, frozen=True):
    """The facts of a run's logs."""

    dialects: frozenset[str]
    batch_sizes: frozenset[float]
    step_counts: frozenset[int]  # the total numbers of steps
    tflop_per_step: float  # the work of a step on one GPU, 0 if unknown


def _summarise_logs(logs: Sequence[ParsedLog]) -> LogSummary:
    """Collect the facts of a run's logs.

    The work of a step (TFLOP/s times seconds) is the same for fast and slow steps.
    """
    segments = [segment for log in logs for segment in log.segments]
    batch_sizes = {
        value
        for segment in segments
        for value in segment.steps.global_batch_size.tolist()
    }
    work = [tflop for segment in segments for tflop in _compute_work(segment)]
    return LogSummary(
        dialects=frozenset(log.dialect for log in logs if log.dialect),
        # NaN: the log does not print a batch size
        batch_sizes=frozenset(value for value in batch_sizes if not math.isnan(value)),
        step_counts=frozenset(
            segment.total_steps
            for segment in segments
            if segment.total_steps is not None
        ),
        tflop_per_step=statistics.median(work) if work else 0.0,
    )


def _check_facts(logs: Sequence[ParsedLog], baseline: Baseline) -> dict[str, bool]:
    """Compare the facts of the logs, read in the baseline's dialect, with the baseline.

    Returns {fact: True if it fits} for the facts that the logs contain.
    """
    summary = _summarise_logs([log.read_as(baseline.dialect) for log in logs])
    fits: dict[str, bool] = {}
    if summary.dialects:
        fits["dialect"] = summary.dialects == {baseline.dialect}
    batch_size = baseline.configuration.global_batch_size
    if summary.batch_sizes and batch_size:
        fits["global_batch_size"] = summary.batch_sizes == {batch_size}
    if summary.step_counts:
        fits["total_steps"] = baseline.steps in summary.step_counts
    # TFLOP/s at a step time of one second is the work of a step; some frameworks log a
    # multiple of the documents' formula
    work = compute_tflops_per_gpu(baseline.configuration, 1.0) * (
        baseline.logged_tflops_factor or 1.0
    )
    if summary.tflop_per_step and not math.isnan(work):  # NaN: unknown work
        fits["tflops"] = abs(summary.tflop_per_step / work - 1) <= TFLOPS_MARGIN
    return fits


def _compute_work(segment: Segment) -> Iterator[float]:
    """Yield the TFLOP of each step that prints a time and TFLOP/s."""
    steps = segment.steps
    for seconds, tflops in zip(
        steps.seconds.tolist(), steps.tflops_per_gpu.tolist(), strict=True
    ):
        if 0 < seconds < math.inf and 0 < tflops < math.inf:
            yield seconds * tflops


def _is_stated(field: str, claims: Claims) -> bool:
    """True if a run states a field; a number of nodes states the GPUs, too."""
    return field in claims.by_field or (field == "gpus" and "nodes" in claims.by_field)


def _do_facts_suffice(confirmed_facts: Collection[str], missing: Sequence[str]) -> bool:
    """True if the facts confirmed by a log make up for the missing fields.

    If only the recipe is missing, the dialect and the batch size or TFLOP/s suffice.
    Otherwise every fact that a log can contain is needed.
    """
    facts = set(confirmed_facts)
    if not missing:
        return True
    if missing == ["recipe"]:  # older folder layouts do not name the recipe
        return "dialect" in facts and not facts.isdisjoint(
            {"global_batch_size", "tflops"}
        )
    return facts >= set(FACTS)


def _make_identity(key: Key, claims: Claims, missing: Sequence[str]) -> Identity:
    """Build the identity of a run with one fitting baseline, and its explanation.

    Fields in `missing`, and fields of options, are assumed if no claim states them.
    """
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
    # values of each field of the candidates' keys, e.g. {"h100", "b200"}
    values_by_field = {
        field: {str(getattr(key, field)) for key in candidates} for field in _KEY_FIELDS
    }
    differing_fields = [
        field for field, values in values_by_field.items() if len(values) > 1
    ]
    unstated_fields = [
        field
        for field in dict.fromkeys((*missing, *differing_fields))
        if not _is_stated(field, claims)
    ]
    candidates_clause = f"could be {join_first([key.id for key in candidates])}"
    misfit_clause = ""
    if contradicted:
        misfit_clause = (
            "but the batch size, steps or TFLOP/s in its log fit none of them"
        )
    unstated_clause = ""
    if unstated_fields:
        unstated_clause = f"not stated: {', '.join(unstated_fields)}"
    options = [
        f"{_OPTIONS[field]}={'|'.join(sorted(values_by_field[field]))}"
        for field in unstated_fields
        if field in _OPTIONS
    ]
    advice = f"give {' and '.join(options)}" if options else ""
    keys = tuple(candidates)
    return Identity(
        None,
        join_clauses(candidates_clause, misfit_clause, unstated_clause, advice),
        candidates=keys,
        may_be=keys,
        summary=join_clauses(candidates_clause, unstated_clause),
        advice=advice,
        fits_none=contradicted,
    )


def _make_contradicted(subject: Subject, find: Matching) -> Identity:
    """Return an identity without a key: sources contradict each other.

    Candidates are the keys that fit one value of each contradicted field and all other
    fields.
    """
    claims = subject.claims
    contradicted_fields = _list_contradicted_fields(claims)
    # the keys that fit one of the values, for each contradicted field
    keys_by_field: list[set[Key]] = []
    for conflicting_claims in claims.contradictions:
        fitting_keys: set[Key] = set()
        for claim in conflicting_claims:
            # assume that this value is right; other contradicted fields may differ
            resolved = replace(claims, by_field={**claims.by_field, claim.field: claim})
            other_contradicted = contradicted_fields - {claim.field}
            for match in find(replace(subject, claims=resolved)):
                if other_contradicted.issuperset(match.differences):
                    fitting_keys.add(match.key)
        keys_by_field.append(fitting_keys)
    candidates = tuple(sorted(set.intersection(*keys_by_field)))
    # "size 8b (file a) but 70b (folder b)"
    first_contradiction, *further_contradictions = (
        " but ".join(map(str, conflicting_claims))
        for conflicting_claims in claims.contradictions
    )
    summary = f"its sources contradict each other: {first_contradiction}"
    possible = candidates or find_possible(find(subject), *_read_gpus_and_dtype(claims))
    return Identity(
        None,
        join_clauses(summary, *further_contradictions),
        candidates=candidates,
        contradicted=tuple(sorted(contradicted_fields)),
        may_be=possible,
        summary=summary,
    )


def _make_unmatched(
    claims: Claims, matches: Sequence[Match], summary: str, recipes: Sequence[Recipe]
) -> Identity:
    """Build the identity of a run that fits no baseline, with the nearest baselines.

    `summary` describes the run, such as `recipe grok1, size 314b`.
    """
    gpus, dtype = _read_gpus_and_dtype(claims)
    nearest = find_nearest(matches, gpus, dtype)
    differences: frozenset[str] = frozenset()  # from the nearest baseline
    advice = ""
    if nearest:
        nearest_match = nearest[0]
        differences = frozenset(nearest_match.differences)
        if differences <= {"release", "layout"}:
            advice = f"--llmb-baseline-release={nearest_match.key.release} judges it against that release"
    problem = _describe_missing_baseline(claims, differences, recipes)
    problem = problem or f"no baseline fits {summary}"
    shown_matches = [match for match in nearest if is_near(match, claims)]
    nearest_text = ", ".join(
        f"{match.key.id} ({', '.join(match.differences)})" for match in shown_matches
    )
    nearest_clause = f"nearest: {nearest_text}" if nearest_text else ""
    return Identity(
        None,
        join_clauses(problem, nearest_clause, advice),
        nearest=tuple(match.key for match in shown_matches),
        may_be=find_possible(matches, gpus, dtype),
        summary=problem,
        advice=advice,
    )


def _read_gpus_and_dtype(claims: Claims) -> tuple[str, str]:
    """Return the number of GPUs and the precision, "" if not stated.

    Both rank the baselines by their distance from the run.
    """
    gpus, dtype = (
        claims.by_field[field].value if field in claims.by_field else ""
        for field in ("gpus", "dtype")
    )
    return gpus, dtype


def _describe_missing_baseline(
    claims: Claims, differences: frozenset[str], recipes: Sequence[Recipe]
) -> str:
    """Return a message if the recipe, or only the release, has no baseline, else "".

    `differences` are the fields in which the nearest baseline differs from the run.
    """
    if "recipe" in differences:
        recipe_name = claims.by_field["recipe"].value
        suggestion = did_you_mean(recipe_name, {recipe.name for recipe in recipes})
        return f"recipe {recipe_name} has no baseline{suggestion}"
    if "release" in differences and differences <= {"release", "layout"}:
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
