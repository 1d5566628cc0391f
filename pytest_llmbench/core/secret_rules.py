"""Find secrets in any text by their notation: assignments, URLs, headers, token
formats.

RULES is the one table: each rule has keywords in lower case and a finder. One search
looks for the keywords of all rules, and a pattern is compiled when one of its keywords
first occurs. Repetitions in patterns are bounded, so that the time grows linearly with
the length of a text.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from pytest_llmbench.core.assigned_secrets import find_assigned
from pytest_llmbench.core.secret_values import (
    HINTS,
    is_path,
    is_placeholder,
    is_random,
    is_secret,
    is_wordlike,
)

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

MASK = "***"

Finder = Callable[[str], Iterable[tuple[int, int]]]
"""Yields the (start, end) indexes of the secrets in a text, in order."""

Rules = tuple[tuple[tuple[str, ...], Finder], ...]
"""Pairs of keywords in lower case and a finder. Every match of the finder contains one
of the keywords."""

# characters: texts up to this length are remembered, as those of a session repeat
# themselves
SHORT = 1000

# Of what is longer, the time would grow with its square; tokens that databases take as
# passwords have 1,000 characters.
_REST = r"\S{0,2000}"
_NAME = r"[^/?#\s:,'\"<>]{0,200}"
# `github://owner:repository@commit/path` has no password, nor have buckets, nor a host
# with its port.
_USER = rf"(?<!\bgithub)(?<!\bgs)(?<!\bs3)://{_NAME}"
_PORT = r"\d{2,5}[/?#]"
_OF_DATABASE = rf"\b(?:postgres\w*|mysql|maria\w*|mssql|oracle|redis\w*|mongodb|amqps?)(?:\+\w+)*://{_NAME}"
_SCHEME = r"(?:https?|ftps?|ssh|postgres\w*|mysql|mariadb|mssql|oracle|redis|mongodb|amqps?)(?:\+\w+)*"

_BEFORE_VALUE = r"\s{0,3}[:=,]\s{0,3}[\\\[(]{0,2}[\"']?"


def find_pattern(pattern: str, accept: Callable[[str], bool] | None = None) -> Finder:
    """Return a finder for the last group of a pattern, or for whole matches if it has
    no group."""
    return partial(_find_pattern, pattern, accept)


def _find_pattern(
    pattern: str, accept: Callable[[str], bool] | None, text: str
) -> Iterator[tuple[int, int]]:
    for match in re.finditer(pattern, text):
        group = match.lastindex or 0
        if match[group] and (accept is None or accept(match[group])):
            yield match.span(group)


# --- the table ------------------------------------------------------------------------


def _is_basic(value: str) -> bool:
    """True for base64 of `user:password`."""
    try:
        text = b64decode(value, validate=True).decode()
    except ValueError:
        return False
    return ":" in text and text.isprintable()


def _is_credential(value: str) -> bool:
    return _is_basic(value) or is_random(value)


def _is_sent(value: str) -> bool:
    return not is_placeholder(value) and not value.isdigit()


def _is_typed(value: str) -> bool:
    """True for a password in a command or a file, where a word may follow."""
    return (
        not is_placeholder(value)
        and not value.isalpha()
        and not value.startswith("-")
        and not value.isdigit()
    )


def _has_token(value: str) -> bool:
    return any(is_random(word) for word in re.split(r"[=;:,\s]+", value[:2000]))


def _is_no_path(value: str) -> bool:
    return not is_path(value)


def _is_long_token(value: str) -> bool:
    return is_random(value, 16)


def _is_token_after_prefix(value: str) -> bool:
    return any(map(str.isdigit, value)) and not is_wordlike(value)


_PASSWORDS_OF_URLS = (
    find_pattern(
        rf"{_USER}:(?!:|{_PORT})({_REST})@", _is_no_path
    ),  # also one with a slash or an @ in it
    # One that begins as a port does: the host of a database seldom has an @ behind its
    # port, and behind the @ of another URL stands a host (`host:8080/path@v2` has
    # none).
    find_pattern(rf"{_OF_DATABASE}:(?!:)({_PORT}{_REST})@"),
    find_pattern(
        rf"://(?!localhost:)[^/?#\s:,.'\"<>\[]{{1,200}}:({_PORT}{_REST}(?<!/))@(?=[A-Za-z][\w-]*(?:\.[A-Za-z]|:\d+\b|/))"
    ),
    find_pattern(
        rf"(?<![\w/]){_SCHEME}:/[^/?#\s:]{{0,200}}:([^\s/]{{0,2000}})@"
    ),  # a slash is missing
    find_pattern(rf"\bpostgres\w*(?:\+\w+)?:[^/?#\s:]{{0,200}}:({_REST})@"),  # both are
    find_pattern(
        r"(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://([^\s/:@'\"<>?#]{16,2000})(?::[^\s/@]{0,200})?@",
        _is_long_token,
    ),
)

_CUT = r"(?=…|\.\.\.)"  # what stands behind a text that was cut
_MORE = r"[\w=~-]*(?:\.\w[\w=~-]*)*"  # a longer token than the collection knows
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
"""Token formats that are missing from the collection, or narrower there. A group, if
any, has to look random."""

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
            _is_sent,
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
        find_pattern(r"(?i:\bbasic\s+)([A-Za-z0-9+/]{6,2000}={0,2})", _is_basic),
    ),
    (
        ("cookie",),
        find_pattern(
            r"(?i:\bcookie\\{0,4}[\"']?\s{0,3}:\s{0,3}[\"']?)([\w.-]{1,100}=[^\r\n\"']{8,2000})",
            _has_token,
        ),
    ),
    (
        ("password",),
        find_pattern(
            r"(?:\bmachine\s{1,8}\S{1,200}|\bdefault|\blogin\s{1,8}\S{1,200})(?:\s{1,8}(?:login|account)\s{1,8}\S{1,200}){0,2}"
            r"\s{1,8}password\s{1,8}(\S{1,2000})",
            _is_typed,
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
            _is_sent,
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
            _is_typed,
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
    """Replace every secret that a rule finds in a text by `***`."""
    if len(text) < 8:
        return text
    return _hide_remembered(text) if len(text) <= SHORT else _hide(text)


def hide_password_of(url: str) -> str:
    """Return a text that is one URL without its password, which may also have spaces in
    it."""
    pattern = rf"({_USER}):(?!:|{_PORT}).*@|({_OF_DATABASE}):(?!:).*@"
    return hide_tokens(re.sub(pattern, rf"\1\2:{MASK}@", url, flags=re.DOTALL))


def _hide(text: str) -> str:
    rules, automaton, owners = _load_rules()
    occurring = automaton.find_matches_as_indexes(
        text.lower().encode("utf-8", "surrogatepass"), overlapping=True
    )
    for number in sorted(
        {number for keyword, _, _ in occurring for number in owners[keyword]}
    ):
        text = _mask(text, rules[number][1](text))
    return text


_hide_remembered = lru_cache(maxsize=4096)(_hide)


@cache
def _load_rules() -> tuple[Rules, BytesAhoCorasick, list[list[int]]]:
    """Return all rules, the search for their keywords, and the numbers of the rules of
    each keyword."""
    from ahocorasick_rs import BytesAhoCorasick

    rules = (*RULES, *list_token_rules())
    owners: dict[str, list[int]] = {}
    for number, (keywords, _) in enumerate(rules):
        for keyword in keywords:
            owners.setdefault(keyword, []).append(number)
    return (
        rules,
        BytesAhoCorasick([keyword.encode() for keyword in owners]),
        list(owners.values()),
    )


def list_token_rules() -> Rules:
    """Return the rules for token formats: ours, then the collection's."""
    from pytest_llmbench.core.token_rules import TOKEN_RULES

    ours = [(keywords, partial(_find_token, pattern)) for keywords, pattern in TOKENS]
    return *ours, *(
        (keywords, find_pattern(f"{pattern}{_MORE}"))
        for keywords, pattern in TOKEN_RULES
    )


def _find_token(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    for match in re.finditer(pattern, text):
        if not match.lastindex or _is_token_after_prefix(match[1]):
            yield match.span()


def _mask(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Replace these (start, end) spans of a text by `***`, once for each line of a
    span."""
    pieces, end = [], 0
    for start, stop in spans:
        pieces += [
            text[end:start],
            MASK + "".join("\n" + MASK for _ in range(text.count("\n", start, stop))),
        ]
        end = stop
    return "".join([*pieces, text[end:]]) if pieces else text
