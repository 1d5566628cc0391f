"""Redaction of secrets in texts.

The value of a variable with a secret name is hidden in every encoding. Texts in the
format of a token and passwords in URLs are hidden wherever they come from.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
    select_suspects,
)

# The shortest secret that is also replaced inside a word. Replacing every `1` or `no`
# would destroy the text and yet reveal the value.
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
    secret_names = {
        name for name, value in dict(environment).items() if _names_secret(name, value)
    }
    return tuple(sorted(secret_names | set(extra)))


def _names_secret(name: str, value: str) -> bool:
    """True if the name of a variable shows that its value is a secret."""
    kind = find_kind(name)
    # In a job matrix, MODEL_KEY and SORT_KEY contain the id of a configuration.
    if kind is Kind.KEY:
        return not is_identifier(value)
    return kind is not None


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables with secret names, except values too plain to be
    secrets."""
    values = [environment[name] for name in find_secret_names(environment)]
    return tuple(filter(is_secret, values))


def list_forms(value: str) -> Iterator[str]:
    """Yield the encodings of a secret: plain, by line, in shells, URLs and JSON."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= SHORTEST)
    quoted = shlex.quote(value)
    yield quoted
    # A slice from 1 to -1 removes the quotes: a secret may be a part of a longer text.
    yield quoted[1:-1] if quoted != value else value
    yield from (quote(value), quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    # With backslashes, as bash's `printf %q` quotes.
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII)


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
    processed_end = 0  # the text before this index is processed
    for begin, end in spans:
        if begin >= processed_end:
            pieces += [text[processed_end:begin], MASK]
        processed_end = max(processed_end, end)
    return "".join([*pieces, text[processed_end:]])


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

    `secrets` are the names of secret variables. Values of secrets are also replaced in
    other variables.
    """
    variables, secret_names = dict(environment), set(secrets)
    secret_values = [
        value for name, value in variables.items() if name in secret_names and value
    ]
    masked = []
    for name, value in variables.items():
        if name in secret_names and value:
            masked.append((name, MASK))
        else:
            masked.append((name, hide_values(value, secret_values)))
    return tuple(masked)


LISTS, NUMBERS = (list, tuple), (int, float)
WITH_TEXT = (str, dict, *LISTS)
"""The types of plain values that are texts or may contain some."""


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
        joined_names = "\n".join(names)
        public_values = set()
        for value in identifiers:
            whole_word = rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])"
            if re.search(whole_word, joined_names):
                public_values.add(value)
        return Redactor(self._values - public_values) if public_values else self

    def redact(self, text: str) -> str:
        """Return a text with its secrets hidden.

        Also hides the beginning of a secret that an ellipsis truncates.
        """
        if self._forms:
            if self._pattern.search(text):
                text = _mask_all(text, self._forms)
            if "…" in text or "..." in text:
                # "a…b" has the pieces "a", "…" and the end "b".
                *pieces, end = re.split(r"(…|\.\.\.)", text)
                text = "".join([*map(self._hide_beginning, pieces), end])
        return hide_tokens(text)

    def redact_variable(self, name: str, text: str) -> str:
        """Redact the value of a variable, completely if the name is secret."""
        if is_assigned_secret(name, text, loose=False):
            return MASK
        return self.redact(text)

    def redact_texts(self, name: str, texts: Sequence[str | None]) -> list[str | None]:
        """Redact the texts of a column with this name, as `redact_values` does.

        Equal texts are redacted once; nothing is remembered. None is returned as None.
        """
        distinct = [text for text in set(texts) if text is not None]
        redacted: dict[str | None, str]
        if find_kind(name) is not None:  # the name shows that its texts are secrets
            redacted = {text: self.redact_variable(name, text) for text in distinct}
        else:
            suspects = select_suspects(distinct)
            if self._forms:
                suspects.update(filter(self._may_contain_value, distinct))
            redacted = {text: self.redact(text) for text in suspects}
        if not redacted:
            return list(texts)
        return [redacted.get(text, text) for text in texts]

    def _may_contain_value(self, text: str) -> bool:
        """True if a text contains a secret value, or an ellipsis after its beginning."""
        return bool(self._pattern.search(text)) or "…" in text or "..." in text

    def redact_lines(self, lines: Iterable[str]) -> list[str]:
        """Redact the lines of a text, including those of a private key.

        Returns as many lines.
        """
        redacted = []
        for line in hide_tokens("\n".join(lines)).split("\n"):
            redacted.append(MASK if is_line_of_key(line) else self.redact(line))
        return redacted

    def _hide_beginning(self, text: str) -> str:
        """Hide the beginning of a secret at the end of a text."""
        length = max(count_shared(text, form) for form in self._forms)
        if length < SHORTEST:
            return text
        return text[: len(text) - length] + MASK

    def redact_values(
        self, value: Any, kept: Collection[str] = (), *, printable: bool = False
    ) -> Any:
        """Redact every text in nested dictionaries and lists.

        Keys, numbers and values under the `kept` keys are not redacted. `printable`
        first escapes all texts, including those under the `kept` keys.
        """
        # Not methods: `kept` and `printable` are the same at every level.
        prepare = escape if printable else str
        redact = self._redact_escaped if printable else self._redact_cached

        def change_items(values: dict[Any, Any]) -> dict[Any, Any]:
            """Redact the values of one dictionary, depending on their keys."""
            changed = {}
            for name, item in values.items():
                if not isinstance(item, WITH_TEXT):
                    changed[name] = item
                elif name in kept:
                    changed[name] = escape_values(item) if printable else item
                # The key, such as `hf_token`, shows that its value may be a secret.
                elif isinstance(item, str) and find_kind(name) is not None:
                    changed[name] = self.redact_variable(name, prepare(item))
                else:
                    changed[name] = change(item)
            return changed

        def change(value: Any) -> Any:
            """Redact a value of any type; only texts change."""
            if isinstance(value, str):
                return redact(value)
            if isinstance(value, dict):
                return change_items(value)
            if not isinstance(value, LISTS):
                return value
            # A column of steps contains only numbers.
            is_column = bool(value) and isinstance(value[0], NUMBERS)
            return value if is_column else list(map(change, value))

        return change(value)


def make_redactor() -> Redactor:
    """Return a redactor for the secrets in the environment of this process."""
    return _make_redactor(tuple(os.environ.items()))


@lru_cache(maxsize=1)
def _make_redactor(environment: tuple[tuple[str, str], ...]) -> Redactor:
    """Return a redactor for these variables; the result is cached."""
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
    for length in range(len(value) - 1, 0, -1):
        if text.endswith(value[:length]):
            return length
    return 0
