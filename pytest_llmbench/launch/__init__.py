"""From a selected configuration to a job that has ended: plan, submit, follow, explain.

What others call stands in the `__init__` of each folder: `build_job` in recipe, `check_launch` in preflight, `Slurm` in
slurm, the launchers in submit, `Engine` in follow, `Journal` in journal. Here is what all of them share: which values
never reach a file, an output or a message, and text without them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus

from pytest_llmbench.core.models.jobs import JobSpec, Pairs
from pytest_llmbench.core.models.logs import Quote

MASK = "***"

_SALT = 8  # characters of the salt of a digest

WITHHELD = Quote("(not shown: it may hold a secret)")
"""What stands for a quote where nothing can tell what to hide in it."""

_TELLING = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|(^|_)AUTH($|_)"
    r"|(^|_)(KEY|PW|PWD|PAT|COOKIE)$",
    re.IGNORECASE,
)
_HARMLESS = frozenset({"PWD", "OLDPWD"})  # the shell's own: its folder, which no message could do without

_SHORTEST = 4  # replacing `1` or `no` wherever it stands would destroy the text and name the value all the same


def find_secret_names(environment: Mapping[str, str] | Pairs, extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the names whose values are never shown, sorted: those that tell of a token, secret, password or key, and
    the `extra` ones (all of those, whether the environment has them or not)."""
    telling = {name for name in dict(environment) if _TELLING.search(name) and name not in _HARMLESS}
    return tuple(sorted(telling | set(extra)))


def find_secret_values(spec: JobSpec) -> tuple[str, ...]:
    """Return the values of a job's secrets, the longest first."""
    environment = dict(spec.environment)
    values = {environment[name] for name in spec.secrets if environment.get(name)}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def redact(text: str, secrets: JobSpec | Iterable[str]) -> str:
    """Return a text with `***` for every secret value in it, also where a shell, a URL or JSON quoted it.

    `secrets` are a job, whose secrets are meant, or values. A value of less than four characters is replaced only
    where it stands alone.
    """
    values = find_secret_values(secrets) if isinstance(secrets, JobSpec) else tuple(secrets)
    forms = {form for value in values if value for form in _list_forms(value)}
    for form in sorted(forms, key=len, reverse=True):
        if len(form) >= _SHORTEST:
            text = text.replace(form, MASK)
        else:
            text = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", MASK, text)
    return text


def has_unknown_secrets(spec: JobSpec) -> bool:
    """Whether a job has secrets of an earlier session, which the journal did not keep, nor has this one the same: a
    token may live for a night. Nothing can hide them."""
    environment = dict(spec.environment)
    changed = (make_digest(environment.get(name, ""), text[:_SALT]) != text for name, text in spec.digests)
    return MASK in find_secret_values(spec) or any(changed)


def make_digest(value: str, salt: str = "") -> str:
    """Return a text that tells a value from another one, too short to find the value by it; the salt stands first."""
    salt = salt or secrets.token_hex(_SALT // 2)
    return (
        salt + hashlib.blake2b(value.encode("utf-8", "surrogateescape"), key=salt.encode(), digest_size=2).hexdigest()
    )


def hide_in_quote(quote: Quote, spec: JobSpec) -> Quote:
    """Return what a job printed without its secrets, nor the beginning of one where the quote was cut; all of it is
    withheld where its secrets are not known."""
    if has_unknown_secrets(spec):
        return WITHHELD
    text = redact(quote, spec)
    whole = text.removesuffix("…")
    forms = (form for value in find_secret_values(spec) for form in _list_forms(value))
    cut = max((_count_shared(whole, form) for form in forms), default=0)
    return Quote(whole[: len(whole) - cut] + MASK if cut >= _SHORTEST else text)


def _count_shared(text: str, value: str) -> int:
    """Return how many of its first characters a value shares with the end of a text."""
    return next((size for size in range(len(value) - 1, 0, -1) if text.endswith(value[:size])), 0)


def mask_environment(environment: Mapping[str, str] | Pairs, secrets: Iterable[str]) -> Pairs:
    """Return the variables as they may be shown: `***` for a secret, and wherever its value stands in another one."""
    pairs, hidden = tuple(dict(environment).items()), set(secrets)
    values = [value for name, value in pairs if name in hidden and value]
    return tuple((name, MASK if name in hidden and value else redact(value, values)) for name, value in pairs)


def _list_forms(value: str) -> Iterable[str]:
    """Yield the spellings of a value: as it is, each of its lines, and as shells, URLs and JSON write it."""
    yield value
    yield from (line for line in value.splitlines() if len(line) >= _SHORTEST)
    yield shlex.quote(value)
    yield shlex.quote(value)[1:-1] if shlex.quote(value) != value else value
    yield from (quote(value), quote(value, safe=""), quote_plus(value))
    yield json.dumps(value)[1:-1]
    yield repr(value)[1:-1]
    yield re.sub(r"([^\w@%+=:,./-])", r"\\\1", value, flags=re.ASCII)  # bash's printf %q
