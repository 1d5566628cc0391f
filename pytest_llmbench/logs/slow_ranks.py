"""Reports of slow ranks or nodes in logs.

Recognised are the reports of nvidia-resiliency-ext (also in NeMo and Megatron-LM), of
the straggler detector of Megatron-LM, of dlrover, the straggler effect in the summary
of DeepSpeed's communication logger, and sentences that name a slow rank or node. A
failed item quotes them: its log is read again for that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from pytest_llmbench.core.log_records import Quote
from pytest_llmbench.core.patterns import compile_on_use
from pytest_llmbench.logs.scan import Hit, find_line_begin, find_markers, iterate_chunks
from pytest_llmbench.logs.step_records import find_line_stop, make_printable

MARKERS = (
    b"traggl",
    b"TRAGGL",
    b"Score=",
    b"MnEtpt/Rnk",
    b"slow",
    b"Slow",
    b"SLOW",
)

# Characters of a line that are quoted.
QUOTED_CHARACTERS = 200

# Bytes of a line that are searched.
SEARCHED_BYTES = 2000

# A rank is slow below this share of the fastest rank, or of its own best. Reports print
# the scores of healthy ranks, too.
SLOW_SCORE = 0.9

# "Rank=3, Node=n1, Score=0.72"
_SCORE = compile_on_use(
    rb"\bRank=\d{1,7},? +Node=[\w.:-]{1,99},? +Score=(\d{1,3}(?:\.\d{1,9})?)"
)
# "MnEtpt/Rnk: 391.2TF/3 | MxEtpt/Rnk: 420.5TF/0": lowest and highest throughput
_THROUGHPUT = compile_on_use(
    rb"MnEtpt/Rnk: ?(\d{1,6}(?:\.\d{1,6})?)(?:TF)?/\d{1,7}\b.{0,99}?MxEtpt/Rnk: ?(\d{1,6}(?:\.\d{1,6})?)"
)

# The table of DeepSpeed's `log_summary(show_straggler=True)`. It contains for each
# message size the time of the fastest rank in all calls, and how much longer this rank
# waited for the slowest.
_EFFECT = compile_on_use(
    rb"Message Size +Count +Total comm lat\(ms\) +Total straggler\(ms\)"
)
_EFFECT_ROW = compile_on_use(
    rb"^ +([\d.]+ [KMGT]?B) +(\d+) +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+ *\r?$",
    re.MULTILINE,
)
_EFFECT_SIZE = 20_000  # bytes of the table

_NUMBERED = rb"(?:is|are|was|were)?\W{0,6}\d{1,7}(?![\d.]*[\w.]*[A-Za-z%])"
_SUBJECT = (
    rb"(?:\b(?:global[ _])?ranks?\b\W{0,6}\d{1,7}|\bnode[ _-]?(?:rank|name|id)?s?\b\W{0,6}[\w.-]{0,60}\d"
    rb"|\bgpus?\b\W{0,4}\d{1,7}\b(?! (?:gpus|ranks|of)))"
)
# "straggler detected: rank 3", "stragglers: 3" or "node n7 is a straggler"
_STRAGGLER = compile_on_use(
    rb"(?i)(?<![\w-])stragglers?(?![\w-])(?:[^\r\n]{0,200}%b|(?: nodes?| ranks?)?[ :]{1,4}%b)"
    rb"|%b[^\r\n]{0,60}(?<![\w-])stragglers?(?![\w-])" % (_SUBJECT, _NUMBERED, _SUBJECT)
)
# "slowest rank: 3"
_SLOW_RANK = compile_on_use(
    rb"(?i)(?<![\w-])slow(?:est)? (?:global )?(?:ranks?|nodes?|gpus?|workers?)\b[^\r\n]{0,40}\d"
)
# "no stragglers found", or "straggler detection enabled"
_DENIAL = compile_on_use(
    rb"(?i)\b(?:no|not|without|0|zero)\b[^\r\n]{0,30}(?:straggl|slow)|(?:straggl|slow)[^\r\n]{0,40}(?:\bnone\b|\bno\b|\bnot\b"
    rb"|: ?(?:0\b|\[\]|\{\})|enabled|disabled|threshold|interval)"
)


class SlowRankLine(NamedTuple):
    """One line that names a slow rank or node."""

    line: int
    text: Quote
    score: float  # smaller is slower; 1 for a line without a number


def find_slow_ranks(
    blocks: Iterable[bytes], begin: int, end: float
) -> tuple[SlowRankLine, ...]:
    """Find up to two reports of slow ranks between two lines.

    Returns the last sentence that names a rank, and the report with the worst score.

    Raises LogError if the log cannot be read.
    """
    sentence, worst = None, None
    line = 0
    for chunk in iterate_chunks(blocks):
        for hit in find_markers(chunk, MARKERS):
            if hit.line != line and begin < hit.line < end:
                line = hit.line
                report = _read_line(hit)
                if report and report.score == 1:  # a sentence without a number
                    sentence = report
                elif report and (worst is None or report.score <= worst.score):
                    worst = report
    return tuple(sorted(filter(None, (sentence, worst))))


def _read_line(hit: Hit) -> SlowRankLine | None:
    """Read the report of a slow rank on the line of a marker, or None.

    The score is 1 if the line only names the rank.
    """
    begin = find_line_begin(hit.text, max(0, hit.start - QUOTED_CHARACTERS), hit.start)
    stop = find_line_stop(hit.text, hit.start, hit.end)
    text = hit.text[begin : min(stop, begin + SEARCHED_BYTES)]
    if _EFFECT.search(text):
        return _read_effect(hit)
    throughputs = _THROUGHPUT.search(text)
    if throughputs:
        slowest, fastest = float(throughputs[1]), float(throughputs[2])
        score = slowest / fastest if fastest else 1.0
        quoted = throughputs[0]
    else:
        score = min(map(float, _SCORE.findall(text)), default=1.0)
        quoted = text
    if score < SLOW_SCORE or (score == 1 and _names_slow_rank(text)):
        return SlowRankLine(hit.line, make_printable(quoted, QUOTED_CHARACTERS), score)
    return None


def _read_effect(hit: Hit) -> SlowRankLine | None:
    """Return the row with the longest wait in a table of straggler effects."""
    rows = list(_EFFECT_ROW.finditer(hit.text[hit.start : hit.start + _EFFECT_SIZE]))
    if not rows:
        return None
    worst = max(rows, key=lambda row: float(row[4]))
    size, count, shortest_text, waited_text = worst.groups()
    shortest, waited = float(shortest_text), float(waited_text)
    score = shortest / (shortest + waited) if waited > 0 else 1.0
    if score >= SLOW_SCORE:
        return None
    line = hit.line + hit.text.count(b"\n", hit.start, hit.start + worst.start())
    text = f"straggler wait {waited:g} ms, communication {shortest:g} ms, {count.decode()} calls of {size.decode()}"
    return SlowRankLine(line, Quote(text), score)


def _names_slow_rank(text: bytes) -> bool:
    """True if a sentence names a slow rank or node.

    False if the sentence denies it, or only states a setting.
    """
    if _DENIAL.search(text):
        return False
    return bool(_STRAGGLER.search(text) or _SLOW_RANK.search(text))
