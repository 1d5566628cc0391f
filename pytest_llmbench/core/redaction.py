"""Redaction of secrets in texts.

The value of a variable with a secret name is hidden in every encoding. Texts in the
format of a token and passwords in URLs are hidden wherever they come from.
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

# Replacing every `1` or `no` would destroy the text and yet reveal the value.
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
"""Keys of an outcome whose values identify something and are never redacted.

Ids of configurations are not redacted either.
"""

__all__ = [
    "MASK",
    "hide_password_of",
    "hide_tokens",
    "is_secret",
]  # re-exported from `secret_rules`

# --- secret values --------------------------------------------------------------------


def find_secret_names(
    environment: Mapping[str, str] | Iterable[tuple[str, str]],
    extra: Iterable[str] = (),
) -> tuple[str, ...]:
    """Return the sorted names of the variables whose values must not be shown.

    These are names for tokens, secrets, passwords or keys, and all `extra` names, even
    if they are not in `environment`.
    """
    secrets = {
        name for name, value in dict(environment).items() if _names_secret(name, value)
    }
    return tuple(sorted(secrets | set(extra)))


def _names_secret(name: str, value: str) -> bool:
    """True if the name of a variable shows that its value is a secret."""
    kind = find_kind(name)
    # In a job matrix, MODEL_KEY and SORT_KEY contain the id of a configuration.
    return kind is not None and not (kind is Kind.KEY and is_identifier(value))


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with secret names, except values too plain to be
    secrets."""
    return tuple(
        filter(
            is_secret, (environment[name] for name in find_secret_names(environment))
        )
    )


def list_forms(value: str) -> Iterator[str]:
    """Yield the encodings of a value: plain, by line, and as in shells, URLs and JSON."""
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


# --- redaction ------------------------------------------------------------------------


def hide_values(text: str, values: Iterable[str]) -> str:
    """Replace the values, tokens and passwords in a text by `***`, in every encoding.

    A value of fewer than four characters is replaced only as a whole word.
    """
    forms = {form for value in values if value for form in list_forms(value)}
    return hide_tokens(_mask_all(text, forms))


def _mask_all(text: str, forms: Iterable[str]) -> str:
    """Replace each occurrence of a secret in a text by `***`.

    Overlapping occurrences are replaced by one `***`: otherwise the end of the second
    secret would remain after the first one.
    """
    spans = sorted(span for form in forms for span in _find_form(text, form))
    pieces: list[str] = []
    reached = 0  # the text before this index is processed
    for begin, end in spans:
        if begin >= reached:
            pieces += [text[reached:begin], MASK]
        reached = max(reached, end)
    return "".join([*pieces, text[reached:]])


def _find_form(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) indexes of a secret in a text, including overlapping ones.

    A short secret is found only as a whole word.
    """
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
    """Return the variables for display, with secrets replaced by `***`.

    Values of secrets are also replaced in other variables.
    """
    pairs, hidden = tuple(dict(environment).items()), set(secrets)
    values = [value for name, value in pairs if name in hidden and value]
    return tuple(
        (name, MASK if name in hidden and value else hide_values(value, values))
        for name, value in pairs
    )


class Redactor:
    """Hides the secrets of one session in texts."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Values that cannot be secrets, such as short words, are ignored."""
        self._values = frozenset(filter(is_secret, values))
        self._forms = frozenset(
            form for value in self._values for form in list_forms(value)
        )
        self._pattern = re.compile("|".join(map(re.escape, self._forms)))
        # Texts repeat in days and outcomes: a year of all configurations has 400,000.
        self._redact_cached = cache(self.redact)
        self._redact_escaped = cache(lambda text: self.redact(escape(text)))

    def with_values(self, values: Iterable[str]) -> Redactor:
        """Return a redactor that also hides these values."""
        return Redactor(self._values.union(values))

    def without(self, names: Iterable[str]) -> Redactor:
        """Return a redactor that does not hide values contained in these public names.

        A value is contained if it is an identifier and a whole word of a name.
        """
        identifiers = [value for value in self._values if is_identifier(value)]
        if not identifiers:
            return self
        joined = "\n".join(names)
        public = {
            value
            for value in identifiers
            if re.search(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", joined)
        }
        return Redactor(self._values - public) if public else self

    def redact(self, text: str) -> str:
        """Return a text with its secrets hidden.

        Also hides the beginning of a secret that an ellipsis truncates.
        """
        if self._forms:
            if self._pattern.search(text):
                text = _mask_all(text, self._forms)
            if "…" in text or "..." in text:
                pieces = re.split(r"(…|\.\.\.)", text)
                text = "".join([*map(self._hide_beginning, pieces[:-1]), pieces[-1]])
        return hide_tokens(text)

    def redact_variable(self, name: str, text: str) -> str:
        """Redact the value of a variable: all of it if the variable has a secret name."""
        if is_assigned_secret(name, text, loose=False):
            return MASK
        return self.redact(text)

    def redact_lines(self, lines: Iterable[str]) -> list[str]:
        """Redact the lines of a text, including those of a private key.

        Returns as many lines.
        """
        hidden = hide_tokens("\n".join(lines)).split("\n")
        return [MASK if is_line_of_key(line) else self.redact(line) for line in hidden]

    def _hide_beginning(self, text: str) -> str:
        """Hide the beginning of a secret at the end of a text."""
        length = max(count_shared(text, form) for form in self._forms)
        return text[: len(text) - length] + MASK if length >= SHORTEST else text

    def redact_values(
        self, value: Any, kept: Collection[str] = (), *, printable: bool = False
    ) -> Any:
        """Redact every text in nested dictionaries and lists.

        Keys, numbers and values under the `kept` keys are not redacted. `printable`
        first escapes all texts, including those under the `kept` keys.
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
    """Return a redactor for the secrets in the environment of this process."""
    return _make_redactor(tuple(os.environ.items()))


@lru_cache(maxsize=1)
def _make_redactor(environment: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(list_secret_values(dict(environment)))


def redact_text(text: str) -> str:
    """Redact the secrets of this process's environment in a text.

    For code without the redactor of a session.
    """
    return make_redactor().redact(text)


def count_shared(text: str, value: str) -> int:
    """Return the length of the longest prefix of `value` that `text` ends with.

    The prefix is shorter than `value`.
    """
    return next(
        (size for size in range(len(value) - 1, 0, -1) if text.endswith(value[:size])),
        0,
    )
