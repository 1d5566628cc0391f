"""What a run says of itself, contradictions kept apart, and in which fields it and a
baseline differ."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Baseline, Key, Recipe
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.run_records import Hint
from pytest_llmbench.runs.discover.names import RECIPES

# Layers that predict further tokens: by the variants of rows that are printed with and
# without, else by the models as the configurations of all releases have them. Of
# DeepSeek V4 Flash they are not known here.
_FURTHER = {"with_mtp": "1", "without_mtp": "0", "deepseek_v3": "1"}
_FURTHER |= dict.fromkeys(
    ("nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"), "2"
)
_FURTHER |= dict.fromkeys(
    ("llama3_8b", "llama3_70b", "llama31_405b", "gpt_oss_120b", "kimi_k2"), "0"
)
_FURTHER |= dict.fromkeys(("qwen3_30b_a3b", "qwen3_235b_a22b", "nemotron_3_nano"), "0")

_FRAMEWORK = re.compile(r"(?:nemo\d?|maxtext)[-_]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Claim:
    """One value of one field, and everything that says so."""

    field: str
    value: str
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.field} {self.value} ({', '.join(dict.fromkeys(self.sources))})"


@dataclass(frozen=True, slots=True)
class Claims:
    """What a run says."""

    by_field: Mapping[str, Claim]  # the fields of which it says one thing
    contradictions: tuple[
        tuple[Claim, ...], ...
    ] = ()  # of each other field all that it says


def collect_claims(hints: Iterable[Hint], recipes: Sequence[Recipe]) -> Claims:
    """Put hints together: two spellings of one recipe, a release and its patch release,
    `016` and `16` are one."""
    of_field: dict[str, list[Claim]] = {}
    for hint in hints:
        same_field = of_field.setdefault(hint.field, [])
        claim = Claim(hint.field, _normalise(hint.value), (hint.source,))
        place = next(
            (
                place
                for place, other in enumerate(same_field)
                if _agree(other, claim, recipes)
            ),
            None,
        )
        if place is None:
            same_field.append(claim)
        else:
            same_field[place] = _merge(same_field[place], claim, recipes)
    single = {
        field: values[0] for field, values in of_field.items() if len(values) == 1
    }
    return Claims(
        single, tuple(tuple(values) for values in of_field.values() if len(values) > 1)
    )


def find_recipes(text: str, recipes: Sequence[Recipe]) -> frozenset[str]:
    """Return the recipes (`Recipe.name`) that a name means: as it stands, else without
    a leading framework (`nemo_`).

    A longer or shorter name is another recipe: `mini_grok1` is not `grok1`, `llama3` is
    not `llama3.1`.
    """
    for name in (text, _FRAMEWORK.sub("", text, count=1)):
        named = frozenset(
            recipe.name
            for recipe in recipes
            if _normalise(name) in map(_normalise, (recipe.name, *recipe.names))
        )
        if named:
            return named
    return frozenset()


def is_release(text: str, release: str) -> bool:
    """Whether what a run says is a release or one of its patch releases: `25.05.04` is
    of 25.05."""
    text, release = text.removeprefix("v"), release.removeprefix("v")
    return text == release or text.startswith(f"{release}.")


def _agree(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> bool:
    if claim.value == other.value:
        return True
    if claim.field == "recipe":
        return bool(
            find_recipes(claim.value, recipes) & find_recipes(other.value, recipes)
        )
    if claim.field == "dtype":  # metadata say `fp8` of every recipe of it
        return any(
            {claim.value, other.value} <= {"fp8", *names} for names in RECIPES.values()
        )
    either_way = is_release(claim.value, other.value) or is_release(
        other.value, claim.value
    )
    return claim.field == "release" and either_way


def _merge(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> Claim:
    """Return the claim that says more, with the sources of both."""
    value = max(claim.value, other.value, key=len)
    if claim.field == "recipe":
        value = min(
            claim.value, other.value, key=lambda name: len(find_recipes(name, recipes))
        )
    return Claim(claim.field, value, (*claim.sources, *other.sources))


# Digits of a number that means something; of thousands Python makes no number at all.
LONGEST_NUMBER = 18


def _normalise(value: str) -> str:
    """Return a value as it is compared: without case, numbers without leading zeros."""
    return (
        str(int(value))
        if value.isdecimal() and len(value) <= LONGEST_NUMBER
        else value.casefold()
    )


_FIRST_WORKLOADS_RELEASE = (25, 5)
_PARALLELISM = ("tp", "pp", "cp", "ep", "etp", "dp", "vp", "fsdp")
_PRETRAINING = frozenset(("", "pretrain", "pretraining"))


@dataclass(frozen=True, slots=True)
class Subject:
    """The run to be matched, and the recipes that are known."""

    claims: Claims
    layout: str
    dialects: Sequence[
        frozenset[str]
    ]  # those in which each of its logs with steps can be read
    recipes: Sequence[Recipe]


@dataclass(frozen=True, slots=True)
class Match:
    """A baseline and the fields in which the run differs from it, none where it
    fits."""

    baseline: Baseline
    differences: tuple[str, ...]

    @property
    def key(self) -> Key:
        """The key of the baseline."""
        return self.baseline.key


Matching = Callable[[Subject], tuple[Match, ...]]
"""What `match_baselines` does."""


def cache_matches() -> Matching:
    """Return `match_baselines` that keeps its answers; every subject has to be of the
    same recipes."""
    # Of thousands of runs most say the same but for who says it, so the sources are no
    # part of the key.
    cache: dict[object, tuple[Match, ...]] = {}

    def find(subject: Subject) -> tuple[Match, ...]:
        values = frozenset(
            (field, claim.value) for field, claim in subject.claims.by_field.items()
        )
        same = values, subject.layout, frozenset(subject.dialects)
        if same not in cache:
            cache[same] = match_baselines(subject)
        return cache[same]

    return find


def match_baselines(subject: Subject) -> tuple[Match, ...]:
    """Return every baseline of the recipe that a run names, or of all recipes, with the
    fields in which they differ."""
    claim = subject.claims.by_field.get("recipe")
    named = find_recipes(claim.value, subject.recipes) if claim else frozenset()
    matches = tuple(
        Match(baseline, ("recipe", *others) if claim and not named else others)
        for recipe in subject.recipes
        if not named or recipe.name in named
        for baseline in recipe.baselines
        if baseline.match
        is None  # those are matched by what a run says, and never by names
        for others in [find_differences(subject, recipe, baseline)]
    )
    return _prefer_stated_release(matches, subject.claims)


def _prefer_stated_release(
    matches: tuple[Match, ...], claims: Claims
) -> tuple[Match, ...]:
    """Return matches of which the one of the very release that a run states is nearer
    than that of which it is a patch: somebody imported the document of `24.11.1` beside
    that of `24.11`."""
    claim = claims.by_field.get("release")
    stated = claim.value.removeprefix("v") if claim else ""
    exact = {
        replace(match.key, release="")
        for match in matches
        if (match.key.release, match.differences) == (stated, ())
    }
    return tuple(
        replace(match, differences=("release",))
        if match.key.release != stated
        and not match.differences
        and replace(match.key, release="") in exact
        else match
        for match in matches
    )


def find_differences(
    subject: Subject, recipe: Recipe, baseline: Baseline
) -> tuple[str, ...]:
    """Return the fields besides the recipe in which a run and a baseline differ; what
    it leaves unsaid does not."""
    claims = subject.claims.by_field
    accepted = _list_accepted(baseline, claims)
    fields = [
        field
        for field, values in accepted.items()
        if field in claims and claims[field].value not in values
    ]
    fits = (
        is_release if recipe.name != MEGATRON_BRIDGE else str.__eq__
    )  # the patches of these were printed, too
    if "release" in claims and not fits(claims["release"].value, baseline.key.release):
        fields.append("release")
    if "task" not in claims and baseline.key.task.casefold() not in _PRETRAINING:
        fields.append("task")
    if any(baseline.dialect not in readable for readable in subject.dialects):
        fields.append("dialect")
    if not fits_layout(subject.layout, recipe):
        fields.append("layout")
    return tuple(fields)


def find_nearest(
    matches: Sequence[Match], gpus: str, dtype: str = ""
) -> tuple[Match, ...]:
    """Return up to three baselines that differ least: in the size last, in few fields,
    by few GPUs; newest first.

    A recipe of FP8 is nearer to another one, or to one that is not named, than to BF16.
    """

    def rate_distance(
        match: Match,
    ) -> tuple[tuple[bool, float, float, bool], list[int], str]:
        older = [-int(number) for number in re.findall(r"\d+", match.key.release)]
        return _measure_distance(match, gpus, dtype), older, match.key.id

    by_key = {
        match.key: match for match in sorted(matches, key=rate_distance, reverse=True)
    }
    return tuple(sorted(by_key.values(), key=rate_distance)[:3])


def is_near(match: Match, claims: Claims) -> bool:
    """Whether a baseline that does not fit is worth being named: it is of the recipe
    that the run names, or of one with a like name, or of its size where it names
    none."""
    if "recipe" in claims.by_field:
        named = claims.by_field["recipe"].value
        return "recipe" not in match.differences or bool(
            did_you_mean(named, [match.key.recipe])
        )
    return "size" in claims.by_field and "size" not in match.differences


def find_possible(
    matches: Sequence[Match], gpus: str, dtype: str = ""
) -> tuple[Key, ...]:
    """Return the configurations that a run may be of although no baseline fits it: the
    nearest, and those as near.

    A run that names another recipe and another size is of none of them.
    """
    least = min(
        (_measure_distance(match, gpus, dtype) for match in matches), default=None
    )
    alike = (
        match for match in matches if _measure_distance(match, gpus, dtype) == least
    )
    return tuple(
        sorted(
            {
                match.key
                for match in alike
                if not {"recipe", "size"} <= set(match.differences)
            }
        )
    )


def _measure_distance(
    match: Match, gpus: str, dtype: str
) -> tuple[bool, float, float, bool]:
    fields = match.differences
    number = _read_count(gpus)
    apart = abs(math.log2(match.key.gpus / number)) if number else 0.0
    other_precision = ("fp8" in dtype) != ("fp8" in match.key.dtype.casefold())
    return (
        "size" in fields,
        len(fields) - ("layout" in fields) / 2,
        apart,
        other_precision,
    )


def fits_layout(layout: str, recipe: Recipe) -> bool:
    """Whether a recipe's release writes this layout."""
    # `workloads` came with 25.05 and replaced `results`; `experiments` is the 25.04
    # form, and what is left of `workloads` when only that folder was copied.
    release = re.match(r"v?(\d+)\.(\d+)", recipe.release)
    number = (int(release[1]), int(release[2])) if release else None
    if layout == "workloads":
        return recipe.layout in ("", layout) and (
            number is None or number >= _FIRST_WORKLOADS_RELEASE
        )
    if layout == "results":
        return recipe.layout in ("", layout) and (
            number is None or number < _FIRST_WORKLOADS_RELEASE
        )
    return layout == "" or recipe.layout != "results"


def _list_accepted(
    baseline: Baseline, claims: Mapping[str, Claim]
) -> dict[str, Collection[str]]:
    """Return for each field the values that a run of this baseline may say."""
    key, configuration = baseline.key, baseline.configuration
    accepted: dict[str, Collection[str]] = {
        "size": {key.size.casefold()},
        "gpus": {str(key.gpus)},
        "nodes": {str(_count_nodes(key, claims))},
        "gpu": {key.gpu.casefold()},
        "task": _PRETRAINING
        if key.task.casefold() in _PRETRAINING
        else {key.task.casefold()},
        "scaling": {key.scaling.casefold()} if key.scaling else {"weak"},
        **_accept_precision(key, claims),
        "proxy": {str(configuration.proxy).lower()},
        "model_overrides": (),
    }
    if configuration.global_batch_size:
        accepted["global_batch_size"] = {str(configuration.global_batch_size)}
    if configuration.micro_batch_size is not None:
        accepted["micro_batch_size"] = {str(configuration.micro_batch_size)}
    sizes = {name: getattr(configuration.parallelism, name) for name in _PARALLELISM}
    if key.recipe == MEGATRON_BRIDGE:  # `n/a` is a group of 1
        sizes |= {name: sizes[name] or 1 for name in ("vp", "ep")}
        sequence = configuration.architecture.sequence_length
        accepted |= {"sequence_length": {str(sequence)}} if sequence else {}
        further = _FURTHER.get(key.variant, _FURTHER.get(key.size))
        accepted |= {"mtp": {further}} if further else {}
    return accepted | {
        name: {str(size)} for name, size in sizes.items() if size is not None
    }


def _accept_precision(
    key: Key, claims: Mapping[str, Claim]
) -> dict[str, Collection[str]]:
    """Return the precisions and variants that a run of this baseline may say: one
    recipe of FP8 has several names.

    `fp8_mx`, `mxfp8`, and `fp8` with the variant `mx` are one. Where the baseline names
    none, or another one, it is not the run's.
    """
    dtype, variant = key.dtype.casefold(), key.variant.casefold()
    recipe = next(
        (name for name, names in RECIPES.items() if dtype in names),
        variant if dtype == "fp8" else "",
    )
    if recipe not in RECIPES:
        return {"dtype": {dtype}, "variant": {variant}}
    stated = "variant" in claims and claims["variant"].value == recipe
    dtypes = {dtype, *RECIPES[recipe], *(["fp8"] if stated else [])}
    return {"dtype": dtypes, "variant": {variant, recipe}}


def _count_nodes(key: Key, claims: Mapping[str, Claim]) -> int:
    """Return how many nodes a configuration fills; unless it is said, GB200 and GB300
    nodes have 4 GPUs, others 8."""
    usual = 4 if key.gpu.startswith("gb") else 8
    each = (
        _read_count(claims["gpus_per_node"].value)
        if "gpus_per_node" in claims
        else usual
    )
    return math.ceil(key.gpus / max(each, 1))


def _read_count(text: str) -> int:
    """Return a number of GPUs, 0 for what is none."""
    return int(text) if text.isdecimal() and len(text) <= LONGEST_NUMBER else 0
