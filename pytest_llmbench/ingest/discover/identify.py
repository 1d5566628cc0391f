"""Which configuration a run is: names, metadata and content together; never a guess.

A wrong answer here could pass a slow run against a slower baseline. So every source has to agree, the precision and the
number of GPUs have to be said by somebody, and what only one baseline allows is listed as assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace

from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.formatting import join_first
from pytest_llmbench.core.models import Baseline, Identity, Key, ParsedLog, Recipe, RunFiles
from pytest_llmbench.ingest.discover.claims import Claim, Claims, collect_claims
from pytest_llmbench.ingest.discover.content import FACTS, ExpectedTflops, LogSummary, check_facts, summarise_logs
from pytest_llmbench.ingest.discover.match import Match, Matching, Subject, find_nearest, find_possible, match_baselines

_NEEDED = ("recipe", "size", "dtype", "gpus")
_OPTIONS = {"release": "--llmb-release", "gpu": "--llmb-gpu"}
_KEY_FIELDS = tuple(field.name for field in fields(Key))


def identify(
    run: RunFiles,
    logs: Sequence[ParsedLog],
    recipes: Sequence[Recipe],
    *,
    release: str = "",
    gpu: str = "",
    baseline_release: str = "",
    expected_tflops: ExpectedTflops | None = None,
    find: Matching = match_baselines,
) -> Identity:
    """Return the one configuration that fits everything a run says, or why there is none.

    `release` and `gpu` fill in what nothing says and override nothing; `baseline_release` replaces the run's release on
    purpose. `expected_tflops(baseline, seconds)` is what the framework should log per GPU at that step time; without it
    logged TFLOP/s are not looked at. `find` is what `cache_matches` returned, where there are many runs. A batch size
    in the log that contradicts the names changes nothing here: the run claims to be that configuration, and measuring
    it finds that it is not.
    """
    hints = [hint for hint in run.hints if not (baseline_release and hint.field == "release")]
    claims = _add_options(collect_claims(hints, recipes), {"release": release, "gpu": gpu}, baseline_release)
    dialects = frozenset(log.dialect for log in logs if log.dialect)
    readable = tuple(log.dialects for log in logs if log.dialect)
    subject = Subject(claims, "" if baseline_release else run.layout, readable, recipes)
    every = find(subject)
    fitting = [match for match in every if not match.differences]
    if claims.contradictions:
        identity = _make_contradicted(subject, find)
    elif fitting:
        identity = _choose_key(claims, fitting, logs, expected_tflops)
    else:
        identity = _make_unmatched(claims, every, _summarise_claims(claims, run.layout, dialects), recipes)
    own = next((hint for hint in run.hints if baseline_release and hint.field == "release"), None)
    if own is None:
        return identity
    return replace(identity, because=f"{identity.because}; its own release {own.value} ({own.source}) is set aside")


def _add_options(claims: Claims, options: Mapping[str, str], baseline_release: str) -> Claims:
    """Add to what a run says what the options say of fields that it leaves open."""
    contradicted = {claim.field for several in claims.contradictions for claim in several}
    added = {
        field: Claim(field, value.casefold(), (_OPTIONS[field],))
        for field, value in options.items()
        if value and field not in claims.by_field and field not in contradicted
    }
    if baseline_release:
        added["release"] = Claim("release", baseline_release.casefold(), ("--llmb-baseline-release",))
    return replace(claims, by_field={**claims.by_field, **added})


def _choose_key(
    claims: Claims, fitting: Sequence[Match], logs: Sequence[ParsedLog], expected: ExpectedTflops | None
) -> Identity:
    """Return the only key that fits, or the only one that the logs leave; else the candidates."""
    missing = [field for field in _NEEDED if not _is_said(field, claims)]
    keys = _list_keys(fitting)
    if len(keys) == 1 and not missing:
        return _make_identity(keys[0], claims, missing)
    stated = [
        (match.key, check_facts(_summarise_run(logs, match.baseline), match.baseline, expected)) for match in fitting
    ]
    left = [(key, stands) for key, stands in stated if all(stands.values())]
    remaining = tuple(sorted({key for key, _ in left}))
    if len(remaining) == 1 and all(_is_enough(stands, missing) for _, stands in left):
        return _make_identity(remaining[0], claims, missing)
    return _make_ambiguous(remaining or keys, claims, missing, contradicted=not remaining)


def _summarise_run(logs: Sequence[ParsedLog], baseline: Baseline) -> LogSummary:
    """Return what the logs of a run say, in the words of a baseline's dialect."""
    return summarise_logs([log.read_as(baseline.dialect) for log in logs])


def _is_said(field: str, claims: Claims) -> bool:
    return field in claims.by_field or (field == "gpus" and "nodes" in claims.by_field)


def _is_enough(stands: Collection[str], missing: Sequence[str]) -> bool:
    """Whether what a log confirms makes up for what names leave open.

    For the recipe alone (the older folders do not name it) the dialect and the work of a step do; for anything else,
    every fact that a log can state.
    """
    if missing == ["recipe"]:
        return "dialect" in stands and ("global_batch_size" in stands or "tflops" in stands)
    return not missing or set(FACTS) <= set(stands)


def _make_identity(key: Key, claims: Claims, missing: Sequence[str]) -> Identity:
    assumed = tuple(field for field in (*_OPTIONS, *missing) if field not in claims.by_field)
    sources = dict.fromkeys(source for claim in claims.by_field.values() for source in claim.sources)
    because = f"so say {join_first(list(sources))}" if sources else "so says the log"
    if assumed:
        because += f"; assumed, as nothing says it and no other baseline fits: {', '.join(assumed)}"
    return Identity(key, because, assumed=assumed)


def _make_ambiguous(
    candidates: Sequence[Key], claims: Claims, missing: Sequence[str], *, contradicted: bool
) -> Identity:
    ids = join_first([key.id for key in candidates])
    open_fields = [field for field in _KEY_FIELDS if len({getattr(key, field) for key in candidates}) > 1]
    unsaid = [field for field in dict.fromkeys((*missing, *open_fields)) if not _is_said(field, claims)]
    because = f"could be {ids}"
    if contradicted:
        because += "; but the batch size, steps or TFLOP/s in its log fit none of them"
    if unsaid:
        because += f"; nothing says its {', '.join(unsaid)}"
    options = [f"{_OPTIONS[field]}={_list_values(candidates, field)}" for field in unsaid if field in _OPTIONS]
    if options:
        because += f"; give {' and '.join(options)}"
    return Identity(None, because, candidates=tuple(candidates), may_be=tuple(candidates))


def _make_contradicted(subject: Subject, find: Matching) -> Identity:
    """Name as candidates the keys that fit one value of each contradicted field, and everything else."""
    claims = subject.claims
    fields_in_doubt = {claim.field for several in claims.contradictions for claim in several}
    because = "; ".join(" but ".join(map(str, several)) for several in claims.contradictions)
    fitting = [
        {
            match.key
            for claim in several
            for match in find(
                replace(subject, claims=replace(claims, by_field={**claims.by_field, claim.field: claim}))
            )
            if set(match.differences) <= fields_in_doubt - {claim.field}
        }
        for several in claims.contradictions
    ]
    candidates = tuple(sorted(set.intersection(*fitting)))
    reason = f"its sources contradict each other: {because}"
    possible = candidates or find_possible(find(subject), *_find_nearness(claims))
    return Identity(
        None, reason, candidates=candidates, contradicted=tuple(sorted(fields_in_doubt)), may_be=tuple(possible)
    )


def _make_unmatched(claims: Claims, every: Sequence[Match], summary: str, recipes: Sequence[Recipe]) -> Identity:
    near = find_nearest(every, *_find_nearness(claims))
    differing = frozenset(near[0].differences) if near else frozenset()
    because = _name_lacking(claims, differing, recipes) or f"no baseline fits {summary}"
    if near:
        because += "; nearest: " + ", ".join(f"{match.key.id} ({', '.join(match.differences)})" for match in near)
    if near and differing <= {"release", "layout"}:
        because += f"; --llmb-baseline-release={near[0].key.release} judges it against that release"
    possible = find_possible(every, *_find_nearness(claims))
    return Identity(None, because, nearest=tuple(match.key for match in near), may_be=possible)


def _find_nearness(claims: Claims) -> tuple[str, str]:
    """Return the number of GPUs and the precision, by which one baseline is nearer to a run than another."""
    gpus, dtype = (claims.by_field[name].value if name in claims.by_field else "" for name in ("gpus", "dtype"))
    return gpus, dtype


def _name_lacking(claims: Claims, differing: Collection[str], recipes: Sequence[Recipe]) -> str:
    """Return which one thing has no baseline, if it is one thing: the recipe, or the release and nothing else."""
    if "recipe" in differing:
        value = claims.by_field["recipe"].value
        return f"recipe {value} has no baseline{did_you_mean(value, {recipe.name for recipe in recipes})}"
    if "release" in differing and set(differing) <= {"release", "layout"}:
        return f"release {claims.by_field['release'].value} has no baseline"
    return ""


def _summarise_claims(claims: Claims, layout: str, dialects: Collection[str]) -> str:
    """Return what is known of a run, in the order of a key."""
    values = [f"{field} {claims.by_field[field].value}" for field in _KEY_FIELDS if field in claims.by_field]
    values += [f"folders of the {layout} layout"] if layout else []
    values += [f"a {dialect} log" for dialect in sorted(dialects)]
    return ", ".join(values) or "a run that says nothing of itself"


def _list_keys(fitting: Sequence[Match]) -> tuple[Key, ...]:
    return tuple(sorted({match.key for match in fitting}))


def _list_values(candidates: Sequence[Key], field: str) -> str:
    return "|".join(sorted({str(getattr(key, field)) for key in candidates}))
