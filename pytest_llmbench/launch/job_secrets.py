"""The values of a job that never reach a file, an output or a message, and text
without them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable

from pytest_llmbench.core.job_records import JobSpec
from pytest_llmbench.core.log_records import Quote
from pytest_llmbench.core.redaction import (
    MASK,
    SHORTEST,
    count_shared,
    hide_values,
    list_forms,
)

_SALT = 8  # characters of the salt of a digest

WITHHELD = Quote("(not shown: it may hold a secret)")
"""What stands for a quote where nothing can tell what to hide in it."""


def find_secret_values(spec: JobSpec) -> tuple[str, ...]:
    """Return the values of a job's secrets, the longest first."""
    environment = dict(spec.environment)
    values = {environment[name] for name in spec.secrets if environment.get(name)}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def redact(text: str, secrets: JobSpec | Iterable[str]) -> str:
    """Return a text with `***` for every secret value in it, also where a shell, a URL
    or JSON quoted it.

    `secrets` are a job, whose secrets are meant, or values. A value of less than four
    characters is replaced only where it stands alone.
    """
    return hide_values(
        text, find_secret_values(secrets) if isinstance(secrets, JobSpec) else secrets
    )


def has_unknown_secrets(spec: JobSpec) -> bool:
    """Whether a job has secrets of an earlier session, which the journal did not keep,
    nor has this one the same: a token may live for a night. Nothing can hide them."""
    environment = dict(spec.environment)
    changed = (
        make_digest(environment.get(name, ""), text[:_SALT]) != text
        for name, text in spec.digests
    )
    return MASK in find_secret_values(spec) or any(changed)


def make_digest(value: str, salt: str = "") -> str:
    """Return a text that tells a value from another one, too short to find the value by
    it; the salt stands first."""
    salt = salt or secrets.token_hex(_SALT // 2)
    return (
        salt
        + hashlib.blake2b(
            value.encode("utf-8", "surrogateescape"), key=salt.encode(), digest_size=2
        ).hexdigest()
    )


def hide_in_quote(quote: Quote, spec: JobSpec) -> Quote:
    """Return what a job printed without its secrets, nor the beginning of one where the
    quote was cut; all of it is withheld where its secrets are not known."""
    if has_unknown_secrets(spec):
        return WITHHELD
    text = redact(quote, spec)
    whole = text.removesuffix("…")
    forms = (form for value in find_secret_values(spec) for form in list_forms(value))
    cut = max((count_shared(whole, form) for form in forms), default=0)
    return Quote(whole[: len(whole) - cut] + MASK if cut >= SHORTEST else text)
