"""The notations in which frameworks print settings.

`name ..... 8`, `name: 8`, `name=8`, `"name": 8`, `model.name=8`, `cfg/name : 8`,
`--name 8`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Literal, NamedTuple

from pytest_llmbench.core.log_records import StatedField
from pytest_llmbench.core.patterns import compile_on_use

# Values that turn a feature off, in any version of a framework.
OFF = frozenset(("none", "null", "false", "0", "off", "no"))

CONSTANTS = ("none", "true", "false")

# Beginning of a value that is source code.
CODE = compile_on_use(r"(?:self|args|cfg|config|kwargs|params|model_args)\.")

Form = Literal["number", "word", "any", "text"]
"""The form of a value.

A "number" may also be None, True or False. A "text" is any text without blanks.
"""


class Setting(NamedTuple):
    """A setting and its names. A value includes the name: `moe_router_topk: 8`."""

    field: StatedField
    names: tuple[str, ...]
    form: Form = "number"
    optional: bool = False  # None, False and 0 turn it off and are equivalent
    before: bytes = b""  # a pattern that must match the line before the name


compile_pattern = cache(re.compile)
"""Compile a pattern on its first use.

Most logs need only a few patterns.
"""

# " ..... ", ": ", "=", or "\": " after the name
_SEPARATOR = rb"['\"]?(?: {0,2}\.{3,60} ?| \.{1,2} | {2}|[ \t]{0,20}[:=] {0,3})['\"]?"
_AFTER_OPTION = rb"[ =]['\"]?"
# "8", "1e-05", "AttnBackend.auto", "(1, 2)", "['lora']"
_ANY = (
    rb"(-?\d{1,12}(?:\.\d{1,9})?(?:[eE][+-]?\d{1,3})?"
    rb"|[A-Za-z_]\w{0,60}(?:[.-]\w{1,60}){0,4}"
    rb"|\((?:-?\d{1,9}, ?)+-?\d{0,9}\)|\[[\w'\", -]{0,280}\])"
    rb"(?=['\",;)\]}\s\x1b|]|\.{3}|\Z)"
)
_TEXT = rb"(\[[\w'\", -]{0,280}\]|[^\s'\",;}\x1b]{1,200})"
_VALUES = {
    (separator, is_text): separator + (_TEXT if is_text else _ANY)
    for separator in (_SEPARATOR, _AFTER_OPTION)
    for is_text in (False, True)
}

# Characters that continue a name.
_PARTS_OF_NAME = frozenset(
    bytes((code,)) for code in range(256) if re.match(rb"[\w.$/-]", bytes((code,)))
)
# The text before the name: " --" or " --model."
_OPTION = compile_on_use(rb"(?:\A|[\s'\"])--(?:[a-z_]\w{0,40}\.){0,6}\Z")
# " model." or "cfg/" before the name
_SECTIONS = compile_on_use(
    rb"(?:\A|[\s'\"\[,(])"
    rb"(?:\+{0,2}(?!self\.)(?:[a-z_]\w{0,40}\.){1,6}|\w{1,20}/)\Z"
)


def read_settings(
    settings: Iterable[Setting], head: bytes, name: bytes, tail: bytes
) -> Iterator[tuple[StatedField, str]]:
    """Yield the fields and values of settings with this name in a line.

    `head` is the line before the name, `tail` the line after it.
    """
    separator = _find_separator(head)
    if not separator:
        return
    for setting in settings:
        pattern = _VALUES[separator, setting.form == "text"]
        match = compile_pattern(pattern).match(tail)
        if match is None:
            continue
        if setting.before and not compile_pattern(setting.before).search(head):
            continue
        text = match[1].decode("ascii", "replace")
        value = _read_value(setting, name.decode(), text)
        if value:
            yield setting.field, value


def _find_separator(head: bytes) -> bytes:
    """Return the pattern of the text between a name and its value.

    `head` is the line before the name. An option (`--model.name`) has another separator
    than a setting (`cfg.name: `). Empty if the name is a part of a longer word.
    """
    if head[-1:] not in _PARTS_OF_NAME or _SECTIONS.search(head):
        return _SEPARATOR
    return _AFTER_OPTION if _OPTION.search(head) else b""


def _read_value(setting: Setting, name: str, text: str) -> str:
    """Return `name: value` in the spelling used for comparisons.

    Returns "" if the value is impossible.
    """
    if CODE.match(text):
        return ""
    is_plain_text = setting.form == "text" and text[0] != "["
    value = text.lower() if is_plain_text else _normalise_value(text)
    is_word = value[0].isalpha() or value[0] == "_"
    if setting.form == "number" and is_word and value not in CONSTANTS:
        return ""
    if setting.form == "word" and not is_word:
        return ""
    if setting.optional and value in OFF:
        value = "none"
    return f"{name}: {value}"


def _normalise_value(text: str) -> str:
    """Return the canonical spelling of a value.

    `auto` for `AttnBackend.auto`, `none` for `null`, `8` for `8.0`. Lists lose quotes
    and blanks.
    """
    if text[0] in "[(":
        return re.sub(r"['\"\s]", "", text).lower()
    if text[0].isalpha() or text[0] == "_":
        _, _, last_component = text.rpartition(".")
        word = last_component.lower()
        return "none" if word == "null" else word
    number = float(text)
    return str(int(number)) if number.is_integer() else repr(number)
