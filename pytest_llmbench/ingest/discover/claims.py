"""What a run says of itself: the hints of its names and metadata, put together by field, contradictions kept apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.core.models import Hint, Recipe
from pytest_llmbench.ingest.discover.names import RECIPES

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
    """What a run says, by field; `contradictions` are the fields of which it says several things."""

    by_field: Mapping[str, Claim]
    contradictions: tuple[tuple[Claim, ...], ...] = ()


def collect_claims(hints: Iterable[Hint], recipes: Sequence[Recipe]) -> Claims:
    """Put hints together: two spellings of one recipe, a release and its patch release, `016` and `16` are one."""
    of_field: dict[str, list[Claim]] = {}
    for hint in hints:
        same_field = of_field.setdefault(hint.field, [])
        claim = Claim(hint.field, _normalise(hint.value), (hint.source,))
        place = next((place for place, other in enumerate(same_field) if _agree(other, claim, recipes)), None)
        if place is None:
            same_field.append(claim)
        else:
            same_field[place] = _merge(same_field[place], claim, recipes)
    single = {field: values[0] for field, values in of_field.items() if len(values) == 1}
    return Claims(single, tuple(tuple(values) for values in of_field.values() if len(values) > 1))


def find_recipes(text: str, recipes: Sequence[Recipe]) -> frozenset[str]:
    """Return the recipes (`Recipe.name`) that a name means: as it stands, else without a leading framework (`nemo_`).

    A longer or shorter name is another recipe: `mini_grok1` is not `grok1`, `llama3` is not `llama3.1`.
    """
    for name in (text, _FRAMEWORK.sub("", text, count=1)):
        named = frozenset(
            recipe.name for recipe in recipes if _normalise(name) in map(_normalise, (recipe.name, *recipe.names))
        )
        if named:
            return named
    return frozenset()


def is_release(text: str, release: str) -> bool:
    """Whether what a run says is a release or one of its patch releases: `25.05.04` is of 25.05."""
    text, release = text.removeprefix("v"), release.removeprefix("v")
    return text == release or text.startswith(f"{release}.")


def _agree(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> bool:
    if claim.value == other.value:
        return True
    if claim.field == "recipe":
        return bool(find_recipes(claim.value, recipes) & find_recipes(other.value, recipes))
    if claim.field == "dtype":  # metadata say `fp8` of every recipe of it
        return any({claim.value, other.value} <= {"fp8", *names} for names in RECIPES.values())
    either_way = is_release(claim.value, other.value) or is_release(other.value, claim.value)
    return claim.field == "release" and either_way


def _merge(claim: Claim, other: Claim, recipes: Sequence[Recipe]) -> Claim:
    """Return the claim that says more, with the sources of both."""
    value = max(claim.value, other.value, key=len)
    if claim.field == "recipe":
        value = min(claim.value, other.value, key=lambda name: len(find_recipes(name, recipes)))
    return Claim(claim.field, value, (*claim.sources, *other.sources))


def _normalise(value: str) -> str:
    """Return a value as it is compared: without case, numbers without leading zeros."""
    return str(int(value)) if value.isdecimal() else value.casefold()
