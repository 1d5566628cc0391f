"""Collect the claims of a run, with contradictions, and match them with baselines."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pytest_llmbench.core.baseline_records import MEGATRON_BRIDGE, Baseline, Key, Recipe
from pytest_llmbench.core.errors import did_you_mean
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.core.run_records import Hint
from pytest_llmbench.runs.discover.names import RECIPES

# Number of multi-token prediction layers: by variant for rows that exist with and
# without them, else by model (equal in the configurations of all releases). Unknown for
# DeepSeek V4 Flash.
_MTP_LAYERS = {"with_mtp": "1", "without_mtp": "0", "deepseek_v3": "1"}
_MTP_LAYERS |= dict.fromkeys(
    ("nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"), "2"
)
_MTP_LAYERS |= dict.fromkeys(
    ("llama3_8b", "llama3_70b", "llama31_405b", "gpt_oss_120b", "kimi_k2"), "0"
)
_MTP_LAYERS |= dict.fromkeys(
    ("qwen3_30b_a3b", "qwen3_235b_a22b", "nemotron_3_nano"), "0"
)

_FRAMEWORK = compile_on_use(r"(?:nemo\d?|maxtext)[-_]", re.IGNORECASE)


class Claim(Struct, frozen=True):
    """One value of one field, with all its sources."""

    field: str
    value: str
    sources: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.field} {self.value} ({', '.join(dict.fromkeys(self.sources))})"


class Claims(Struct, frozen=True):
    """The fields that a run states."""

    by_field: Mapping[str, Claim]  # fields with a single value
    # all values of each contradicted field
    contradictions: tuple[tuple[Claim, ...], ...] = ()


def collect_claims(hints: Iterable[Hint], recipes: Sequence[Recipe]) -> Claims:
    """Merge hints into claims.

    Two spellings of a recipe, a release and its patch release, or `016` and `16` are
    one value.
    """
    claims_by_field: dict[str, list[Claim]] = {}
    for hint in hints:
        field_claims = claims_by_field.setdefault(hint.field, [])
        new_claim = Claim(hint.field, _normalise(hint.value), (hint.source,))
        for index, claim in enumerate(field_claims):
            if _are_compatible(claim, new_claim, recipes):
                field_claims[index] = _merge_claims(claim, new_claim, recipes)
                break
        else:
            field_claims.append(new_claim)
    agreed: dict[str, Claim] = {}
    contradictions: list[tuple[Claim, ...]] = []
    for field, field_claims in claims_by_field.items():
        if len(field_claims) == 1:
            agreed[field] = field_claims[0]
        else:
            contradictions.append(tuple(field_claims))
    return Claims(agreed, tuple(contradictions))


def find_recipes(text: str, recipes: Sequence[Recipe]) -> frozenset[str]:
    """Return the names of the recipes whose name or alias is `text`.

    If there are none, a leading framework (`nemo_`) is ignored. Names must match
    completely: `mini_grok1` is not `grok1`, `llama3` is not `llama3.1`.
    """
    without_framework = _FRAMEWORK.sub("", text, count=1)
    for name in (text, without_framework):
        matching_names = frozenset(
            recipe.name
            for recipe in recipes
            if _normalise(name) in map(_normalise, (recipe.name, *recipe.names))
        )
        if matching_names:
            return matching_names
    return frozenset()


def is_release(text: str, release: str) -> bool:
    """True if `text` is the release or one of its patch releases: `25.05.04` of 25.05."""
    text, release = text.removeprefix("v"), release.removeprefix("v")
    return text == release or text.startswith(f"{release}.")


def _are_compatible(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> bool:
    """True if two claims about a field can both be true of one run."""
    if claim.value == other.value:
        return True
    if claim.field == "recipe":
        return bool(
            find_recipes(claim.value, recipes) & find_recipes(other.value, recipes)
        )
    if claim.field == "dtype":  # metadata contain `fp8` for every FP8 recipe
        return any(
            {claim.value, other.value} <= {"fp8", *names} for names in RECIPES.values()
        )
    if claim.field == "release":
        return is_release(claim.value, other.value) or is_release(
            other.value, claim.value
        )
    return False


def _merge_claims(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> Claim:
    """Return the more specific claim, with the sources of both.

    `fp8_mx` is more specific than `fp8`, and a recipe's name is more specific than an
    alias of several recipes.
    """
    if claim.field == "recipe":
        value = min(
            claim.value, other.value, key=lambda name: len(find_recipes(name, recipes))
        )
    else:
        value = max(claim.value, other.value, key=len)
    return Claim(claim.field, value, (*claim.sources, *other.sources))


# Longest meaningful number, in digits; Python refuses to parse thousands of digits.
LONGEST_NUMBER = 18


def _normalise(value: str) -> str:
    """Normalise a value for comparison: lower case, numbers without leading zeros."""
    if value.isdecimal() and len(value) <= LONGEST_NUMBER:
        return str(int(value))
    return value.casefold()


_FIRST_WORKLOADS_RELEASE = (25, 5)
_PARALLELISM = ("tp", "pp", "cp", "ep", "etp", "dp", "vp", "fsdp")
_PRETRAINING = frozenset(("", "pretrain", "pretraining"))


class Subject(Struct, frozen=True):
    """The run to be matched, and the known recipes."""

    claims: Claims
    layout: str
    # for each log with steps, the dialects that can read it
    dialects: Sequence[frozenset[str]]
    recipes: Sequence[Recipe]


class Match(Struct, frozen=True):
    """A baseline and the fields in which the run differs from it (empty if it fits)."""

    baseline: Baseline
    differences: tuple[str, ...]

    @property
    def key(self) -> Key:
        """The key of the baseline."""
        return self.baseline.key


Distance = tuple[bool, float, float, bool]
"""The distance of a baseline from a run, as a sort key.

Size differs, number of other differences, distance of the GPU counts, FP8 differs.
"""

# Limit of nearest baselines.
_MOST_NEAREST = 3

Accepted = Mapping[str, Collection[str]]
"""The values of each field that a run of a baseline may state."""

Accepting = Callable[[Baseline, str | None, str | None], Accepted]
"""The signature of `_list_accepted`."""

Matching = Callable[[Subject], tuple[Match, ...]]
"""The signature of `match_baselines`."""


def cache_matches() -> Matching:
    """Return a function like `match_baselines` that caches its results.

    Recipes of the same names have to be the same in all calls.
    """
    list_accepted = functools.cache(_list_accepted)
    # Most of thousands of runs differ only in the sources of their claims, so the key
    # does not contain the sources.
    cache: dict[object, tuple[Match, ...]] = {}

    def find(subject: Subject) -> tuple[Match, ...]:
        """Return the matches of a run, from the cache if possible."""
        claimed_values = frozenset(
            (field, claim.value) for field, claim in subject.claims.by_field.items()
        )
        recipe_names = tuple([recipe.name for recipe in subject.recipes])
        dialects = frozenset(subject.dialects)
        cache_key = claimed_values, subject.layout, dialects, recipe_names
        if cache_key not in cache:
            cache[cache_key] = match_baselines(subject, list_accepted)
        return cache[cache_key]

    return find


def match_baselines(
    subject: Subject, list_accepted: Accepting | None = None
) -> tuple[Match, ...]:
    """Return all baselines of the named recipe with the fields that differ from the
    run.

    Covers all recipes if the run names none that is known. `list_accepted` may be a
    cached `_list_accepted`.
    """
    list_accepted = list_accepted or _list_accepted
    claims = subject.claims.by_field
    gpus_per_node, variant = claims.get("gpus_per_node"), claims.get("variant")
    claimed_gpus_per_node = gpus_per_node.value if gpus_per_node else None
    claimed_variant = variant.value if variant else None
    claim = subject.claims.by_field.get("recipe")
    named_recipes = find_recipes(claim.value, subject.recipes) if claim else frozenset()
    names_unknown_recipe = claim is not None and not named_recipes
    matches: list[Match] = []
    for recipe in subject.recipes:
        if named_recipes and recipe.name not in named_recipes:
            continue
        is_other_layout = not fits_layout(subject.layout, recipe)
        for baseline in recipe.baselines:
            # baselines with `match` are matched by path and facts only
            if baseline.match is None:
                accepted = list_accepted(
                    baseline, claimed_gpus_per_node, claimed_variant
                )
                differences = _find_differences(subject, recipe, baseline, accepted)
                if is_other_layout:
                    differences = (*differences, "layout")
                if names_unknown_recipe:
                    differences = ("recipe", *differences)
                matches.append(Match(baseline, differences))
    return _prefer_stated_release(matches, subject.claims)


def _prefer_stated_release(
    matches: Sequence[Match], claims: Claims
) -> tuple[Match, ...]:
    """Reject matches of the main release if the exact patch release matches.

    A run of `24.11.1` matches both if a user imported the documents of `24.11` and
    `24.11.1`. A rejected match differs in the release.
    """
    claim = claims.by_field.get("release")
    stated_release = claim.value.removeprefix("v") if claim else ""
    exact_keys = {
        replace(match.key, release="")
        for match in matches
        if match.key.release == stated_release and not match.differences
    }
    preferred: list[Match] = []
    for match in matches:
        fits_other_release = (
            match.key.release != stated_release and not match.differences
        )
        if fits_other_release and replace(match.key, release="") in exact_keys:
            preferred.append(replace(match, differences=("release",)))
        else:
            preferred.append(match)
    return tuple(preferred)


def _find_differences(
    subject: Subject, recipe: Recipe, baseline: Baseline, accepted: Accepted
) -> tuple[str, ...]:
    """Return the fields in which a run and a baseline differ.

    Recipe and layout are not compared, because all baselines of a recipe share them.
    Fields that the run leaves open do not differ.
    """
    claims = subject.claims.by_field
    fields = [
        field
        for field, values in accepted.items()
        if field in claims and claims[field].value not in values
    ]
    if "release" in claims:
        stated_release = claims["release"].value
        # Megatron-Bridge publishes its patch releases separately
        is_same_release = (
            stated_release == baseline.key.release
            if recipe.name == MEGATRON_BRIDGE
            else is_release(stated_release, baseline.key.release)
        )
        if not is_same_release:
            fields.append("release")
    # a run without a stated task is a pretraining
    if "task" not in claims and baseline.key.task.casefold() not in _PRETRAINING:
        fields.append("task")
    if any(baseline.dialect not in readable for readable in subject.dialects):
        fields.append("dialect")
    return tuple(fields)


def find_nearest(
    matches: Sequence[Match], gpus: str, dtype: str = ""
) -> tuple[Match, ...]:
    """Return up to three baselines that differ least, nearest first.

    Ordered by equal size, number of differing fields (a differing layout counts half),
    ratio of the GPU counts, equal use of FP8, and newest release. `gpus` and `dtype`
    are the run's, "" if unknown.
    """

    def rank_match(
        match: Match,
    ) -> tuple[Distance, list[int], str]:
        """Return the sort key of a match, smaller for a nearer baseline."""
        # negative, so that the newest release comes first
        release_rank = [
            -int(number) for number in re.findall(r"\d+", match.key.release)
        ]
        return _measure_distance(match, gpus, dtype), release_rank, match.key.id

    # farthest first, so that the nearest match of each key is kept
    nearest_by_key = {
        match.key: match for match in sorted(matches, key=rank_match, reverse=True)
    }
    return tuple(sorted(nearest_by_key.values(), key=rank_match)[:_MOST_NEAREST])


def is_near(match: Match, claims: Claims) -> bool:
    """True if a baseline that does not fit is worth mentioning.

    The baseline must have the run's recipe, or a recipe with a similar name. If the run
    names no recipe, the baseline must have the run's size.
    """
    if "recipe" in claims.by_field:
        if "recipe" not in match.differences:
            return True
        recipe_name = claims.by_field["recipe"].value
        return bool(did_you_mean(recipe_name, [match.key.recipe]))
    return "size" in claims.by_field and "size" not in match.differences


def find_possible(
    matches: Sequence[Match], gpus: str, dtype: str = ""
) -> tuple[Key, ...]:
    """Return the keys with the smallest distance to a run that no baseline fits.

    Excludes keys that differ in both recipe and size.
    """
    distances = [_measure_distance(match, gpus, dtype) for match in matches]
    smallest = min(distances, default=None)
    keys: set[Key] = set()
    for match, distance in zip(matches, distances, strict=True):
        is_other_model = {"recipe", "size"}.issubset(match.differences)
        if distance == smallest and not is_other_model:
            keys.add(match.key)
    return tuple(sorted(keys))


def _measure_distance(match: Match, gpus: str, dtype: str) -> Distance:
    """Return the distance of a baseline from a run, with these GPUs and precision."""
    fields = match.differences
    gpu_count = _read_count(gpus)
    gpu_distance = abs(math.log2(match.key.gpus / gpu_count)) if gpu_count else 0.0
    # Another layout is a weaker difference than a different value of the run.
    layout_discount = 0.5 if "layout" in fields else 0.0
    other_precision = ("fp8" in dtype) != ("fp8" in match.key.dtype.casefold())
    return (
        "size" in fields,
        len(fields) - layout_discount,
        gpu_distance,
        other_precision,
    )


def fits_layout(layout: str, recipe: Recipe) -> bool:
    """True if a recipe's release writes this layout, or if the layout is unknown ("")."""
    # `workloads` replaced `results` in 25.05. `experiments` is the 25.04 form, and also
    # the inner folder of `workloads` if only that folder was copied.
    if layout not in ("workloads", "results"):
        is_unknown = layout == ""
        return is_unknown or recipe.layout != "results"
    # the layout that the recipe documents, then the release
    if recipe.layout not in ("", layout):
        return False
    release = re.match(r"v?(\d+)\.(\d+)", recipe.release)
    if release is None:
        return True
    writes_workloads = (int(release[1]), int(release[2])) >= _FIRST_WORKLOADS_RELEASE
    return writes_workloads == (layout == "workloads")


def _list_accepted(
    baseline: Baseline, gpus_per_node: str | None, variant: str | None
) -> Accepted:
    """Return the values of each field that a run of this baseline may state.

    `gpus_per_node` and `variant` are those that the run states, None if it states none.
    """
    key, configuration = baseline.key, baseline.configuration
    task = key.task.casefold()
    accepted: dict[str, Collection[str]] = {
        "size": {key.size.casefold()},
        "gpus": {str(key.gpus)},
        "nodes": {str(_count_nodes(key, gpus_per_node))},
        "gpu": {key.gpu.casefold()},
        "task": _PRETRAINING if task in _PRETRAINING else {task},
        # weak scaling is the default
        "scaling": {key.scaling.casefold()} if key.scaling else {"weak"},
        **_accept_precision(key, variant),
        "proxy": {str(configuration.proxy).lower()},
        "model_overrides": (),  # no baseline has overrides
    }
    if configuration.global_batch_size:
        accepted["global_batch_size"] = {str(configuration.global_batch_size)}
    if configuration.micro_batch_size is not None:
        accepted["micro_batch_size"] = {str(configuration.micro_batch_size)}
    group_sizes = {
        name: getattr(configuration.parallelism, name) for name in _PARALLELISM
    }
    if key.recipe == MEGATRON_BRIDGE:
        # its tables contain `n/a` for a group of 1
        group_sizes |= {name: group_sizes[name] or 1 for name in ("vp", "ep")}
        sequence_length = configuration.architecture.sequence_length
        if sequence_length:
            accepted["sequence_length"] = {str(sequence_length)}
        mtp_layers = _MTP_LAYERS.get(key.variant, _MTP_LAYERS.get(key.size))
        if mtp_layers:
            accepted["mtp"] = {mtp_layers}
    for name, size in group_sizes.items():
        if size is not None:
            accepted[name] = {str(size)}
    return accepted


def _accept_precision(
    key: Key, claimed_variant: str | None
) -> dict[str, Collection[str]]:
    """Return the precisions and variants that a run of this baseline may state.

    An FP8 recipe is the scaling of FP8 numbers, such as `mx`. It has several names:
    `fp8_mx`, `mxfp8`, and `fp8` with the variant `mx`. A baseline with such a recipe
    accepts all its names. Another baseline accepts only its precision and variant.
    """
    dtype, variant = key.dtype.casefold(), key.variant.casefold()
    fp8_recipe = variant if dtype == "fp8" else ""
    for name, dtype_names in RECIPES.items():
        if dtype in dtype_names:
            fp8_recipe = name
            break
    if fp8_recipe not in RECIPES:
        return {"dtype": {dtype}, "variant": {variant}}
    dtypes = {dtype, *RECIPES[fp8_recipe]}
    # `fp8` alone does not name the recipe
    if claimed_variant == fp8_recipe:
        dtypes.add("fp8")
    return {"dtype": dtypes, "variant": {variant, fp8_recipe}}


def _count_nodes(key: Key, stated_gpus_per_node: str | None) -> int:
    """Return the number of nodes of a configuration.

    Unless stated, GB200 and GB300 nodes have 4 GPUs, others 8.
    """
    gpus_per_node = 4 if key.gpu.startswith("gb") else 8
    if stated_gpus_per_node is not None:
        gpus_per_node = _read_count(stated_gpus_per_node)
    return math.ceil(key.gpus / max(gpus_per_node, 1))


def _read_count(text: str) -> int:
    """Parse a number of GPUs, 0 if it is not a number."""
    if text.isdecimal() and len(text) <= LONGEST_NUMBER:
        return int(text)
    return 0
