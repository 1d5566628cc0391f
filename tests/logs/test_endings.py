"""How a log states that its run ended."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.ending_lines import (
    CAUSES,
    END,
    FAKE,
    LINES,
    QUEUE_SIGTERM,
    RAISED,
    STREAM_PAIRS,
    TIME_LIMIT,
    TRACE,
    TRACEBACK,
    WATCHDOG,
)
from support.shared_data import shared
from support.written_logs import nemo2_log, nemo2_run, parse

from pytest_llmbench.core import formatting
from pytest_llmbench.core.log_records import NO_QUOTE, Ending, EndingCode
from pytest_llmbench.logs.endings import (
    CODES,
    DECISIONS,
    FAILURES,
    add_error_ending,
    combine_endings,
)
from pytest_llmbench.logs.log_reader import read_ending, read_log
from pytest_llmbench.logs.recognisers import ENDINGS
from pytest_llmbench.logs.step_records import make_printable


def end(text: str) -> Ending:
    """Return the ending of a log that has one."""
    ending = parse(text).ending
    assert ending is not None
    return ending


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("srun: error: Node failure on n[1-2,07]", "n[1-2,07]"),
        (
            "Nov 21 05:54:27 n7 kernel: [99.1] NVRM: Xid (PCI:0000:0a:00): 79, pid=1, GPU has fallen off",
            "n7",
        ),
        ("NVRM: Xid (PCI:0000:0a:00): 79, pid=1, GPU has fallen off the bus.", ""),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE ***",
            "",
        ),
    ],
    ids=["Slurm", "kernel", "kernel without a node", "first node of the step"],
)
def test_failed_nodes_are_read_from_the_line_that_ended_the_job(
    line: str, nodes: str
) -> None:
    """Slurm writes `ON n1`, the first node of the job, whatever node failed."""
    assert end(f"{line}\n").nodes == nodes


@pytest.mark.parametrize(("line", "code"), LINES)
def test_every_log_line_that_explains_a_job_end_is_classified_by_code(
    line: str, code: str | None
) -> None:
    ending = parse("before\n" + line + "\nafter\n").ending
    assert (ending.code if ending else None) == code
    if ending:
        assert ending.line == 2
        assert ending.quote == (
            line.rstrip(":")
            if code == "traceback"
            else make_printable(line.encode(), 160)
        )


def test_every_job_ending_code_has_an_example_line_and_a_description() -> None:
    assert (
        {code for _, code in LINES if code} | {"aftermath"}
        == set(CODES)
        == set(formatting.ENDINGS)
    )
    assert {*DECISIONS, *FAILURES, *(row.fact for row in ENDINGS)} <= set(CODES)


def test_every_ending_pattern_has_an_example() -> None:
    lines = [line.encode() for line, _ in LINES]
    assert [
        row
        for row in ENDINGS
        if not any(re.search(row.pattern, line) for line in lines)
    ] == []


@pytest.mark.parametrize(
    ("text", "code", "line", "beside"),
    [case[1:] for case in CAUSES],
    ids=[case[0] for case in CAUSES],
)
def test_root_cause_of_a_crash_is_reported_with_a_related_error_line(
    text: str, code: str, line: int, beside: tuple[str, int] | None
) -> None:
    ending = parse(text).ending
    assert ending is not None
    assert (ending.code, ending.line) == (code, line)
    assert (ending.beside and (ending.beside.code, ending.beside.line)) == beside


def test_description_of_a_crash_contains_log_line_and_rank() -> None:
    text = "[rank5]: " + RAISED.replace("\n", "\n[rank5]: ") + "\n" + WATCHDOG
    assert formatting.describe_ending(end(text), "log.out") == (
        "a process died of an exception: ValueError: x (log.out:3, rank 5); after that NCCL gave up waiting for a "
        "collective operation: [rank3]:[E] [PG 0 Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7) (log.out:5, rank 3)"
    )


@pytest.mark.parametrize(
    ("text", "quote"),
    [
        (
            f"{TRACE}    assert self.warmup < self.decay\n           ^^^^^^\nAssertionError\n",
            "AssertionError in `assert self.warmup < self.decay`",
        ),
        (
            QUEUE_SIGTERM.replace("killed by signal: Terminated", "gone"),
            "_queue.Empty, which led to RuntimeError: DataLoader worker (pid 9) is gone.",
        ),
        (TRACEBACK + "x\n" + TRACEBACK, "Traceback (most recent call last)"),
    ],
    ids=["code without a message", "chain from its root", "head alone"],
)
def test_exception_of_a_traceback_is_quoted_as_the_cause_of_the_crash(
    text: str, quote: str
) -> None:
    assert end(text).quote == quote


@pytest.mark.parametrize(
    ("out", "err", "expected"), [(*case[:2], case[2:]) for case in STREAM_PAIRS]
)
def test_endings_of_log_and_standard_error_are_combined(
    tmp_path: Path, out: str, err: str, expected: tuple[str, str, str | None]
) -> None:
    path = tmp_path / "x.err"
    path.write_text(err)
    ending = combine_endings(parse(out).ending, read_ending(path))
    assert ending is not None
    assert (ending.code, ending.file, ending.beside and ending.beside.code) == expected


def test_truncated_log_gets_ending_from_standard_error() -> None:
    cut, limit = (
        Ending(
            EndingCode.CUT,
            NO_QUOTE,
            7,
            "the gzip data of x.out.gz are truncated",
        ),
        parse(TIME_LIMIT).ending,
    )
    assert combine_endings(cut, limit) is limit
    assert combine_endings(cut, None) is cut
    assert combine_endings(None, None) is None
    assert formatting.describe_ending(cut, "x.out.gz") == cut.problem


@pytest.mark.parametrize(
    ("order", "went_on"),
    [("0-30 TRACEBACK 31-32", False), ("0-30 TRACEBACK 31-33", True)],
)
def test_exception_with_three_steps_after_it_is_doubtful(
    order: str, went_on: bool
) -> None:
    """Another process may still print one or two steps. If the run continues, the
    exception was only a warning."""
    ending = end(nemo2_log(order, TRACEBACK=TRACEBACK))
    assert (ending.line, ending.went_on, ending.rank) == (32, went_on, "rank 2")
    assert (
        "steps follow this line, so this may not be the cause"
        in formatting.describe_ending(ending, "x.out")
    ) is went_on


def test_survived_exception_does_not_hide_the_crash() -> None:
    ending = end(
        nemo2_run(0, 9) + RAISED + nemo2_run(10, 20) + RAISED.replace("x", "y")
    )
    assert (ending.quote, ending.went_on) == ("ValueError: y", False)


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("0-9 TRACEBACK 0-49", None),
        ("0-9 TRACEBACK 0-30", None),
        ("0-30 TRACEBACK 31-49", None),
        ("0-30 TRACEBACK END", None),
        ("0-30 END 0-20 TRACEBACK 21-49", None),
        ("0-49 TRACEBACK END", None),
        ("0-30 END TRACEBACK", 33),
        ("0-49 TRACEBACK", 51),
        ("0-30 TRACEBACK 31-40", 32),
        ("0-30 TRACEBACK", 32),
        ("TRACEBACK", 1),
    ],
)
def test_traceback_is_no_crash_if_the_run_finishes_or_restarts_after_it(
    order: str, line: int | None
) -> None:
    ending = parse(nemo2_log(order, TRACEBACK=TRACEBACK, END=END)).ending
    assert (ending.line if ending else None) == line


REAL = {
    # grep -n 'DUE TO TIME LIMIT' FILE: line 371 of 372
    "slurm/time_limit.out": ("time-limit", 371),
    # a line of each kind; the strongest is the time limit, grep -n 'TIME LIMIT':
    # lines 8 and 10
    "slurm/slurm__tails_one_each.out": ("time-limit", 8),
    # grep -n 'DUE TO TIME LIMIT' FILE: lines 558 (with the label of srun) and 559
    "megatron/3108456.err": ("time-limit", 558),
    # grep -nE 'rank52\\]: (Traceback|AssertionError)' FILE: the first traceback is that
    # of lines 1385 to 1401
    "megatron/2624217.out": ("traceback", 1401),
    # grep -n 'Preemption detected' FILE; the crash of lines 415 to 869 was followed by
    # finished runs
    "nemo2/resiliency_five_runs.out": ("preempted", 1729),
    # grep -n 'srun: error' FILE
    f"{FAKE}gpus8/1795213942/slurm-11.out": ("task-failure", 2),
}
"""The shared logs that state how they ended. The others do not: grep -LaE 'Traceback
\\(|error: \\*\\*\\*|srun: error|Preemption detected|Watchdog caught|Segmentation fault'
FILES, and megatron/2624605.out, four_clock_runs.out, of which `Exception raised from
recvBytes` is a warning at the exit."""


@pytest.mark.slow
def test_real_log_endings_are_recognised() -> None:
    root = shared("logs")
    logs = sorted(path for kind in ("*.out", "*.err") for path in root.rglob(kind))
    endings = {
        path.relative_to(root).as_posix(): read_log(path).ending for path in logs
    }
    actual = {
        name: (ending.code, ending.line) for name, ending in endings.items() if ending
    }
    assert actual == REAL
    assert len(logs) > 50


def test_time_limit_of_a_real_job_is_read_from_slurm_error_file() -> None:
    """The .out file only stops; grep -n 'TIME LIMIT' 3108456.err: line 558."""
    ending = read_ending(shared("logs/megatron/3108456.err"))
    assert ending is not None
    assert combine_endings(None, ending) is ending
    assert formatting.describe_ending(ending, "3108456.out") == (
        "the job reached its time limit: 0: [2026-08-18T04:17:57.018] error: *** STEP 3108456.2 ON nid007590 CANCELLED AT "
        "2026-08-18T04:17:57 DUE TO TIME LIMIT *** (3108456.err:558, task 0)"
    )


IMPORT = f"{TRACE}ImportError: no apex\n"
BEGUN = {
    "a bar of Lightning": "Epoch 0: :   0%|          | 0/50 [00:00<?]\n",
    "a step": nemo2_run(0, 0),
    "a start": "***** Running training *****\n",
    "a bar of Trainer": "\r  1%|#         | 12/1921 [00:16<42:10,  1.33s/it]\n",
}


@pytest.mark.parametrize("sign", BEGUN)
def test_error_before_training_is_not_reported_as_ending_of_a_trained_run(
    tmp_path: Path, sign: str
) -> None:
    path = tmp_path / "x.err"
    path.write_text(f"{IMPORT}some words\n{BEGUN[sign]}")
    error = read_ending(path)
    assert error is not None
    assert (error.code, error.before_training) == ("traceback", True)
    assert add_error_ending(parse(nemo2_run(0, 30)), error).ending is None
    without_steps = add_error_ending(parse("no step\n"), error).ending
    assert without_steps is not None
    assert formatting.describe_ending(without_steps, "x.out").endswith(
        "(x.err:3); training began after this line, so this may not be the cause"
    )


@pytest.mark.parametrize(
    ("begun", "quote"),
    [
        (BEGUN["a step"], "ValueError: x"),
        (BEGUN["a bar of Trainer"], "ValueError: x"),
        ("Map:  10%|#  | 12/1921 [00:16<42:10,  1.33s/it]\n", "ImportError: no apex"),
    ],
    ids=["step", "bar", "bar of data"],
)
def test_error_after_training_began_is_reported_as_ending_of_the_run(
    tmp_path: Path, begun: str, quote: str
) -> None:
    path = tmp_path / "x.err"
    path.write_text(f"{IMPORT}{begun}{RAISED}")
    ending = add_error_ending(parse(nemo2_run(0, 30)), read_ending(path)).ending
    assert ending is not None
    assert (ending.code, ending.quote) == ("traceback", quote)
    assert (ending.before_training, ending.went_on) == (False, False)


WARNING_LINES = [
    "[NeMo W 2025-03-07 22:33:57 nemo_logging:405] ",
    "W0307 22:33:45.123456 1204 api.py:793] ",
    "2025-03-07 22:33:57,120 - root - WARNING - ",
    "WARNING:root:",
    "/x/y.py:7: UserWarning: ",
]


@pytest.mark.parametrize("head", WARNING_LINES)
def test_traceback_logged_as_warning_is_not_reported_as_a_crash(head: str) -> None:
    """A level on the head's line is certain. A warning above the head may be unrelated,
    unless steps follow."""
    label = "9: [default3]: "
    steps = nemo2_run(0, 30, label)
    labelled = label + IMPORT.rstrip().replace("\n", "\n" + label) + "\n"
    assert parse(steps + label + head + labelled.removeprefix(label)).ending is None
    above = label + head + "could not import\n" + labelled
    assert parse(steps + above + nemo2_run(31, 40, label)).ending is None
    died = end(steps + above)
    assert (died.quote, died.went_on) == ("ImportError: no apex", False)


@pytest.mark.parametrize(
    "head", ["ERROR:root:", "[NeMo E 2025-03-07 22:33:57 x:1] ", "INFO:launcher:"]
)
def test_traceback_logged_as_error_is_reported_as_a_crash(head: str) -> None:
    assert end(nemo2_run(0, 30) + head + RAISED).code == "traceback"


DATA_USED = "[exiting program after consuming all available data at iteration 30] datetime: 2026-06-26 14:33:14 \n"


MEGATRON = "".join(
    f" iteration {step:8d}/      50 | consumed samples: {step} | elapsed time per iteration (ms): 2000.0 | "
    "lm loss: 1.1E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    for step in range(1, 31)
)


def test_early_exit_is_reported_with_the_reason_that_megatron_printed() -> None:
    assert formatting.describe_ending(end(MEGATRON + DATA_USED), "x.out") == (
        "the process exited before the last step of the run: [exiting program after consuming all available data at iteration 30] "
        "datetime: 2026-06-26 14:33:14 (x.out:31)"
    )
    assert parse(MEGATRON.replace("/      50", "/      30") + DATA_USED).ending is None
    assert end(MEGATRON + DATA_USED + TIME_LIMIT).code == "time-limit"
    assert end(MEGATRON + DATA_USED + RAISED).code == "exited"
