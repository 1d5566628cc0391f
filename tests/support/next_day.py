"""Derives the log of a later day from a real log: other step times, dates and job
ids."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial

# Step times, and rates, which are inversely proportional to them. The groups are the text
# before the number and the number.
TIMES = re.compile(
    r"(elapsed time per iteration \(ms\): |\| iteration_time: |Step Time : |completed step: \d+, seconds: "
    r"|train_step_timing in s ?[=:] ?|['\"]train_runtime['\"]: '?|\"train_step_time\": )([\d.]+)"
)
RATES = re.compile(
    r"(samples/sec: |approx flops per GPU: "
    r"|throughput(?: per GPU)? \(TFLOP/s/GPU\): |TFLOPs: |TFLOP/s/device: |Tokens/s/device: |samples per second: "
    r"|tokens per [Gg][Pp][Uu][^|:]{0,40}: |tps: (?:\x1b\[[\d;]*m)?|tflops: (?:\x1b\[[\d;]*m)?|utilization: "
    r"|['\"]train_(?:samples|steps)_per_second['\"]: '?|\"throughput\": |\"tps\": )([\d.,]*\d)"
)
JITTER = (0.001, -0.002, 0.002, -0.001, 0.0)
# STAMPED: lines whose step times follow from their time stamps. CLOCKS: lines that print
# the elapsed time.
STAMPED = ("[titan]", "CurrSamplesPerSec")
CLOCKS = ("global_step/max_steps", "current_steps")
MILLISECONDS = re.compile(r"(\"time_ms\": )(\d+)")
SPEED = re.compile(r"(\"train_speed\(iter/s\)\": )([\d.]+)")
ELAPSED = re.compile(r"(\"elapsed_time\": \")(?:(\d+)h )?(?:(\d+)m )?(\d+)s")
CLOCK = re.compile(r"(\"elapsed_time\": \")(\d+):(\d\d):(\d\d)(?=\")")
STAMP = re.compile(r"(?<!\d)(20\d\d-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)([.,]\d{3})(?!\d)")
DAY = re.compile(r"(?<!\d)20\d\d(-?)[01]\d\1[0-3]\d(?!\d)")


def make_next_day(text: str, slower: float = 1.0, days: int = 1) -> str:
    """Return a log that is `days` later and whose steps take `slower` times as long.

    The step times get a jitter of 0.2 %.
    """
    return "".join(_change_lines(text, slower, days))


def rename(name: str, days: int = 1) -> str:
    """Change the dates and the job id in the name of a folder or log to a later day."""
    moved = DAY.sub(partial(_shift_day, days=days), name)
    return re.sub(r"(?<=slurm-)\d+", lambda match: str(int(match[0]) + days), moved)


def _change_lines(text: str, slower: float, days: int) -> Iterator[str]:
    first = next((_read(match) for match in STAMP.finditer(text)), None)
    first_milliseconds = next(
        (int(match[2]) for match in MILLISECONDS.finditer(text)), 0
    )
    for index, line in enumerate(text.splitlines(keepends=True)):
        factor = slower * (1 + JITTER[index % len(JITTER)])
        changed = TIMES.sub(partial(_scale, factor=factor), line)
        changed = RATES.sub(partial(_scale, factor=1 / factor), changed)
        if any(name in line for name in CLOCKS):
            changed = ELAPSED.sub(partial(_stretch_elapsed, slower=slower), changed)
            changed = CLOCK.sub(partial(_stretch_clock, slower=slower), changed)
            changed = SPEED.sub(partial(_scale, factor=1 / slower), changed)
        if first is not None and any(name in line for name in STAMPED):
            changed = STAMP.sub(partial(_stretch, first=first, slower=slower), changed)
        changed = MILLISECONDS.sub(
            partial(
                _stretch_milliseconds,
                first_milliseconds=first_milliseconds,
                slower=slower,
            ),
            changed,
        )
        yield DAY.sub(partial(_shift_day, days=days), changed)


def _scale(match: re.Match[str], factor: float) -> str:
    number = match[2].replace(",", "")
    if number.count(".") > 1:
        return match[0]
    digits = len(number.partition(".")[2])
    return (
        f"{match[1]}{float(number) * factor:{',' if ',' in match[2] else ''}.{digits}f}"
    )


def _stretch_elapsed(match: re.Match[str], slower: float) -> str:
    return f"{match[1]}{_scale_seconds(match, slower)}s"


def _stretch_clock(match: re.Match[str], slower: float) -> str:
    minutes, seconds = divmod(_scale_seconds(match, slower), 60)
    return f"{match[1]}{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def _scale_seconds(match: re.Match[str], slower: float) -> int:
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
    return int((3600 * hours + 60 * minutes + seconds + 0.5) * slower)


def _stretch_milliseconds(
    match: re.Match[str], first_milliseconds: int, slower: float
) -> str:
    return f"{match[1]}{round(first_milliseconds + (int(match[2]) - first_milliseconds) * slower)}"


def _read(match: re.Match[str]) -> datetime:
    return datetime.fromisoformat(f"{match[1]} {match[3]}.{match[4][1:]}")


def _stretch(match: re.Match[str], first: datetime, slower: float) -> str:
    moved = first + (_read(match) - first) * slower
    return f"{moved:%Y-%m-%d}{match[2]}{moved:%H:%M:%S}{match[4][0]}{moved.microsecond // 1000:03}"


def _shift_day(match: re.Match[str], days: int) -> str:
    form = f"%Y{match[1]}%m{match[1]}%d"
    try:
        return (
            datetime.strptime(match[0], form).astimezone() + timedelta(days)
        ).strftime(form)
    except ValueError:  # the digits are not a date
        return match[0]
