"""Which configuration a run is: names, metadata and content together; never a guess.

A wrong answer here could pass a slow run against a slower baseline. So every source has
to agree, the precision and the number of GPUs have to be said by somebody, and what
only one baseline allows is listed as assumed.
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
"""What has to be said of a run of Megatron-Bridge: no log shows it, and rows differ by
it alone."""

_OPTIONS = {"release": "--llmb-release", "gpu": "--llmb-gpu"}
_KEY_FIELDS = tuple(field.name for field in fields(Key))

# All that a log can state of its configuration.
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
    """Return the one configuration that fits everything a run says, or why there is
    none.

    `release` and `gpu` fill in what nothing says and override nothing;
    `baseline_release` replaces the run's release on purpose. `find` is what
    `cache_matches` returned, where there are many runs. A batch size in the log that
    contradicts the names changes nothing here: the run claims to be that configuration,
    and measuring it finds that it is not. A baseline that says where its runs lie, and
    what they say, comes before all names, and the `tables` of Megatron-Bridge come
    last: of their runs everything that tells rows apart has to be said.
    """
    own = [] if baseline_release else compare_baselines_at_path(run, logs, recipes)
    closest = select_closest(own)
    keys = tuple(sorted({comparison.baseline.key for comparison in closest}))
    if len(keys) == 1:
        because = "its place, and what its log and metadata say, are those of the baseline file"
        return Identity(
            keys[0], because, changes=closest[0].changes, one_sided=closest[0].one_sided
        )
    if keys:
        return _make_ambiguous_by_facts(closest, keys)
    named = [recipe for recipe in recipes if recipe.name != MEGATRON_BRIDGE]
    options = {"release": release, "gpu": gpu}
    identity = _identify_by_names(
        run, logs, named, options, baseline_release=baseline_release, find=find
    )
    if own and identity.key is None:
        return _add_differences(identity, own)
    open_still = identity.key is None and (
        not identity.candidates or identity.fits_none
    )
    if tables is None or not open_still or not is_readable(logs):
        return identity
    beside = tables.read_companions(run)
    if not names_model(run, beside):
        return identity
    rows = [
        *tables.read_recipes(),
        *(recipe for recipe in recipes if recipe.name == MEGATRON_BRIDGE),
    ]
    run = replace(
        run, hints=collect_hints(run, logs, beside, {recipe.release for recipe in rows})
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
    """Return that the facts of a run fit several baselines equally well, and what it
    would have to state."""
    missing = dict.fromkeys(
        name for comparison in closest for name in comparison.missing
    )
    why = (
        f"it does not state {join_first(list(missing))}"
        if missing
        else "their place, and what they say, are the same"
    )
    because = f"could be {join_first([key.id for key in keys])}: {why}"
    return Identity(None, because, candidates=keys, may_be=keys, summary=because)


def _add_differences(identity: Identity, own: Sequence[Comparison]) -> Identity:
    """Return why a run is of no baseline whose place it lies at: the one that it
    differs from least."""
    nearest = min(
        own,
        key=lambda comparison: (len(comparison.differences), comparison.baseline.key),
    )
    key = nearest.baseline.key
    head = (
        f"another configuration than {key.id}: {join_first(list(nearest.differences))}"
    )
    near = tuple(dict.fromkeys((key, *identity.nearest)))
    may_be = tuple(
        dict.fromkeys(
            (*(comparison.baseline.key for comparison in own), *identity.may_be)
        )
    )
    return replace(
        identity, because=head, summary=head, nearest=near[:3], may_be=may_be, advice=""
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
    """Return the configuration that fits what the names and metadata of a run say, or
    why there is none."""
    hints = [
        hint for hint in run.hints if not (baseline_release and hint.field == "release")
    ]
    claims = _add_options(collect_claims(hints, recipes), options, baseline_release)
    dialects = frozenset(log.dialect for log in logs if log.dialect)
    readable = tuple(log.dialects for log in logs if log.dialect)
    subject = Subject(claims, "" if baseline_release else run.layout, readable, recipes)
    every = find(subject)
    fitting = [match for match in every if not match.differences]
    if claims.contradictions:
        identity = _make_contradicted(subject, find)
    elif fitting:
        identity = _choose_key(claims, fitting, logs, needed)
    else:
        identity = _make_unmatched(
            claims, every, _summarise_claims(claims, run.layout, dialects), recipes
        )
    own = next(
        (hint for hint in run.hints if baseline_release and hint.field == "release"),
        None,
    )
    if own is None:
        return identity
    return replace(
        identity,
        because=f"{identity.because}; its own release {own.value} ({own.source}) is set aside",
    )


def _add_options(
    claims: Claims, options: Mapping[str, str], baseline_release: str
) -> Claims:
    """Add to what a run says what the options say of fields that it leaves open."""
    contradicted = {
        claim.field for several in claims.contradictions for claim in several
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
    """Return the only key that fits, or the only one that the logs leave; else the
    candidates."""
    missing = [field for field in needed if not _is_said(field, claims)]
    keys = _list_keys(fitting)
    if len(keys) == 1 and not missing:
        return _make_identity(keys[0], claims, missing)
    stated = [(match.key, _check_facts(logs, match.baseline)) for match in fitting]
    left = [(key, stands) for key, stands in stated if all(stands.values())]
    remaining = tuple(sorted({key for key, _ in left}))
    enough = needed == _NEEDED and all(
        _is_enough(stands, missing) for _, stands in left
    )
    if len(remaining) == 1 and (enough or not missing):
        return _make_identity(remaining[0], claims, missing)
    return _make_ambiguous(
        remaining or keys, claims, missing, contradicted=not remaining
    )


@dataclass(frozen=True, slots=True)
class LogSummary:
    """What a run's logs say."""

    dialects: frozenset[str]
    batch_sizes: frozenset[float]
    totals: frozenset[int]  # of steps
    tflop_per_step: float  # the work of a step on one GPU, 0 where no log says it


def _summarise_logs(logs: Sequence[ParsedLog]) -> LogSummary:
    """Collect what the logs of a run say. TFLOP/s times seconds is the same for a fast
    step and a slow one."""
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
    """Return the facts that the logs state when read in the baseline's dialect, each
    with whether it fits."""
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
    # the TFLOP/s of a step of one second are its work; some frameworks log a multiple
    # of the documents' formula
    work = compute_tflops_per_gpu(baseline.configuration, 1.0) * (
        baseline.logged_tflops_factor or 1.0
    )
    if summary.tflop_per_step and not math.isnan(work):  # NaN: nothing states that work
        fits["tflops"] = abs(summary.tflop_per_step / work - 1) <= TFLOPS_MARGIN
    return fits


def _compute_work(segment: Segment) -> Iterator[float]:
    steps = segment.steps
    for seconds, tflops in zip(
        steps.seconds.tolist(), steps.tflops_per_gpu.tolist(), strict=True
    ):
        if 0 < seconds < math.inf and 0 < tflops < math.inf:
            yield seconds * tflops


def _is_said(field: str, claims: Claims) -> bool:
    return field in claims.by_field or (field == "gpus" and "nodes" in claims.by_field)


def _is_enough(stands: Collection[str], missing: Sequence[str]) -> bool:
    """Whether what a log confirms makes up for what names leave open.

    For the recipe alone the dialect and the work of a step do; for anything else, every
    fact that a log can state.
    """
    if missing == ["recipe"]:  # the older folders do not name it
        return "dialect" in stands and (
            "global_batch_size" in stands or "tflops" in stands
        )
    return not missing or set(FACTS) <= set(stands)


def _make_identity(key: Key, claims: Claims, missing: Sequence[str]) -> Identity:
    assumed = tuple(
        field for field in (*_OPTIONS, *missing) if field not in claims.by_field
    )
    sources = dict.fromkeys(
        source for claim in claims.by_field.values() for source in claim.sources
    )
    because = f"so say {join_first(list(sources))}" if sources else "so says the log"
    if assumed:
        because += f"; assumed, as nothing says it and no other baseline fits: {', '.join(assumed)}"
    return Identity(key, because, assumed=assumed)


def _make_ambiguous(
    candidates: Sequence[Key],
    claims: Claims,
    missing: Sequence[str],
    *,
    contradicted: bool,
) -> Identity:
    ids = join_first([key.id for key in candidates])
    open_fields = [
        field
        for field in _KEY_FIELDS
        if len({getattr(key, field) for key in candidates}) > 1
    ]
    unsaid = [
        field
        for field in dict.fromkeys((*missing, *open_fields))
        if not _is_said(field, claims)
    ]
    head = f"could be {ids}"
    misfit = (
        "but the batch size, steps or TFLOP/s in its log fit none of them"
        if contradicted
        else ""
    )
    open_text = f"nothing says its {', '.join(unsaid)}" if unsaid else ""
    options = [
        f"{_OPTIONS[field]}={_list_values(candidates, field)}"
        for field in unsaid
        if field in _OPTIONS
    ]
    advice = f"give {' and '.join(options)}" if options else ""
    because, summary = (
        _join_clauses(head, misfit, open_text, advice),
        _join_clauses(head, open_text),
    )
    keys = tuple(candidates)
    return Identity(
        None,
        because,
        candidates=keys,
        may_be=keys,
        summary=summary,
        advice=advice,
        fits_none=contradicted,
    )


def _make_contradicted(subject: Subject, find: Matching) -> Identity:
    """Name as candidates the keys that fit one value of each contradicted field, and
    everything else."""
    claims = subject.claims
    fields_in_doubt = {
        claim.field for several in claims.contradictions for claim in several
    }
    first, *others = (
        " but ".join(map(str, several)) for several in claims.contradictions
    )
    fitting = [
        {
            match.key
            for claim in several
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
        for several in claims.contradictions
    ]
    candidates = tuple(sorted(set.intersection(*fitting)))
    summary = f"its sources contradict each other: {first}"
    possible = candidates or find_possible(find(subject), *_find_nearness(claims))
    return Identity(
        None,
        _join_clauses(summary, *others),
        candidates=candidates,
        contradicted=tuple(sorted(fields_in_doubt)),
        may_be=tuple(possible),
        summary=summary,
    )


def _make_unmatched(
    claims: Claims, every: Sequence[Match], summary: str, recipes: Sequence[Recipe]
) -> Identity:
    near = find_nearest(every, *_find_nearness(claims))
    differing = frozenset(near[0].differences) if near else frozenset()
    head = _name_lacking(claims, differing, recipes) or f"no baseline fits {summary}"
    other_release = near and differing <= {"release", "layout"}
    advice = (
        f"--llmb-baseline-release={near[0].key.release} judges it against that release"
        if other_release
        else ""
    )
    near = tuple(match for match in near if is_near(match, claims))
    nearest = ", ".join(
        f"{match.key.id} ({', '.join(match.differences)})" for match in near
    )
    because = _join_clauses(head, nearest and f"nearest: {nearest}", advice)
    possible = find_possible(every, *_find_nearness(claims))
    return Identity(
        None,
        because,
        nearest=tuple(match.key for match in near),
        may_be=possible,
        summary=head,
        advice=advice,
    )


def _join_clauses(*clauses: str) -> str:
    return "; ".join(filter(None, clauses))


def _find_nearness(claims: Claims) -> tuple[str, str]:
    """Return the number of GPUs and the precision, by which one baseline is nearer to a
    run than another."""
    gpus, dtype = (
        claims.by_field[name].value if name in claims.by_field else ""
        for name in ("gpus", "dtype")
    )
    return gpus, dtype


def _name_lacking(
    claims: Claims, differing: Collection[str], recipes: Sequence[Recipe]
) -> str:
    """Return which one thing has no baseline, if it is one thing: the recipe, or the
    release and nothing else."""
    if "recipe" in differing:
        value = claims.by_field["recipe"].value
        return f"recipe {value} has no baseline{did_you_mean(value, {recipe.name for recipe in recipes})}"
    if "release" in differing and set(differing) <= {"release", "layout"}:
        return f"release {claims.by_field['release'].value} has no baseline"
    return ""


def _summarise_claims(claims: Claims, layout: str, dialects: Collection[str]) -> str:
    """Return what is known of a run, in the order of a key."""
    values = [
        f"{field} {claims.by_field[field].value}"
        for field in _KEY_FIELDS
        if field in claims.by_field
    ]
    values += [f"folders of the {layout} layout"] if layout else []
    values += [f"a {dialect} log" for dialect in sorted(dialects)]
    return ", ".join(values) or "a run that says nothing of itself"


def _list_keys(fitting: Sequence[Match]) -> tuple[Key, ...]:
    return tuple(sorted({match.key for match in fitting}))


def _list_values(candidates: Sequence[Key], field: str) -> str:
    return "|".join(sorted({str(getattr(key, field)) for key in candidates}))
