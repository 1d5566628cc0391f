"""Names that tell of a secret, and values that may be one: the judgement behind every
rule that hides."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache

SHORTEST_FOUND = 8
"""Characters from which on a value that nobody named as a secret is hidden."""

# characters of a value that are looked at: what follows changes no judgement, and would
# cost
LONGEST_JUDGED = 64


class Kind(Enum):
    """How much the name of a variable tells."""

    PASSWORD = auto()  # its value is one that a person chose: a word may be it
    SECRET = auto()  # its value is a secret unless it is a number, a word, a path
    # of a cache or a tokenizer as often: its value is a secret only if it was drawn at
    # random
    KEY = auto()


HINTS = (
    *(
        "token",
        "secret",
        "passw",
        "passp",
        "_pass",
        "-pass",
        "pass=",
        "pass =",
        "pass:",
        'pass"',
        "pass'",
        "pw",
        "cred",
        "key",
        "auth",
        "_pat",
    ),
    *(
        "cookie",
        "session",
        "sid=",
        "_sid",
        "signature",
        "sig=",
        "_sig",
        "csrf",
        "dsn",
        "jwt",
        "dockerconfig",
    ),
)
"""Texts in lower case, one of which is in `NAME=` for every name that tells of a
secret."""

_JOINTS = str.maketrans("-. ", "___")
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"

_PASSWORD = r"(?:passw(?:or)?d|passwort|passphrase)s?(?![a-z])|(?:^|_)(?:pw|pwd)$"
_SECRET = (
    r"(?:token|secrets?|credentials?|creds|docker_?config_?json|(?:api|access|account|auth|client|consumer|deploy|encryption|hmac|license|master|munge"
    r"|private|secret|service|shared|signing|ssh|storage|subscription)_?key)(?![a-z])"
    r"|(?:^|_)(?:anthropic|aws|azure|clearml|comet|datadog|gcp|hf|huggingface|kaggle|mlflow|neptune|ngc|openai|swanlab|wandb)_?key$"
    r"|(?:admin|db|ftp|http|ldap|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user)_?pass$"
)
_KEY = r"(?:^|_)(?:auth(?:_|$)|(?:key|pat|pass|cookies?|session_?id|sid|signature|sig|csrf|dsn|jwt)$)"

# Tokens of a tokenizer, and what belongs to a secret and is none.
_WEAK = (
    r"(?:^|_)(?:pad|padding|mask|bos|eos|eod|eot|unk|cls|sep|image|video|audio|fim(?:_[a-z]+)?|special|start|stop|end|next"
    r"|max|min|num|per|total)_?token|_(?:file|path|dir|name|type|url|uri|endpoint|count|version|size|length|scopes?|index"
    r"|provider|source|store|helper|class|backend|manager)$"
)
_NEVER = r"_(?:hash|sha\d*|md5|digest|checksum|fingerprint)$|_public_?key$"
_OF_PROGRAM = (
    r"(?:cache|sort|model|hash|group|partition|primary|foreign|row|config|shard|data|index|object|map|feature|metric|tag"
    r"|lock|dict|sub|state|matrix|build)_?key$"
)

_NUMBER = r"[-+\d.,:_ ]+(?:e[-+]?\d+)?"  # or a date
_WORD = r"[a-z]+|[A-Z]+|[A-Z][a-z]+"

# The pieces of names: `gb200`, `314b`, `v0`, `LayerNormMLP`, `GPT2BPETokenizer`. What
# was drawn at random has few such.
_HUMPS = (
    r"(?:[A-Z]{1,5}[a-z]{2,12}|[A-Z][a-z](?=\d)|[a-z]{3,12}|[A-Z]{1,6}(?![a-z])){1,5}"
)
_PIECE = (
    r"[A-Za-z]?[a-z]{0,20}\d{0,10}|[A-Z]{1,20}\d{0,10}|\d{1,12}[A-Za-z]{0,4}|[a-z]{1,4}\d{1,4}[a-z]{1,4}"
    rf"|{_HUMPS}(?:\d{{1,3}}(?:{_HUMPS})?)?"
)
_SEPARATORS = r"[-_.:,;/@=#+ ]+"
_CONSONANTS = r"(?i:[b-df-hj-np-tv-xz]{6})|[a-z]{21}"  # no word has so many

_PLACEHOLDER = (
    r"(?i)\$\(?\{?[A-Za-z_][\w.]*\}?\)?|\$\{[^}]*\}?|%\(?\w+\)?[%s]?|[<{\[].*|\W*|x{3,}|\*.*|\.\.\..*"
    r"|none|null|nil|true|false|yes|no|on|off|undefined|unset|empty|missing|required|optional|redacted|hidden|masked"
    r"|expired|invalid|disabled|enabled|set|str|string|bytes|any|not|lambda"
)

_DIGEST = r"[0-9a-f]*|[0-9A-F]*|[a-z]*|[A-Z]*|(?:/[\w-]+)+"

_CHECKSUM = r"(?i)(?:sha\d+|md5)[:-]"

_HOME = r"(?:~[\w.-]*|\.{1,2}|\$\{?\w+\}?|[A-Za-z]:)?[/\\]"
_FILE = r"(?:[\w.-]+/)+[\w-]+\.[a-z]\w{0,5}"
_DIRECTORIES = r"(?s)/[a-z]{2,20}\d{0,4}/[\w.@-]{1,40}(?:/.*)?"
_ROOTS = r"/(?:dev|etc|home|lustre|mnt|opt|proc|root|run|tmp|usr|var|workspace)(?:/|$)"


@lru_cache(maxsize=1024)
def find_kind(name: str) -> Kind | None:
    """Return how much a name of a variable, option, key or header tells of a secret;
    None for nothing."""
    if name in (
        "PWD",
        "OLDPWD",
    ):  # the shell's own: its folder, which no message could do without
        return None
    lower = f"{name.lower()}=".replace("_path", "").replace("tokens", "")
    if not any(hint in lower for hint in HINTS):
        return None
    name = normalise(name)
    if re.search(_PASSWORD, name):
        return Kind.PASSWORD
    if re.search(_SECRET, name):
        return Kind.KEY if re.search(_WEAK, name) else Kind.SECRET
    return Kind.KEY if re.search(_KEY, name) else None


def normalise(name: str) -> str:
    """Return `api_key` for `apiKey`, `API-KEY` and `api.key`."""
    return re.sub(_CAMEL, "_", name).translate(_JOINTS).lower()


def is_secret(value: str) -> bool:
    """True if a value may be a secret: it is long enough, and no number, path or plain
    word."""
    return len(value) >= SHORTEST_FOUND and not (
        re.fullmatch(_NUMBER, value) or re.fullmatch(_WORD, value) or is_path(value)
    )


def is_path(value: str) -> bool:
    """True if a value looks like a path: it has several components that are words.
    Base64 has none."""
    if "/" not in value:
        return False
    if value[0] != "/" and re.match(_HOME, value):
        return True
    if re.fullmatch(_FILE, value) or re.match(_ROOTS, value):
        return True
    return bool(re.fullmatch(_DIRECTORIES, value)) and is_wordlike(
        "/".join(value.split("/", 3)[1:3])
    )


def is_wordlike(value: str) -> bool:
    """True if a value consists of words, numbers and what joins them, as names and
    versions do."""
    value = value[:LONGEST_JUDGED]
    return all(
        map(re.compile(_PIECE).fullmatch, re.split(_SEPARATORS, value))
    ) and not re.search(_CONSONANTS, value)


def is_identifier(value: str) -> bool:
    """True for a name of several pieces, such as the id of a configuration, a host or
    an image."""
    return is_wordlike(value) and len(re.split(_SEPARATORS, value.strip("-_"))) > 1


def is_random(value: str, shortest: int = SHORTEST_FOUND) -> bool:
    """True if a value looks as if it was drawn at random."""
    return (
        len(value) >= shortest
        and is_secret(value)
        and not is_wordlike(value)
        and " " not in value
    )


def is_line_of_key(line: str) -> bool:
    """True for a whole line of base64, as those of a private key, whose first line may
    be missing."""
    return bool(
        re.fullmatch(r"\s*[A-Za-z0-9+/]{60,76}={0,2}\s*", line)
    ) and not re.fullmatch(_DIGEST, line.strip())


def is_placeholder(value: str) -> bool:
    """True for a placeholder such as `None`, `$NAME`, `<token>` or `***`."""
    return bool(re.fullmatch(_PLACEHOLDER, value))


@lru_cache(maxsize=1024)
def is_assigned_secret(name: str, value: str, *, loose: bool) -> bool:
    """True if the value that a text gives to a name is a secret.

    `loose` says that the text is prose as often as a variable: after a colon or a space
    stands a word, too.
    """
    kind, value = find_kind(name), value[:LONGEST_JUDGED]
    if (
        kind is None
        or is_placeholder(value)
        or (re.search(_NEVER, normalise(name)) and kind is not Kind.PASSWORD)
    ):
        return False
    if kind is Kind.PASSWORD:
        return _is_password(name, value, loose=loose)
    if "://" in value or re.match(_CHECKSUM, value):
        return False
    if kind is Kind.SECRET:
        return is_random(value) or (not loose and _is_named_secret(name, value))
    return _is_key(name, value)


def _is_password(name: str, value: str, *, loose: bool) -> bool:
    if re.search(_WEAK, normalise(name)) and not is_random(value):
        return False
    if (
        re.search(_NEVER, normalise(name))
        or re.search(r"(?:^|_)no_", normalise(name))
        or is_path(value)
    ):
        return False
    if loose:
        return len(value) >= 6 and not re.fullmatch(_WORD, value)
    return not (name.isupper() and value == name)


def _is_named_secret(name: str, value: str) -> bool:
    # A secret has digits, as most generated ones. What has several words in it is one
    # only of a variable.
    if not is_secret(value) or not any(map(str.isdigit, value)) or " " in value:
        return False
    return name.isupper() or not is_identifier(value)


def _is_key(name: str, value: str) -> bool:
    normal = normalise(name)
    if normal.endswith("key") and (
        not name.isupper() or "_" not in name or re.search(_OF_PROGRAM, normal)
    ):
        return False
    return is_random(value, 12)
