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


def claims(hints: Iterable[Hint], recipes: Sequence[Recipe]) -> Claims:
    """Put hints together; two spellings of one recipe, a release and its patch release, `016` and `16` are one."""
    found: dict[str, list[Claim]] = {}
    for hint in hints:
        known = found.setdefault(hint.field, [])
        claim = Claim(hint.field, _plain(hint.value), (hint.source,))
        place = next((place for place, other in enumerate(known) if _agree(other, claim, recipes)), None)
        if place is None:
            known.append(claim)
        else:
            known[place] = _merged(known[place], claim, recipes)
    single = {field: values[0] for field, values in found.items() if len(values) == 1}
    return Claims(single, tuple(tuple(values) for values in found.values() if len(values) > 1))


def recipes_named(text: str, recipes: Sequence[Recipe]) -> frozenset[str]:
    """Return the recipes (`Recipe.name`) that a name means: as it stands, else without a leading framework (`nemo_`).

    A longer or shorter name is another recipe: `mini_grok1` is not `grok1`, `llama3` is not `llama3.1`.
    """
    for name in (text, _FRAMEWORK.sub("", text, count=1)):
        named = frozenset(
            recipe.name for recipe in recipes if _plain(name) in map(_plain, (recipe.name, *recipe.names))
        )
        if named:
            return named
    return frozenset()


def is_release(said: str, release: str) -> bool:
    """Whether what a run says is a release or one of its patch releases: `25.05.04` is of 25.05."""
    said, release = said.removeprefix("v"), release.removeprefix("v")
    return said == release or said.startswith(f"{release}.")


def _agree(one: Claim, other: Claim, recipes: Sequence[Recipe]) -> bool:
    if one.value == other.value:
        return True
    if one.field == "recipe":
        return bool(recipes_named(one.value, recipes) & recipes_named(other.value, recipes))
    if one.field == "dtype":  # metadata say `fp8` of every recipe of it
        return any({one.value, other.value} <= {"fp8", *names} for names in RECIPES.values())
    either_way = is_release(one.value, other.value) or is_release(other.value, one.value)
    return one.field == "release" and either_way


def _merged(one: Claim, other: Claim, recipes: Sequence[Recipe]) -> Claim:
    """Return the claim that says more, with the sources of both."""
    value = max(one.value, other.value, key=len)
    if one.field == "recipe":
        value = min(one.value, other.value, key=lambda name: len(recipes_named(name, recipes)))
    return Claim(one.field, value, (*one.sources, *other.sources))


def _plain(value: str) -> str:
    """Return a value as it is compared: without case, numbers without leading zeros."""
    return str(int(value)) if value.isdecimal() else value.casefold()
