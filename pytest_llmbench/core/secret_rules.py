"""Detection of secrets in texts, by the names of values and by their format.

The module first classifies names and values, then finds assignments (`NAME=value` in
any notation), then defines RULES: each rule has keywords in lower case and a finder.
One search looks for the keywords of all rules, and a pattern is compiled when one of
its keywords first occurs. Repetitions in patterns are bounded, so that the time grows
linearly with the length of a text.
"""

from __future__ import annotations

import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from functools import cache, lru_cache, partial
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

# --- names and values -----------------------------------------------------------------

SHORTEST_FOUND = 8
"""Minimum length of a value that is hidden although its name is not known to be secret.
"""

# The number of characters of a value that are checked. Further characters would cost
# time without changing the result.
LONGEST_JUDGED = 64


class Kind(Enum):
    """How likely a variable's value is a secret, by its name."""

    PASSWORD = auto()  # chosen by a person, so that even a word may be a secret
    SECRET = auto()  # a secret unless it is a number, a word or a path
    # may also be the key of a cache or a token of a tokenizer: a secret only if it
    # looks randomly generated
    KEY = auto()


HINTS = (
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
)
"""Lower-case texts; every `NAME=` with a secret name contains at least one of them."""

_JOINTS = str.maketrans("-. ", "___")
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])"  # between `api` and `Key` in `apiKey`

# Normalised names: `db_password`, `pwd`; `hf_token`, `wandb_key`, `smtp_pass`; `cookie`.
_PASSWORD = r"(?:passw(?:or)?d|passwort|passphrase)s?(?![a-z])|(?:^|_)(?:pw|pwd)$"
_SECRET = (
    r"(?:token|secrets?|credentials?|creds|docker_?config_?json|(?:api|access|account|auth|client|consumer|deploy|encryption|hmac|license|master|munge"
    r"|private|secret|service|shared|signing|ssh|storage|subscription)_?key)(?![a-z])"
    r"|(?:^|_)(?:anthropic|aws|azure|clearml|comet|datadog|gcp|hf|huggingface|kaggle|mlflow|neptune|ngc|openai|swanlab|wandb)_?key$"
    r"|(?:admin|db|ftp|http|ldap|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|user)_?pass$"
)
_KEY = r"(?:^|_)(?:auth(?:_|$)|(?:key|pat|pass|cookies?|session_?id|sid|signature|sig|csrf|dsn|jwt)$)"

# Tokens of a tokenizer, and attributes of a secret that are not secret themselves:
# `pad_token`, `max_token`, `token_file`.
_WEAK = (
    r"(?:^|_)(?:pad|padding|mask|bos|eos|eod|eot|unk|cls|sep|image|video|audio|fim(?:_[a-z]+)?|special|start|stop|end|next"
    r"|max|min|num|per|total)_?token|_(?:file|path|dir|name|type|url|uri|endpoint|count|version|size|length|scopes?|index"
    r"|provider|source|store|helper|class|backend|manager)$"
)
# `token_sha256`, `ssh_public_key`
_NEVER = r"_(?:hash|sha\d*|md5|digest|checksum|fingerprint)$|_public_?key$"
# Keys of programs and data: `cache_key`, `primary_key`.
_OF_PROGRAM = (
    r"(?:cache|sort|model|hash|group|partition|primary|foreign|row|config|shard|data|index|object|map|feature|metric|tag"
    r"|lock|dict|sub|state|matrix|build)_?key$"
)

_NUMBER = r"[-+\d.,:_ ]+(?:e[-+]?\d+)?"  # `1.5e-4`, or a date: `2025-11-20`
_WORD = r"[a-z]+|[A-Z]+|[A-Z][a-z]+"  # `word`, `WORD`, `Word`

# Components of names: `gb200`, `314b`, `v0`, `LayerNormMLP`, `GPT2BPETokenizer`. Random
# values contain few of them.
_HUMPS = (
    r"(?:[A-Z]{1,5}[a-z]{2,12}|[A-Z][a-z](?=\d)|[a-z]{3,12}|[A-Z]{1,6}(?![a-z])){1,5}"
)
_PIECE = (
    r"[A-Za-z]?[a-z]{0,20}\d{0,10}|[A-Z]{1,20}\d{0,10}|\d{1,12}[A-Za-z]{0,4}|[a-z]{1,4}\d{1,4}[a-z]{1,4}"
    rf"|{_HUMPS}(?:\d{{1,3}}(?:{_HUMPS})?)?"
)
_SEPARATORS = r"[-_.:,;/@=#+ ]+"
_CONSONANTS = r"(?i:[b-df-hj-np-tv-xz]{6})|[a-z]{21}"  # not in any word

_PLACEHOLDER = (
    r"(?i)\$\(?\{?[A-Za-z_][\w.]*\}?\)?|\$\{[^}]*\}?|%\(?\w+\)?[%s]?|[<{\[].*|\W*|x{3,}|\*.*|\.\.\..*"
    r"|none|null|nil|true|false|yes|no|on|off|undefined|unset|empty|missing|required|optional|redacted|hidden|masked"
    r"|expired|invalid|disabled|enabled|set|str|string|bytes|any|not|lambda"
)

# Lines in the characters of base64 that are none: a hash, a long word, a path.
_DIGEST = r"[0-9a-f]*|[0-9A-F]*|[a-z]*|[A-Z]*|(?:/[\w-]+)+"

_CHECKSUM = r"(?i)(?:sha\d+|md5)[:-]"  # `sha256:9f86d0...`

# Paths: `~/data` or `$HOME/data`; `data/train.bin`; `/scratch/alice/...`; `/lustre/...`.
_HOME = r"(?:~[\w.-]*|\.{1,2}|\$\{?\w+\}?|[A-Za-z]:)?[/\\]"
_FILE = r"(?:[\w.-]+/)+[\w-]+\.[a-z]\w{0,5}"
_DIRECTORIES = r"(?s)/[a-z]{2,20}\d{0,4}/[\w.@-]{1,40}(?:/.*)?"
_ROOTS = r"/(?:dev|etc|home|lustre|mnt|opt|proc|root|run|tmp|usr|var|workspace)(?:/|$)"


@lru_cache(maxsize=1024)
def find_kind(name: str) -> Kind | None:
    """Classify the name of a variable, option, key or header.

    None if its value need not be secret.
    """
    # The shell's current folder, which many messages need.
    if name in ("PWD", "OLDPWD"):
        return None
    # A fast check before the patterns. Some hints end in "=", such as "pass=". "_path"
    # and "tokens" name no secret, but contain the hints "_pat" and "token".
    hinted = f"{name.lower()}=".replace("_path", "").replace("tokens", "")
    if not any(hint in hinted for hint in HINTS):
        return None
    normal = normalise(name)
    if re.search(_PASSWORD, normal):
        return Kind.PASSWORD
    if re.search(_SECRET, normal):
        return Kind.KEY if re.search(_WEAK, normal) else Kind.SECRET
    return Kind.KEY if re.search(_KEY, normal) else None


def normalise(name: str) -> str:
    """Return `api_key` for `apiKey`, `API-KEY` and `api.key`."""
    return re.sub(_CAMEL, "_", name).translate(_JOINTS).lower()


def is_secret(value: str) -> bool:
    """True if a value may be a secret.

    It must be long enough and not be a number, a path or a plain word.
    """
    if len(value) < SHORTEST_FOUND:
        return False
    is_plain = re.fullmatch(_NUMBER, value) or re.fullmatch(_WORD, value)
    return not (is_plain or is_path(value))


def is_path(value: str) -> bool:
    """True if a value looks like a path: its components are words, unlike in base64."""
    if "/" not in value:
        return False
    # "~/data", "../runs" or "$HOME/data"
    if value[0] != "/" and re.match(_HOME, value):
        return True
    # "data/train.bin", or "/lustre/x1"
    if re.fullmatch(_FILE, value) or re.match(_ROOTS, value):
        return True
    if not re.fullmatch(_DIRECTORIES, value):
        return False
    # "/scratch/alice/9f8e": only the first two components must be words.
    _, *components = value.split("/", 3)
    return is_wordlike("/".join(components[:2]))


def is_wordlike(value: str) -> bool:
    """True if a value consists of words, numbers and separators, as names and versions
    do."""
    value = value[:LONGEST_JUDGED]
    pieces = re.split(_SEPARATORS, value)
    if not all(map(re.compile(_PIECE).fullmatch, pieces)):
        return False
    return not re.search(_CONSONANTS, value)


def is_identifier(value: str) -> bool:
    """True for a name of several components, such as a configuration id, a host or an
    image."""
    if not is_wordlike(value):
        return False
    components = re.split(_SEPARATORS, value.strip("-_"))
    return len(components) > 1


def is_random(value: str, shortest: int = SHORTEST_FOUND) -> bool:
    """True if a value looks randomly generated."""
    return (
        len(value) >= shortest
        and is_secret(value)
        and not is_wordlike(value)
        and " " not in value
    )


def is_line_of_key(line: str) -> bool:
    """True for a full line of base64, as in a private key whose first line may be
    missing."""
    is_base64 = re.fullmatch(r"\s*[A-Za-z0-9+/]{60,76}={0,2}\s*", line)
    # A hash, a long word or a path has the same characters.
    return bool(is_base64) and not re.fullmatch(_DIGEST, line.strip())


def is_placeholder(value: str) -> bool:
    """True for a placeholder such as `None`, `$NAME`, `<token>` or `***`."""
    return bool(re.fullmatch(_PLACEHOLDER, value))


@lru_cache(maxsize=1024)
def is_assigned_secret(name: str, value: str, *, loose: bool) -> bool:
    """True if the value that a text assigns to a name is a secret.

    `loose` means that the text may be prose, in which a word may follow a colon or a
    space.
    """
    kind, value = find_kind(name), value[:LONGEST_JUDGED]
    if kind is None or is_placeholder(value):
        return False
    if kind is Kind.PASSWORD:
        return _is_password(name, value, loose=loose)
    # A hash or a public key, such as `token_sha256` or `ssh_public_key`.
    if re.search(_NEVER, normalise(name)):
        return False
    if "://" in value or re.match(_CHECKSUM, value):
        return False
    if kind is Kind.SECRET:
        return is_random(value) or (not loose and _is_named_secret(name, value))
    return _is_key(name, value)


def _is_password(name: str, value: str, *, loose: bool) -> bool:
    """True if the value of a name that means a password is a secret.

    `loose` is True if the assignment may be a part of a sentence.
    """
    normal = normalise(name)
    # An attribute of a password, such as `password_file`.
    if re.search(_WEAK, normal) and not is_random(value):
        return False
    # `password_hash`, or a flag such as `no_password`.
    if re.search(_NEVER, normal) or re.search(r"(?:^|_)no_", normal):
        return False
    if is_path(value):
        return False
    if loose:
        return len(value) >= 6 and not re.fullmatch(_WORD, value)
    # A placeholder such as PASSWORD=PASSWORD.
    return not (name.isupper() and value == name)


def _is_named_secret(name: str, value: str) -> bool:
    """True if the value of a name of Kind.SECRET is a secret without looking random."""
    # Most generated secrets contain digits.
    has_digit = any(map(str.isdigit, value))
    if not is_secret(value) or not has_digit or " " in value:
        return False
    # A value of several words counts only if the name is in upper case, like a variable.
    return name.isupper() or not is_identifier(value)


def _is_key(name: str, value: str) -> bool:
    """True if the value of a name of Kind.KEY is a secret."""
    normal = normalise(name)
    if normal.endswith("key"):
        # Only a variable such as SERVICE_KEY: code has many other keys.
        is_variable = name.isupper() and "_" in name
        if not is_variable or re.search(_OF_PROGRAM, normal):
            return False
    return is_random(value, shortest=12)


# --- the values of secret names -------------------------------------------------------

# Keywords inside names, such as `TOKEN` in `HF_TOKEN_2`.
_TELLING = (
    r"(?i:token|secret|passw(?:or)?d|passwort|passphrase|pass|pwd|pw|cred(?:ential)?s?|auth|pat|cookie|session|sid|sig|csrf"
    r"|dsn|jwt|dockerconfigjson|(?:(?:api|access|secret|private|encryption|subscription|munge) )?key)"
)
_COLOUR = r"(?:\x1b\[[\d;]{0,20}m)?"
_OPENED = r"(?:[urbURB]{1,2}(?=[\"']))?(?P<quote>\\{0,6}(?:\"|'|&quot;|`))?"
# From the keyword of a name to the beginning of its value. The groups are one of `sign`
# (`token = abc`, `token: abc`), `comma` (`"token", "abc"`), `element` (`<token>abc`) and
# `space` (`token is abc`), or none (`token | abc`, `"name": "token", "value": "abc"`).
_ASSIGNED = (
    rf"(?P<keyword>{_TELLING})(?P<rest>[\w.-]{{0,40}}?)"
    rf"{_COLOUR}(?:(?P<closed>\\{{0,6}}(?:[\"'`]|&quot;))?[\])]?{_COLOUR}"
    r"(?:\s{0,16}(?P<sign>=>|->|[:?+]?={1,3}|:{1,2}|%3[Dd])\s{0,8}(?:[|>][+-]?\s{1,8})?(?:!!str\s)?"
    r"|[\\\"',;\s}>]{1,40}[\"']?(?i:value)\\{0,6}[\"']?\s{0,4}[=:]\s{0,4}|\s{0,40}[|│┃]\s{0,4}"
    r"|(?P<comma>\s{0,4},\s{0,4})|(?P<element>>)"
    r"|(?P<space>(?:[ \t]{1,40}(?:is|was|provided|to|set to)\b:?)?[ \t]{1,40}))"
    rf"[\[(]?{_COLOUR}{_OPENED})"
)
_QUOTED = r"(?:(?!QUOTE)(?:\\.|[^\n])){0,4000}"
_BARE = rf"[^\s\x1b…\"'`&<>|]{{0,{LONGEST_JUDGED}}}"
_LONG = r"[^\s\x1b…\"'`&<>|]{0,4000}"
_TO_SPACE = r"[^\s\x1b…]{0,4000}"
_NAME_BEFORE = r"[\w.$-]{0,64}"  # the beginning of a name, in reversed text
_CALL = r"[A-Za-z_]\w*(?:\.\w+)*[(\[][)\[]?"  # code: `token = os.environ["TOKEN"]`
_SIGNS = "=: ,|>%\t│┃"
_CLOSING = ".,;:)]}\\"


def find_assigned(text: str) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) indexes of values assigned to secret names, in any
    notation."""
    if not any(sign in text for sign in _SIGNS):
        return
    pattern, index = re.compile(_ASSIGNED), 0
    while match := pattern.search(text, index):
        index = match.end("keyword")
        span = _find_value(text, match)
        if span:
            yield span
            _, index = span


def _find_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Return the span of a secret value after a name that means a secret, or None.

    `match` is a match of _ASSIGNED. It begins inside the name: at `token` for
    `HF_TOKEN_2 = "abc"`. It ends where the value begins.
    """
    keyword_start, value_start = match.span()
    # The beginning of the name (`HF_`) is searched backwards from the keyword.
    reversed_text = text[max(0, keyword_start - 64) : keyword_start][::-1]
    prefix = _match(_NAME_BEFORE, reversed_text)[0][::-1]
    name_start = keyword_start - len(prefix)
    # "--token" and "$TOKEN" are the name of an option and of a variable.
    name = text[name_start : match.end("rest")].lstrip("-.$")
    if find_kind(name) is None or not _is_assignment(text, match, name_start):
        return None
    quote, sign = match["quote"], match["sign"]
    if quote:
        quoted_pattern = _QUOTED.replace("QUOTE", re.escape(quote))
        value = _match(quoted_pattern, text, value_start)[0]
    else:
        value = _match(_BARE, text, value_start)[0]
        if _is_code(value, match["keyword"]):
            return None
        value = _strip_end(value)
    value_end = value_start + len(value)
    # Without a sign, or after a colon in a sentence, a word may follow.
    loose = False
    if not quote and sign is None:
        loose = True
    elif not quote and sign.startswith(":"):
        loose = not _is_alone(text, keyword_start, value_end)
    if not value or not is_assigned_secret(name, value, loose=loose):
        return None
    if not quote and sign == "=" and _begins_line(text, name_start):
        # The format of `env`: neither a quote nor a comma ends the value.
        value_end = _match(_TO_SPACE, text, value_start).end()
    elif not quote and len(value) >= LONGEST_JUDGED:
        # _BARE truncated the value.
        value_end = _match(_LONG, text, value_start).end()
    return value_start, value_end


def _match(pattern: str, text: str, start: int = 0) -> re.Match[str]:
    """Match a pattern at an index. The pattern must match even an empty text."""
    match = re.compile(pattern).match(text, start)
    assert match is not None  # noqa: S101 (all these patterns match an empty text)
    return match


def _is_code(value: str, keyword: str) -> bool:
    """True for a call or subscript such as `os.environ[...`.

    `keyword` is the part of the name that marks the value as a secret. For a password
    the whole value must be a call, because a password may contain a bracket.
    """
    call = re.compile(_CALL)
    if keyword.lower().startswith("pass"):
        return call.fullmatch(value) is not None
    return call.match(value) is not None


def _is_assignment(text: str, match: re.Match[str], name_start: int) -> bool:
    """True if the matched value is assigned to the matched name.

    For example False for `arn:aws:secretsmanager:1:secret:name`. `name_start` is the
    index of the whole name; the match may begin inside the name.
    """
    before_match = text[match.start() - 1 : match.start()]
    last_character = text[match.end() - 1]
    # A component between two colons, without a space after the second one.
    if match["sign"] == ":" and last_character == ":" and before_match == ":":
        return False
    # `"token", "abc"` is a pair, but `token, abc` is a list in a sentence.
    if match["comma"] is not None:
        return match["closed"] is not None
    # `<token>abc</token>`
    if match["element"] is not None:
        return text[name_start - 1 : name_start] == "<"
    return True


def _begins_line(text: str, start: int) -> bool:
    """True if only `export`, `declare -x` or the `+` of a trace precede on the line."""
    _, _, before = text[max(0, start - 20) : start].rpartition("\n")
    return before.lstrip("+ ") in ("", "export ", "declare -x ")


def _is_alone(text: str, start: int, end: int) -> bool:
    """True if the line contains only this name and its value, as in YAML."""
    _, _, before = text[max(0, start - 80) : start].rpartition("\n")
    after, _, _ = text[end : end + 80].partition("\n")
    return " " not in before.strip(" -\t") and not after.strip()


def _strip_end(value: str) -> str:
    """Strip closing brackets, punctuation and following arguments from the end of a
    value."""
    # "abc,user=alice" is "abc".
    if "," in value:
        value, *_ = re.split(r",(?=[\w.-]+=)", value, maxsplit=1)
    if value.startswith(";"):  # nothing would remain
        return value
    # "abc;user" and "abc\\nuser" are "abc".
    value, *_ = re.split(r";|\\+[nrt]", value, maxsplit=1)
    return value.rstrip(_CLOSING)


# --- rules ----------------------------------------------------------------------------

MASK = "***"

Finder = Callable[[str], Iterable[tuple[int, int]]]
"""Yields the (start, end) indexes of the secrets in a text, in order."""

Rules = tuple[tuple[tuple[str, ...], Finder], ...]
"""Pairs of lower-case keywords and a finder.

Every match of the finder contains one of the keywords.
"""

# Results for texts up to this length are cached, since texts repeat in a session.
SHORT = 1000

# Without a limit, the time would grow with the square of the length. Tokens used as
# database passwords have 1,000 characters.
_REST = r"\S{0,2000}"
_NAME = r"[^/?#\s:,'\"<>]{0,200}"
# There is no password in `github://owner:repository@commit/path`, in URLs of buckets, or
# in a host with a port.
_USER = rf"(?<!\bgithub)(?<!\bgs)(?<!\bs3)://{_NAME}"
_PORT = r"\d{2,5}[/?#]"
_OF_DATABASE = rf"\b(?:postgres\w*|mysql|maria\w*|mssql|oracle|redis\w*|mongodb|amqps?)(?:\+\w+)*://{_NAME}"
# Protocols of URLs that often contain a password.
_SCHEME = r"(?:https?|ftps?|ssh|postgres\w*|mysql|mariadb|mssql|oracle|redis|mongodb|amqps?)(?:\+\w+)*"

_BEFORE_VALUE = r"\s{0,3}[:=,]\s{0,3}[\\\[(]{0,2}[\"']?"


def find_pattern(pattern: str, accept: Callable[[str], bool] | None = None) -> Finder:
    """Return a finder for the last group of a pattern, or for the whole match without
    groups."""
    return partial(_find_pattern, pattern, accept)


def _find_pattern(
    pattern: str, accept: Callable[[str], bool] | None, text: str
) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) indexes of each secret that `pattern` matches.

    The secret is the last matched group, or the whole match of a pattern without
    groups. Secrets that `accept` refuses are left out.
    """
    for match in re.finditer(pattern, text):
        group = match.lastindex or 0
        if match[group] and (accept is None or accept(match[group])):
            yield match.span(group)


# --- the table ------------------------------------------------------------------------


def _is_http_basic_credential(value: str) -> bool:
    """True for base64 of `user:password`."""
    try:
        text = b64decode(value, validate=True).decode()
    except ValueError:
        return False
    return ":" in text and text.isprintable()


def _is_credential(value: str) -> bool:
    """True for base64 of `user:password`, and for random characters."""
    return _is_http_basic_credential(value) or is_random(value)


def _may_be_password_in_request(value: str) -> bool:
    """True unless the value in a URL or request is a placeholder or a number."""
    return not is_placeholder(value) and not value.isdigit()


def _may_be_password_in_command(value: str) -> bool:
    """True unless the value in a command is a placeholder, number, word or option."""
    return (
        _may_be_password_in_request(value)
        and not value.isalpha()
        and not value.startswith("-")
    )


def _has_random_word(value: str) -> bool:
    """True if a value of a cookie looks randomly generated."""
    return any(is_random(word) for word in re.split(r"[=;:,\s]+", value[:2000]))


def _is_no_path(value: str) -> bool:
    return not is_path(value)


def _is_long_token(value: str) -> bool:
    return is_random(value, 16)


def _is_token_after_prefix(value: str) -> bool:
    """True if the text after the prefix of a token has a digit and is no name."""
    return any(map(str.isdigit, value)) and not is_wordlike(value)


_PASSWORDS_OF_URLS = (
    # `https://user:password@host`; the password may contain a slash or an @.
    find_pattern(rf"{_USER}:(?!:|{_PORT})({_REST})@", _is_no_path),
    # A password that begins like a port. A database URL seldom has an @ after its port,
    # and in other URLs a host must follow the @ (unlike in `host:8080/path@v2`).
    find_pattern(rf"{_OF_DATABASE}:(?!:)({_PORT}{_REST})@"),
    find_pattern(
        rf"://(?!localhost:)[^/?#\s:,.'\"<>\[]{{1,200}}:({_PORT}{_REST}(?<!/))@(?=[A-Za-z][\w-]*(?:\.[A-Za-z]|:\d+\b|/))"
    ),
    # One slash is missing: `https:/user:password@host`.
    find_pattern(rf"(?<![\w/]){_SCHEME}:/[^/?#\s:]{{0,200}}:([^\s/]{{0,2000}})@"),
    # Both slashes are missing: `postgres:user:password@host`.
    find_pattern(rf"\bpostgres\w*(?:\+\w+)?:[^/?#\s:]{{0,200}}:({_REST})@"),
    # A token in place of the user: `https://TOKEN@host` or `https://TOKEN:x@host`.
    find_pattern(
        r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://([^\s/:@'\"<>?#]{16,2000})(?::[^\s/@]{0,200})?@",
        _is_long_token,
    ),
)

_CUT = r"(?=…|\.\.\.)"  # the ellipsis after a truncated text
_MORE = r"[\w=~-]*(?:\.\w[\w=~-]*)*"  # the end of a token that is longer than its rule
_START = r"(?<![A-Za-z0-9])"

TOKENS = (
    (
        ("hf_", "api_org_"),
        rf"{_START}(?:hf|api_org)_(?:[A-Za-z0-9]{{30,}}|[A-Za-z0-9]{{8,}}{_CUT})",
    ),
    (
        ("ghp_", "gho_", "ghr_", "ghs_", "ghu_"),
        rf"{_START}gh[oprsu]_(?:[A-Za-z0-9]{{36,}}|[A-Za-z0-9]{{8,}}{_CUT})",
    ),
    (("github_pat_",), rf"{_START}github_pat_(?:\w{{22,}}|\w{{8,}}{_CUT})"),
    (
        ("gl",),
        rf"{_START}gl(?:[a-z]{{1,6}}at|rt|rtr|cbt|dt|ft|ptt|imt|agent|oas|ffct|wt)-([\w.-]{{20,}}|[\w.-]{{8,}}{_CUT})",
    ),
    (("nvapi-",), rf"{_START}nvapi-(?:[\w-]{{40,}}|[\w-]{{8,}}{_CUT})"),
    (
        ("xox", "xapp-", "xwfp-"),
        rf"{_START}(?:xox[a-z](?:\.xox[a-z])?|xapp|xwfp)-([\w-]{{20,}}|[\w-]{{8,}}{_CUT})",
    ),
    (
        ("hooks.slack",),
        r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/([\w+/-]{20,})",
    ),
    (("webhooks/",), r"discord(?:app)?\.com/api/webhooks/\d+/([\w-]{20,})"),
    ((":aa",), rf"(?:{_START}|\bbot)\d{{8,10}}:AA[\w-]{{32,}}"),
    (("akia", "asia"), rf"{_START}A[KS]IA[0-9A-Z]{{16}}(?![A-Za-z0-9])"),
    (tuple(f"sk{digit}" for digit in "0123456789abcdef"), rf"{_START}SK[0-9a-f]{{32}}"),
    (("bedrock-api-key-",), rf"{_START}bedrock-api-key-[\w+/-]{{20,}}={{0,2}}"),
    (("q~",), r"(?<![\w.~-])[\w~.]{3}\dQ~[\w~.-]{31,34}"),
    (("sgp_",), rf"{_START}sgp_(?:[a-z0-9]+_)?[a-f0-9]{{40}}"),
    (("eyj",), r"(?<![A-Za-z0-9])eyJ[\w-]{10,2000}\.eyJ[\w-]{10,}(?:\.[\w-]*)*"),
    (("eyjhcglf",), r"(?<![A-Za-z0-9])eyJhcGlf[\w+/-]{30,}={0,2}"),
    (("aiza",), rf"{_START}AIza[\w-]{{30,}}"),
    (("ya29.",), r"(?<![A-Za-z0-9])ya29\.[\w.-]{20,}"),
    (("gocspx-",), rf"{_START}GOCSPX-[\w-]{{20,}}"),
    (("1//",), r"(?<![\w/:.])1//0[\w-]{30,}"),
    (("pypi-",), rf"{_START}pypi-[\w-]{{50,}}"),
    (("npm_",), rf"{_START}npm_[A-Za-z0-9]{{30,}}"),
    (("dckr_",), rf"{_START}dckr_(?:pat|oat)_[\w-]{{20,}}"),
    (("hvs.", "hvb.", "hvr."), rf"{_START}hv[sbr]\.[\w-]{{20,}}"),
    (("dapi", "dkea", "dose"), rf"{_START}(?:dapi|dkea|dose)[a-f0-9]{{32}}"),
    (
        (
            "gsk_",
            "xai-",
            "pcsk_",
            "rpa_",
            "tvly-",
            "lsv2_",
            "r8_",
            "tskey-",
            "wandb_v",
            "k-lf-",
            "fw_",
            "esecret_",
        ),
        rf"{_START}(?:gsk_|xai-|pcsk_|rpa_|tvly-|lsv2_(?:pt|sk)_|r8_|tskey-|wandb_v\d+_|[sp]k-lf-|fw_|esecret_)([\w-]{{20,}})",
    ),
    (("sk-",), rf"{_START}sk-(?:ant|proj|svcacct|admin|or|live|test)-([\w-]{{20,}})"),
    (("sk-",), rf"{_START}sk-([A-Za-z0-9]{{32,}}|[A-Za-z0-9]{{20}}T3BlbkFJ[\w-]*)"),
)
"""Token formats that the gitleaks collection lacks or defines too narrowly.

The text in a group, if any, must look random.
"""

_BLOCK = (
    r"-----BEGIN[ A-Z0-9_-]{0,60}PRIVATE KEY(?: BLOCK)?-----"
    r"((?:[^-]|-(?!----)){0,20000}(?=-----END)|(?:(?:\s|\\{1,4}[nr])*[A-Za-z0-9+/=]{16,})+)"
)

RULES: Rules = (
    (("private key",), find_pattern(_BLOCK)),
    *((("@",), finder) for finder in _PASSWORDS_OF_URLS),
    (
        ("login(",),
        find_pattern(
            r"\blogin\((?:[^()\n]{0,200}?\bkey=|[\"'][^\"'\n]{1,200}[\"'], ?)[\"']([^\"'\n]{1,2000})",
            is_random,
        ),
    ),
    (("/t/",), find_pattern(r"/t/([a-z]{2}-[0-9a-f]{8}-[0-9a-f-]{4,40})(?=/)")),
    (
        ("?", "&"),
        find_pattern(
            r"[?&;](?i:(?:[^=&?;\s]{0,60}(?:pass(?:word|wd|phrase)?|token|secret|signature|credentials?|api_?key|access_?key)"
            r"|sig|key|auth)=)([^&\s\"'<>#]+)",
            _may_be_password_in_request,
        ),
    ),
    (
        ("bearer",),
        find_pattern(r"(?i:\bbearer[\s:]+)([\w.~+/=-]{16,})", _is_token_after_prefix),
    ),
    (
        ("authorization",),
        find_pattern(
            rf"(?i:authorization\\{{0,4}}[\"']?{_BEFORE_VALUE}(?:[a-z0-9-]{{3,20}}\s+(?:token=)?)?)([\w.~+/=:-]{{6,2000}})",
            _is_credential,
        ),
    ),
    (
        ("basic",),
        find_pattern(
            r"(?i:\bbasic\s+)([A-Za-z0-9+/]{6,2000}={0,2})", _is_http_basic_credential
        ),
    ),
    (
        ("cookie",),
        find_pattern(
            r"(?i:\bcookie\\{0,4}[\"']?\s{0,3}:\s{0,3}[\"']?)([\w.-]{1,100}=[^\r\n\"']{8,2000})",
            _has_random_word,
        ),
    ),
    (
        ("password",),
        find_pattern(
            r"(?:\bmachine\s{1,8}\S{1,200}|\bdefault|\blogin\s{1,8}\S{1,200})(?:\s{1,8}(?:login|account)\s{1,8}\S{1,200}){0,2}"
            r"\s{1,8}password\s{1,8}(\S{1,2000})",
            _may_be_password_in_command,
        ),
    ),
    (
        ("machine",),
        find_pattern(
            r"\bmachine\s{1,8}\S{1,200}\s{1,8}(?:login\s{1,8}\S{1,200}\s{1,8})?password\s{1,8}(\S{1,2000})"
        ),
    ),
    (
        (":543", ":6432:", ":*:"),
        find_pattern(
            r"(?m)^[\w.*-]{1,200}:(?:543\d|6432|\*):[\w*-]{1,100}:[\w*.@-]{1,100}:((?:\\.|[^\s:]){1,2000})$"
        ),
    ),
    (
        ("curl",),
        find_pattern(
            r"(?<!\S)(?:-[A-Za-z]{0,5}[uU]|--(?:proxy-)?user)[ =]?[\"']?[^\s:\"']{1,200}:([^\s\"'`]{1,2000})",
            _may_be_password_in_request,
        ),
    ),
    (("sshpass",), find_pattern(r"\bsshpass\s{1,4}-p[ =]?[\"']?([^\s\"'`]{1,2000})")),
    (("pass:",), find_pattern(r"(?<!\S)-pass(?:in|out|word)?[ =]pass:(\S{1,2000})")),
    (
        (
            "mysql",
            "redis-cli",
            "docker login",
            "az login",
            "podman login",
            "registry login",
            "twine",
        ),
        find_pattern(
            r"\b(?:mysql\w*|redis-cli|twine|(?:docker|podman|az|registry) login)\b(?:\s(?!-[pa]\s?)\S{1,200}){0,20}"
            r"\s-[pa] ?[\"']?([^\s\"'-][^\s\"']{0,2000})",
            _may_be_password_in_command,
        ),
    ),
    (
        ("wandb",),
        find_pattern(
            r"\bwandb\s{1,4}login\s(?:\s{0,4}--\S{1,100}\s){0,8}\s{0,4}([A-Za-z0-9_-]{32,})",
            is_secret,
        ),
    ),
    (HINTS, find_assigned),
)


def hide_tokens(text: str) -> str:
    """Replace every secret that a rule finds in a text by `***`.

    Texts of fewer than eight characters are not searched.
    """
    if len(text) < 8:
        return text
    return _hide_remembered(text) if len(text) <= SHORT else _hide(text)


def hide_password_of(url: str) -> str:
    """Hide the password in a text that is a single URL.

    The password may contain spaces.
    """
    # Only one of the two groups, each a URL up to the colon before the password, matches.
    pattern = rf"({_USER}):(?!:|{_PORT}).*@|({_OF_DATABASE}):(?!:).*@"
    masked = re.sub(pattern, rf"\1\2:{MASK}@", url, flags=re.DOTALL)
    return hide_tokens(masked)


def _hide(text: str) -> str:
    """Apply the rules whose keywords occur in a text, and return the masked text."""
    rules, automaton, rules_by_keyword = _load_rules()
    lower = _make_searchable(text)
    occurrences = automaton.find_matches_as_indexes(lower, overlapping=True)
    rule_numbers = {
        number for keyword, _, _ in occurrences for number in rules_by_keyword[keyword]
    }
    for number in sorted(rule_numbers):
        _, find_spans = rules[number]
        text = _mask(text, find_spans(text))
    return text


def _make_searchable(text: str) -> bytes:
    """Return the bytes of a text in which keywords are searched."""
    return text.lower().encode("utf-8", "surrogatepass")


def select_suspects(texts: Sequence[str]) -> set[str]:
    """Select the texts that contain a keyword of a rule; no others have a secret.

    Searches all texts at once, which takes a tenth of the time of as many searches.
    """
    _, automaton, _ = _load_rules()
    searchable = list(map(_make_searchable, texts))
    # Text `i` begins at `ends[i - 1]`; a line break separates it from the next one.
    ends = list(accumulate(len(text) + 1 for text in searchable))
    occurrences = automaton.find_matches_as_indexes(
        b"\n".join(searchable), overlapping=True
    )
    return {texts[bisect_right(ends, start)] for _, start, _ in occurrences}


_hide_remembered = lru_cache(maxsize=4096)(_hide)


@cache
def _load_rules() -> tuple[Rules, BytesAhoCorasick, list[list[int]]]:
    """Return all rules, the search for their keywords, and the rules of each keyword.

    The last list contains rule indexes, by the number of the keyword in the search.
    """
    from ahocorasick_rs import BytesAhoCorasick

    rules = (*RULES, *list_token_rules())
    rules_by_keyword: dict[str, list[int]] = {}
    for number, (keywords, _) in enumerate(rules):
        for keyword in keywords:
            rules_by_keyword.setdefault(keyword, []).append(number)
    # The search numbers the keywords in this order.
    automaton = BytesAhoCorasick([keyword.encode() for keyword in rules_by_keyword])
    return rules, automaton, list(rules_by_keyword.values())


def list_token_rules() -> Rules:
    """Return the rules for token formats: TOKENS, then the gitleaks collection."""
    from pytest_llmbench.core.token_rules import TOKEN_RULES

    own_rules = [
        (keywords, partial(_find_token, f"{pattern}{_MORE}"))
        for keywords, pattern in TOKENS
    ]
    collected = [
        (keywords, find_pattern(f"{pattern}{_MORE}"))
        for keywords, pattern in TOKEN_RULES
    ]
    return *own_rules, *collected


def _find_token(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of the matches whose group, if any, looks random."""
    for match in re.finditer(pattern, text):
        if not match.lastindex or _is_token_after_prefix(match[1]):
            yield match.span()


def _mask(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace the (start, end) spans of a text by `***`, once per line of a span."""
    pieces, previous_end = [], 0
    for start, end in spans:
        line_count = text.count("\n", start, end) + 1
        pieces += [text[previous_end:start], "\n".join([MASK] * line_count)]
        previous_end = end
    return "".join([*pieces, text[previous_end:]]) if pieces else text
