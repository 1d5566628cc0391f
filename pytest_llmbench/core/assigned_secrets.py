"""Find the values of secret names in a text: `NAME=value`, JSON, YAML, arguments,
headers, tables."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_llmbench.core.secret_values import (
    LONGEST_JUDGED,
    find_kind,
    is_assigned_secret,
)

_TELLING = (
    r"(?i:token|secret|passw(?:or)?d|passwort|passphrase|pass|pwd|pw|cred(?:ential)?s?|auth|pat|cookie|session|sid|sig|csrf"
    r"|dsn|jwt|dockerconfigjson|(?:(?:api|access|secret|private|encryption|subscription|munge) )?key)"
)
_COLOUR = r"(?:\x1b\[[\d;]{0,20}m)?"
_OPENED = r"(?:[urbURB]{1,2}(?=[\"']))?(?P<quote>\\{0,6}(?:\"|'|&quot;|`))?"
_ASSIGNED = (
    rf"(?P<telling>{_TELLING})(?P<rest>[\w.-]{{0,40}}?)"
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
_NAME_BEFORE = r"[\w.$-]{0,64}"  # of a reversed text
_CALL = r"[A-Za-z_]\w*(?:\.\w+)*[(\[][)\[]?"  # code: `token = os.environ["TOKEN"]`
_SIGNS = "=: ,|>%\t│┃"
_CLOSING = ".,;:)]}\\"


def find_assigned(text: str) -> Iterator[tuple[int, int]]:
    """Yield the (start, end) indexes of the values of secret names in a text, in any
    notation."""
    if not any(sign in text for sign in _SIGNS):
        return
    pattern, index = re.compile(_ASSIGNED), 0
    while match := pattern.search(text, index):
        index = match.end("telling")
        span = _find_value(text, match)
        if span:
            yield span
            index = span[1]


def _find_value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    start = match.start()
    before = _match(_NAME_BEFORE, text[max(0, start - 64) : start][::-1])[0][::-1]
    name = (before + text[start : match.end("rest")]).lstrip("-.$")
    if find_kind(name) is None or not _fits(text, match, before):
        return None
    quote, first = match["quote"], match.end()
    value = _match(
        _QUOTED.replace("QUOTE", re.escape(quote)) if quote else _BARE, text, first
    )[0]
    if not quote and _is_code(value, match["telling"]):
        return None
    value = value if quote else _strip(value)
    loose = not quote and (
        match["sign"] is None
        or (match["sign"][0] == ":" and not _is_alone(text, start, first + len(value)))
    )
    if not value or not is_assigned_secret(name, value, loose=loose):
        return None
    if not quote and match["sign"] == "=" and _begins_line(text, start - len(before)):
        return first, _match(
            _TO_SPACE, text, first
        ).end()  # as `env` prints it: no quote, no comma ends it
    is_cut = not quote and len(value) >= LONGEST_JUDGED
    return first, _match(_LONG, text, first).end() if is_cut else first + len(value)


def _match(pattern: str, text: str, start: int = 0) -> re.Match[str]:
    match = re.compile(pattern).match(text, start)
    assert match is not None  # noqa: S101 (each of these patterns matches an empty text)
    return match


def _is_code(value: str, telling: str) -> bool:
    """True for a call or subscript such as `os.environ[...`; a password may contain a
    bracket."""
    call = re.compile(_CALL)
    return bool(
        call.fullmatch(value)
        if telling.lower().startswith("pass")
        else call.match(value)
    )


def _fits(text: str, match: re.Match[str], before: str) -> bool:
    """True if the value belongs to the name; false in
    `arn:aws:secretsmanager:1:secret:name`."""
    if (
        match["sign"] == ":"
        and text[match.end() - 1] == ":"
        and text[match.start() - 1 : match.start()] == ":"
    ):
        return False
    if match["comma"] is not None:
        return match["closed"] is not None
    if match["element"] is not None:
        return (
            text[match.start() - len(before) - 1 : match.start() - len(before)] == "<"
        )
    return True


def _begins_line(text: str, start: int) -> bool:
    line = text[max(0, start - 20) : start].rpartition("\n")[2]
    return line.lstrip("+ ") in ("", "export ", "declare -x ")


def _is_alone(text: str, start: int, end: int) -> bool:
    """True if the line contains only this name and its value, as in YAML and
    configuration files."""
    line = text[max(0, start - 80) : start].rpartition("\n")[2]
    return (
        " " not in line.strip(" -\t")
        and not text[end : end + 80].partition("\n")[0].strip()
    )


def _strip(value: str) -> str:
    """Strip closing brackets, punctuation and the following arguments from the end of a
    value."""
    if "," in value:
        value = re.split(r",(?=[\w.-]+=)", value, maxsplit=1)[0]
    return (
        re.split(r";|\\+[nrt]", value, maxsplit=1)[0].rstrip(_CLOSING)
        if not value.startswith(";")
        else value
    )
