"""Secret values of jobs, and functions that mask them in text."""

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

_SALT_LENGTH = 8  # characters of the salt of a digest

WITHHELD = Quote("(not shown: may contain a secret)")
"""Replaces a quote if the secrets in it are unknown."""


def find_secret_values(spec: JobSpec) -> tuple[str, ...]:
    """Return the values of a job's secrets, the longest first."""
    environment = dict(spec.environment)
    values = {environment[name] for name in spec.secrets if environment.get(name)}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def redact(text: str, secrets: JobSpec | Iterable[str]) -> str:
    """Mask every secret value in a text.

    Also finds values quoted for a shell, a URL or JSON. `secrets` is a job, or secret
    values. A value of fewer than four characters is masked only if it is a whole word.
    """
    if isinstance(secrets, JobSpec):
        secrets = find_secret_values(secrets)
    return hide_values(text, secrets)


def has_unknown_secrets(spec: JobSpec) -> bool:
    """True if the job used secret values that this process does not know.

    The journal does not store secrets, and a token may have changed since the session
    began. Unknown values cannot be masked.
    """
    environment = dict(spec.environment)
    # a resumed job has MASK in place of a secret that this session does not know
    if MASK in find_secret_values(spec):
        return True
    for name, digest in spec.digests:
        salt, value = digest[:_SALT_LENGTH], environment.get(name, "")
        if make_digest(value, salt) != digest:  # changed since the submission
            return True
    return False


def make_digest(value: str, salt: str = "") -> str:
    """Return a salted digest that detects a changed secret. The salt is its prefix.

    The default is a random salt. The digest is too short to reveal the value.
    """
    salt = salt or secrets.token_hex(_SALT_LENGTH // 2)
    digest = hashlib.blake2b(
        value.encode("utf-8", "surrogateescape"), key=salt.encode(), digest_size=2
    )
    return salt + digest.hexdigest()


def hide_in_quote(quote: Quote, spec: JobSpec) -> Quote:
    """Mask the secrets of a job in a line that it printed.

    Also masks the beginning of a secret at the end of a truncated line. Replaces the
    whole line by WITHHELD if the secrets are unknown.
    """
    if has_unknown_secrets(spec):
        return WITHHELD
    redacted = redact(quote, spec)
    line = redacted.removesuffix("…")  # the mark of a truncated line
    # a form is the value as quoted for a shell, a URL or JSON
    shared_lengths = [
        count_shared(line, form)
        for value in find_secret_values(spec)
        for form in list_forms(value)
    ]
    # the number of characters at the end of the line that may begin a secret
    shared_length = max(shared_lengths, default=0)
    if shared_length < SHORTEST:  # probably by chance
        return Quote(redacted)
    return Quote(line[: len(line) - shared_length] + MASK)
