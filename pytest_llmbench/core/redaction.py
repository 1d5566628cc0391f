"""Secrets: which variables hold some, what a token looks like, and text without them.

A value is hidden where its variable tells what it is, in every spelling; what has the
form of a token or stands as the password of a URL is hidden whoever wrote it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from pytest_llmbench.core.formatting import escape, escape_values
from pytest_llmbench.core.secret_rules import (
    MASK,
    Kind,
    find_kind,
    hide_password_of,
    hide_tokens,
    is_assigned_secret,
    is_identifier,
    is_line_of_key,
    is_secret,
)

# replacing `1` or `no` wherever it stands would destroy the text and name the value all
# the same
SHORTEST = 4

IDENTIFYING = frozenset(
    {
        "schema",
        "kind",
        "status",
        "suite",
        "configuration",
        "members",
        "nodes",
        "job_id",
        "log_fingerprint",
        "code",
    }
)
"""What identifies something in an outcome: no secret is looked for there, nor in the id
of a configuration."""

__all__ = [
    "MASK",
    "hide_password_of",
    "hide_tokens",
    "is_secret",
]  # the rules' own, for all who use this

# --- which values ---------------------------------------------------------------------


def find_secret_names(
    environment: Mapping[str, str] | Iterable[tuple[str, str]],
    extra: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the names whose values are never shown, sorted: those that tell of a
    token, secret, password or key, and the `extra` ones (all of those, whether the
    environment has them or not)."""
    telling = {name for name, value in dict(environment).items() if _tells(name, value)}
    return tuple(sorted(telling | set(extra)))


def _tells(name: str, value: str) -> bool:
    kind = find_kind(name)
    # MODEL_KEY and SORT_KEY of a matrix of jobs hold the id of a configuration.
    return kind is not None and not (kind is Kind.KEY and is_identifier(value))


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the variables whose names tell of a secret, without those
    that cannot be one."""
    return tuple(
        filter(
            is_secret, (environment[name] for name in find_secret_names(environment))
        )
    )


def list_forms(value: str) -> Iterator[str]:
    """Yield the spellings of a value: as it is, each of its lines, and as shells, URLs
    and JSON write it."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= SHORTEST)
    yield shlex.quote(value)
    yield shlex.quote(value)[1:-1] if shlex.quote(value) != value else value
    yield from (quote(value), quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield re.sub(
        r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII
    )  # bash's printf %q


# --- text without them ----------------------------------------------------------------


def hide_values(text: str, values: Iterable[str]) -> str:
    """Return a text with `***` for each of the values, tokens and passwords in it, also
    where a shell, a URL or JSON quoted them. A value of less than four characters is
    replaced only where it stands alone."""
    forms = {form for value in values if value for form in list_forms(value)}
    return hide_tokens(_mask_all(text, forms))


def _mask_all(text: str, forms: Iterable[str]) -> str:
    """Return a text with `***` for each form of a secret in it. Where two overlap, both
    are hidden by one: behind the first, the rest of the second would stay."""
    spans = sorted(span for form in forms for span in _find_form(text, form))
    parts: list[str] = []
    done = 0  # the text is shown or hidden up to here
    for begin, end in spans:
        if begin >= done:
            parts += [text[done:begin], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def _find_form(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield where a form of a secret begins and ends in a text, overlapping ones too;
    a short one only where it stands alone."""
    if len(form) < SHORTEST:
        for match in re.finditer(rf"(?<!\w){re.escape(form)}(?!\w)", text):
            yield match.span()
        return
    begin = text.find(form)
    while begin >= 0:
        yield begin, begin + len(form)
        begin = text.find(form, begin + 1)


def mask_environment(
    environment: Mapping[str, str] | Iterable[tuple[str, str]], secrets: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables as they may be shown: `***` for a secret, and wherever its
    value stands in another one."""
    pairs, hidden = tuple(dict(environment).items()), set(secrets)
    values = [value for name, value in pairs if name in hidden and value]
    return tuple(
        (name, MASK if name in hidden and value else hide_values(value, values))
        for name, value in pairs
    )


class Redactor:
    """Hides what is secret in the texts of one session."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Take the values that are secret; of those that cannot be, none is hidden."""
        self._values = frozenset(filter(is_secret, values))
        self._forms = frozenset(
            form for value in self._values for form in list_forms(value)
        )
        self._pattern = re.compile("|".join(map(re.escape, self._forms)))
        # Nights and outcomes repeat themselves: a year of all configurations has
        # 400,000 texts.
        self._redact_cached = cache(self.redact)
        self._redact_escaped = cache(lambda text: self.redact(escape(text)))

    def with_values(self, values: Iterable[str]) -> Redactor:
        """Return one that hides these, too."""
        return Redactor(self._values.union(values))

    def without(self, names: Iterable[str]) -> Redactor:
        """Return a redactor that shows values that are whole components of these public
        names."""
        parts = [value for value in self._values if is_identifier(value)]
        if not parts:
            return self
        known = "\n".join(names)
        kept = {
            value
            for value in parts
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", known)
        }
        return Redactor(self._values - kept) if kept else self

    def redact(self, text: str) -> str:
        """Return a text without secrets, nor the beginning of one where it was cut."""
        if self._forms:
            if self._pattern.search(text):
                text = _mask_all(text, self._forms)
            if "…" in text or "..." in text:
                parts = re.split(r"(…|\.\.\.)", text)
                text = "".join([*map(self._hide_beginning, parts[:-1]), parts[-1]])
        return hide_tokens(text)

    def redact_variable(self, name: str, text: str) -> str:
        """Redact the value of a variable: all of it if the variable has a secret
        name."""
        if is_assigned_secret(name, text, loose=False):
            return MASK
        return self.redact(text)

    def redact_lines(self, lines: Iterable[str]) -> list[str]:
        """Redact the lines of one text, including those of a private key; returns as
        many lines."""
        hidden = hide_tokens("\n".join(lines)).split("\n")
        return [MASK if is_line_of_key(line) else self.redact(line) for line in hidden]

    def _hide_beginning(self, text: str) -> str:
        cut = max(count_shared(text, form) for form in self._forms)
        return text[: len(text) - cut] + MASK if cut >= SHORTEST else text

    def redact_values(
        self, value: Any, kept: Collection[str] = (), *, printable: bool = False
    ) -> Any:
        """Redact every text in nested dictionaries and lists; keys, numbers and values
        under the `kept` keys stay.

        `printable` escapes all texts before, those under the `kept` keys too.
        """
        prepare, redact = (
            (escape, self._redact_escaped) if printable else (str, self._redact_cached)
        )

        def change_items(values: dict[Any, Any]) -> dict[Any, Any]:
            changed = {}
            for name, inner in values.items():
                if name in kept:
                    changed[name] = escape_values(inner) if printable else inner
                elif isinstance(inner, str) and find_kind(name) is not None:
                    changed[name] = self.redact_variable(name, prepare(inner))
                else:
                    changed[name] = change(inner)
            return changed

        def change(value: Any) -> Any:
            if isinstance(value, str):
                return redact(value)
            if isinstance(value, dict):
                return change_items(value)
            if isinstance(value, list | tuple):
                if value and isinstance(value[0], int | float):  # the columns of steps
                    return value
                return list(map(change, value))
            return value

        return change(value)


def make_redactor() -> Redactor:
    """Return what hides the secrets in the environment of this process."""
    return _make_redactor(tuple(os.environ.items()))


@lru_cache(maxsize=1)
def _make_redactor(environment: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(list_secret_values(dict(environment)))


def redact_text(text: str) -> str:
    """Return a text without the secrets in the environment of this process, for what no
    session says."""
    return make_redactor().redact(text)


def count_shared(text: str, value: str) -> int:
    """Return how many of its first characters a value shares with the end of a text."""
    return next(
        (size for size in range(len(value) - 1, 0, -1) if text.endswith(value[:size])),
        0,
    )
