"""Which rank printed a line, by the prefix before the record."""

from __future__ import annotations

import re

from pytest_llmbench.ingest.parse.scan import REACH_BACK, Hit

TASK = re.compile(rb"[ \t\r]*(\d{1,9}): ")
ROLE = re.compile(rb"([A-Za-z][\w.-]{0,99}/\d{1,9}) ")
RANK = re.compile(rb"\[((?:rank|default)\d{1,9})\]")
PROCESS = re.compile(rb"\b(pid=\d{1,9})\b")
SIGN = re.compile(rb"[/\[]|: |pid=")
"""Part of every label: most lines that have none are told by it alone."""


def read_rank(hit: Hit) -> str:
    """Return the labels before a record, such as `9 default3` for `9: [default3]: `, or an empty string.

    `9: ` (srun -l) and `train/0 ` (NeMo-Run) count at the beginning of a line or bar only; `[default3]:`, `[rank4]:`
    and `pid=4112` anywhere before the record, the last one where lines were glued.
    """
    earliest = max(0, hit.start - REACH_BACK)
    begin = hit.text.rfind(b"\n", earliest, hit.start) + 1 or earliest
    prefix = hit.text[begin : hit.start]
    if not (prefix and SIGN.search(prefix)):
        return ""
    heads = [prefix] if begin > earliest or hit.offset <= REACH_BACK else []
    if b"\r" in prefix:
        heads.insert(0, prefix[prefix.rindex(b"\r") + 1 :])
    labels = [next((match[1] for head in heads if (match := label.match(head))), b"") for label in (TASK, ROLE)]
    labels += [b"".join(label.findall(prefix)[-1:]) for label in (RANK, PROCESS)]
    return b" ".join(filter(None, labels)).decode("ascii")


def get_rank_order(rank: str) -> tuple[int, ...]:
    """Return a key that sorts ranks by their numbers; a line without a label sorts first."""
    return tuple(int(number) for number in re.findall(r"\d+", rank))
