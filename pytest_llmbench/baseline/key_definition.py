"""What a key of a baseline file is, and what may stand in most of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytest_llmbench.core.baseline_records import BaselineKind
from pytest_llmbench.core.yamlfile import Fields, Number, Spec, Text

KINDS = tuple(kind.value for kind in BaselineKind)
"""The document's numbers, this cluster's own, or a recipe that nothing has timed
yet."""


@dataclass(frozen=True, slots=True)
class KeyDefinition:
    """A key of a baseline file: everything that reads, checks, writes or documents it
    follows from here."""

    name: str
    spec: Spec
    meaning: str
    """As docs/baselines.md states it."""

    field: str = ""
    """The attribute of a `Baseline` that it becomes, dotted; empty where it becomes
    none or more than one."""

    required_in: tuple[str, ...] = ()
    """The kinds of files that have to state it."""

    allowed_in: tuple[str, ...] = KINDS
    """The kinds of files that may state it. A key whose values differ between kinds is
    defined once for each."""

    is_owned: bool = False
    """Whether only the owner of a recorded file writes it: no recording changes it."""

    write: Callable[[Any], Any] | None = None
    """What a recorded file states of that attribute, where its `spec` does not tell."""


allow = KeyDefinition
require = partial(KeyDefinition, required_in=KINDS)


def make_fields(keys: Iterable[KeyDefinition], kind: str = KINDS[0]) -> Fields:
    """Return the keys that a mapping in a file of this kind has to state and may
    state."""
    allowed = [key for key in keys if kind in key.allowed_in]
    return Fields(
        {key.name: key.spec for key in allowed if kind in key.required_in},
        {key.name: key.spec for key in allowed if kind not in key.required_in},
    )


def make_tested_text(expected: str, test: Callable[[str], object]) -> Text:
    """Return text that passes a test, which raises for what it cannot read."""

    def accept(text: str) -> bool:
        try:
            return bool(test(text))
        except (ValueError, re.error):
            return False

    return Text(expected, accept=accept)


NAME = Text(
    "a name of lower-case letters, digits and . _ + -",
    r"(?a:[a-z0-9][a-z0-9._+-]{0,99})",
)
WORD = Text("a name of lower-case letters and digits", r"(?a:[a-z0-9][a-z0-9_.]{0,49})")
TEXT = Text()
SIZE = Number(1, 10**9, whole=True)
GROUP = Number(1, 10**7, whole=True)
COUNT = Number(1, 10**6, whole=True)
STEP = Number(0, 10**9, whole=True)
