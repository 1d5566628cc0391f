"""Secrets: which variables hold some, what a token looks like, and text without them.

A value is hidden where its variable tells what it is, in every spelling; what has the form of a token or stands as the
password of a URL is hidden whoever wrote it.
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

MASK = "***"

SHORTEST = 4  # replacing `1` or `no` wherever it stands would destroy the text and name the value all the same

SHORTEST_FOUND = 8
"""Characters from which on a value that nobody named as a secret is hidden."""

IDENTIFYING = frozenset(
    {"schema", "kind", "status", "suite", "configuration", "members", "nodes", "job_id", "log_fingerprint", "code"}
)
"""What identifies something in an outcome: no secret is looked for there, nor in the id of a configuration."""

_TELLING = re.compile(
    r"(TOKEN|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)(?![A-Z])"
    r"|(^|_)AUTH($|_)|(^|_)(KEY|PW|PWD|PAT|COOKIE)$",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"PWD", "OLDPWD"})  # the shell's own: its folder, which no message could do without

_ORDINARY = re.compile(
    r"[-+\d.,:_ ]+(e[-+]?\d+)?"  # a number or a date
    r"|[a-z]+|[A-Z]+|[A-Z][a-z]+"  # a plain word
    r"|(~[\w.-]*|\.{1,2})?/.*|([\w.-]+/)+[\w-]+\.[a-z]\w{0,5}",  # a path
    re.DOTALL,
)

# Of what is longer, the time would grow with its square; tokens that databases take as passwords have 1,000 characters.
_REST = r"\S{0,2000}"
_CUT = r"(?=…|\.\.\.)"  # what stands behind a text that was cut
_TOKENS = re.compile(
    rf"(?<![A-Za-z0-9])(?:hf_(?:[A-Za-z0-9]{{30,}}|[A-Za-z0-9]{{8,}}{_CUT})"
    rf"|gh[oprsu]_(?:[A-Za-z0-9]{{36,}}|[A-Za-z0-9]{{8,}}{_CUT})|github_pat_\w{{22,}}|glpat-[\w-]{{20,}}"
    r"|nvapi-[\w-]{40,}|sk-[\w-]{40,}|xox[abprs]-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])"
    r"|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,}\.[\w-]{10,})"
)
_BEARER = re.compile(r"\b(bearer\s+)(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}", re.IGNORECASE)

# `github://owner:repository@commit/path` has no password, nor has a host with its port.
_NAME = r"[^/?#\s:,'\"<>]{0,200}"
_USER = rf"(?<!\bgithub)(://{_NAME})"
_PORT = r"\d{2,5}[/?#]"
_OF_DATABASE = rf"(\b(?:postgres\w*|mysql|maria\w*|mssql|oracle|redis\w*|mongodb|amqps?)(?:\+\w+)*://{_NAME})"
_OF_URL = (
    (re.compile(rf"{_USER}:(?!:|{_PORT}){_REST}@"), rf"\1:{MASK}@"),  # also one with a slash or an @ in it
    # One that begins as a port does: the host of a database seldom has an @ behind its port, and behind the @ of
    # another URL stands a host (`host:8080/path@v2` has none).
    (re.compile(rf"{_OF_DATABASE}:(?!:){_PORT}{_REST}@"), rf"\1:{MASK}@"),
    (
        re.compile(
            rf"(://(?!localhost:)[^/?#\s:,.'\"<>\[]{{1,200}}):{_PORT}{_REST}(?<!/)@(?=[A-Za-z][\w-]*(?:\.[A-Za-z]|:\d+\b|/))"
        ),
        rf"\1:{MASK}@",
    ),
    (re.compile(r"(\b[A-Za-z][\w+.-]{1,50}:/[^/?#\s:]{0,200}):[^\s/]{0,2000}@"), rf"\1:{MASK}@"),  # a slash is missing
    (re.compile(rf"(\bpostgres\w*(?:\+\w+)?:[^/?#\s:]{{0,200}}):{_REST}@"), rf"\1:{MASK}@"),  # both are
    (
        re.compile(
            r"([?&](?:[^=&\s]{0,100}(?:pass|token(?![a-z])|secret|signature|credential|api_?key|accesskey)"
            r"[^=&\s]{0,100}|sig|key)=)"
            r"[^&\s]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (
        re.compile(
            r"(\b\w*(?:password|passwd)\s*=\s*)(?!\*\*\*)('(?:[^'\\]|\\.)*'|\"[^\"]*\"|[^\s'\"&]+)", re.IGNORECASE
        ),
        rf"\1{MASK}",
    ),
)

_ASSIGNED = re.compile(
    r"(\b\w*(?:TOKEN|SECRET|PASSPHRASE|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)=[\"']?)([\w.+/~-]{8,}=*)"
)
"""What `env` and a shell's `set -x` print of a variable, whoever's it was."""


# --- which values -----------------------------------------------------------------------------------------


def find_secret_names(
    environment: Mapping[str, str] | Iterable[tuple[str, str]], extra: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the names whose values are never shown, sorted: those that tell of a token, secret, password or key, and
    the `extra` ones (all of those, whether the environment has them or not)."""
    telling = {name for name in dict(environment) if _TELLING.search(name) and name not in _HARMLESS}
    return tuple(sorted(telling | set(extra)))


def list_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the variables whose names tell of a secret, without those that cannot be one."""
    return tuple(filter(is_secret, (environment[name] for name in find_secret_names(environment))))


def is_secret(value: str) -> bool:
    """Whether a value may be a secret: it is long enough, and no number, path or plain word."""
    return len(value) >= SHORTEST_FOUND and not _ORDINARY.fullmatch(value)


def list_forms(value: str) -> Iterator[str]:
    """Yield the spellings of a value: as it is, each of its lines, and as shells, URLs and JSON write it."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= SHORTEST)
    yield shlex.quote(value)
    yield shlex.quote(value)[1:-1] if shlex.quote(value) != value else value
    yield from (quote(value), quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII)  # bash's printf %q


# --- text without them ------------------------------------------------------------------------------------


def hide_values(text: str, values: Iterable[str]) -> str:
    """Return a text with `***` for each of the values, tokens and passwords in it, also where a shell, a URL or JSON
    quoted them. A value of less than four characters is replaced only where it stands alone."""
    forms = {form for value in values if value for form in list_forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= SHORTEST:
            text = text.replace(form, MASK)
        else:
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", MASK, text)
    return hide_tokens(text)


def hide_tokens(text: str) -> str:
    """Return a text with `***` for what has the form of a token, and for passwords in URLs."""
    if "_" in text or "-" in text or "IA" in text or "eyJ" in text:
        text = _TOKENS.sub(MASK, text)
    if "earer" in text or "EARER" in text:
        text = _BEARER.sub(rf"\1{MASK}", text)
    if "=" in text:
        text = _ASSIGNED.sub(_hide_assigned, text)
    return hide_passwords(text) if "@" in text or "=" in text else text  # each of its patterns has one of them


def _hide_assigned(match: re.Match[str]) -> str:
    value = match[2]
    # A tokenizer has variables with such names, too: a secret has digits, as most generated ones.
    return f"{match[1]}{MASK}" if is_secret(value) and any(map(str.isdigit, value)) else match[0]


def hide_passwords(text: str) -> str:
    """Return a text with the passwords of URLs in it as `***`, also those among their parameters."""
    for pattern, replacement in _OF_URL:
        text = pattern.sub(replacement, text)
    return text


def hide_password_of(url: str) -> str:
    """Return a text that is one URL without its password, which may also have spaces in it."""
    pattern = rf"(?:{_USER}:(?!:|{_PORT})|{_OF_DATABASE}:(?!:)).*@"
    return hide_passwords(re.sub(pattern, rf"\1\2:{MASK}@", url, flags=re.DOTALL))


def mask_environment(
    environment: Mapping[str, str] | Iterable[tuple[str, str]], secrets: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """Return the variables as they may be shown: `***` for a secret, and wherever its value stands in another one."""
    pairs, hidden = tuple(dict(environment).items()), set(secrets)
    values = [value for name, value in pairs if name in hidden and value]
    return tuple((name, MASK if name in hidden and value else hide_values(value, values)) for name, value in pairs)


class Redactor:
    """Hides what is secret in the texts of one session."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Take the values that are secret; of those that cannot be, none is hidden."""
        self._values = frozenset(filter(is_secret, values))
        self._forms = sorted({form for value in self._values for form in list_forms(value)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)")

    def with_values(self, values: Iterable[str]) -> Redactor:
        """Return one that hides these, too."""
        return Redactor(self._values.union(values))

    def redact(self, text: str) -> str:
        """Return a text without secrets, nor the beginning of one where it was cut."""
        if self._forms:
            text = self._pattern.sub(MASK, text)
            if "…" in text or "..." in text:
                parts = re.split(r"(…|\.\.\.)", text)
                text = "".join([*map(self._hide_beginning, parts[:-1]), parts[-1]])
        return hide_tokens(text)

    def _hide_beginning(self, text: str) -> str:
        cut = max(count_shared(text, form) for form in self._forms)
        return text[: len(text) - cut] + MASK if cut >= SHORTEST else text

    def redact_values(self, value: Any, kept: Collection[str] = ()) -> Any:
        """Return nested dictionaries and lists with every text in them redacted; keys, numbers and what stands under
        the `kept` keys stay."""
        redact = cache(self.redact)  # nights repeat themselves: a year of all configurations has 400,000 texts

        def change(value: Any) -> Any:
            if isinstance(value, str):
                return redact(value)
            if isinstance(value, dict):
                return {name: inner if name in kept else change(inner) for name, inner in value.items()}
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
    """Return a text without the secrets in the environment of this process, for what no session says."""
    return make_redactor().redact(text)


def count_shared(text: str, value: str) -> int:
    """Return how many of its first characters a value shares with the end of a text."""
    return next((size for size in range(len(value) - 1, 0, -1) if text.endswith(value[:size])), 0)
