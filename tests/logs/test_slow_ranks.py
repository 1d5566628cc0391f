"""Reports of slow ranks in logs, and lines that only contain the words."""

from __future__ import annotations

import math

import pytest

from pytest_llmbench.logs.slow_ranks import find_slow_ranks

RESILIENCY = (
    "GPU relative performance:\n Worst performing 2/8 ranks:\n  Rank=5 Node=node07 Score=0.68\n"
    "  Rank=1 Node=node01 Score=0.97\n Best performing 2/8 ranks:\n  Rank=2 Node=node02 Score=1.00\n"
)
MEGATRON = (
    "INFO:megatron: [2026-03-02 10:00:09] | MnRtt/Rnk: 1.01s/3 | MxRtt/Rnk: 1.40s/5 | MnPwr/Rnk: 500W/5 | "
    "MnEtpt/Rnk: {slowest}TF/5 | MxEtpt/Rnk: 400.00TF/1\n"
)


def list_reports(
    text: str, start: int = 0, end: float = math.inf
) -> list[tuple[int, str]]:
    return [
        (report.line, report.text)
        for report in find_slow_ranks([text.encode()], start, end)
    ]


@pytest.mark.parametrize(
    "line",
    [
        "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: rank 5 on node07",
        "[2026-03-02 10:00:00,000] [WARNING] [dlrover] The node 3 is a straggler",
        "[INFO] [master] Straggler: [3]",
        "The straggler nodes are: [3, 7]",
        "WARNING slow rank detected: rank=17 (host node12), 1.31x the median",
        "slowest rank: 5, forward 812 ms",
        "Detected straggler on rank 12",
    ],
)
def test_line_naming_slow_rank_is_found(line: str) -> None:
    assert list_reports(f"step 1\n{line}\nstep 2\n") == [(2, line)]


@pytest.mark.parametrize(
    "line",
    [
        "  log_straggler ................................... False",
        "  straggler_minmax_count .......................... 1",
        "  straggler_ctrlr_port ............................ 65535",
        "nvrx_straggler: null",
        "Straggler detection enabled on rank 0",
        "straggler detection interval: rank 0 reports every 300 s",
        "No stragglers detected among 64 ranks, rank 0",
        "Stragglers: []",
        "stragglers: 0",
        "Using slow tokenizer 2 on rank 0",
        "Rank=5 Node=node07 Score=0.98",
        MEGATRON.format(slowest="385.20").strip(),
    ],
)
def test_line_without_slow_rank_is_ignored(line: str) -> None:
    assert list_reports(f"{line}\n") == []


def test_worst_score_of_report_is_quoted() -> None:
    assert list_reports(RESILIENCY) == [(3, "Rank=5 Node=node07 Score=0.68")]
    assert list_reports(MEGATRON.format(slowest="270.10")) == [
        (1, "MnEtpt/Rnk: 270.10TF/5 | MxEtpt/Rnk: 400.00")
    ]


EFFECT = (
    "_______________________________\nBreakdown with straggler effect\n-------------------------------\n"
    "Comm. Op            Message Size        Count               Total comm lat(ms)  Total straggler(ms) "
    "Avg comm lat(ms)    Avg straggler(ms)   \n"
    "all_reduce\n"
    "                    2.0 KB              146                 11.12               1.02                0.08"
    "                0.01                \n"
    "                    1.2 GB              100                 8000.00             {waited}             80.00"
    "               21.00               \n"
)


@pytest.mark.parametrize(
    ("waited", "reports"),
    [
        (
            "2100.00",
            [(7, "straggler wait 2100 ms, communication 8000 ms, 100 calls of 1.2 GB")],
        ),
        ("300.00", []),
        ("0.00", []),
    ],
)
def test_straggler_effect_of_deepspeed_is_quoted(
    waited: str, reports: list[tuple[int, str]]
) -> None:
    assert list_reports(EFFECT.format(waited=waited)) == reports


def test_reports_outside_line_range_are_ignored() -> None:
    text = "Detected straggler on rank 1\nstep 1\nDetected straggler on rank 2\nstep 2\nDetected straggler on rank 3\n"
    assert list_reports(text, 1, 5) == [(3, "Detected straggler on rank 2")]
