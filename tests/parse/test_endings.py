"""How a log says that it ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from parse.written import maxtext_run, nemo2_run, parse
from shared_data import shared

from pytest_llmbench.parse.read import read_ending

END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"
TRACEBACK = "[default2]:[rank2]: Traceback (most recent call last):\n"

LINES = [
    ("slurmstepd: error: *** JOB 1999616 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***",
     "time-limit"),
    (" 0: [2026-08-18T04:17:57.018] error: *** STEP 3108456.2 ON nid007590 CANCELLED AT 2026-08-18T04:17:57 "
     "DUE TO TIME LIMIT ***", "time-limit"),
    ("slurmstepd: error: *** JOB 454600 CANCELLED DUE TO TIME LIMIT ***", "time-limit"),
    ("srun: error: Node failure on jean-zay-iam37", "node-failure"),
    ("slurmstepd: error: *** STEP 1943824.0 ON jean-zay-iam17 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE, "
     "SEE SLURMCTLD LOG FOR DETAILS ***", "node-failure"),
    ("[2025-12-17T12:59:34.342] error: *** STEP 2243671.21 ON nid006549 CANCELLED AT 2025-12-17T12:59:34 "
     "DUE TO TASK FAILURE ***", "task-failure"),
    ("srun: error: n1: tasks 0-7: Exited with exit code 7", "task-failure"),
    ("srun: error: nid006549: task 0: Segmentation fault (core dumped)", "segfault"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO JOB REQUEUE ***", "requeued"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 DUE TO PREEMPTION ***", "preempted"),
    ("[NeMo I 2025-03-07 22:48:03 preemption:67] Preemption detected, saving checkpoint and exiting", "preempted"),
    ("slurmstepd: error: *** JOB 608 ON n1 CANCELLED AT 2022-08-12T02:06:12 ***", "cancelled"),
    ("slurmstepd: error: *** STEP 454600.0 CANCELLED AT 2025-05-21T11:33:42 ***", "cancelled"),
    ("srun: error: nid006549: task 0: Out Of Memory", "out-of-memory"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=608.0. Some of the step tasks have been OOM Killed.",
     "out-of-memory"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out-of-memory"),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying", "out-of-memory"),
    ("[rank3]:[E] [PG 0 Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", "nccl-timeout"),
    ("Traceback (most recent call last):", "traceback"),
    ("slurmstepd: error: NVML: Failed to get usage(3): Not Found", None),
    ("XLA autotuning: RESOURCE_EXHAUSTED for one candidate, trying the next", None),
    ("the test was CANCELLED by the user", None),
    ("srun: Job step aborted: Waiting up to 62 seconds for job step to finish.", None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code"), LINES)
def test_every_line_has_its_code(line: str, code: str | None) -> None:
    ending = parse("before\n" + line + "\nafter\n").ending
    assert (ending.code if ending else None) == code
    if ending:
        assert ending.line == 2
        assert ending.text == line.strip()[:160]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((18, 0), "time-limit"),
        ((18, 6), "task-failure"),
        ((18, 11), "cancelled"),
        ((18, 12), "traceback"),  # Slurm cancels the step after a crash, without a reason
        ((18, 17), "nccl-timeout"),
        ((12, 2), "time-limit"),
        ((5, 7), "segfault"),
        ((8, 15), "out-of-memory"),
    ],
)
def test_slurms_cause_beats_what_follows_from_it(lines: tuple[int, int], code: str) -> None:
    for order in (lines, lines[::-1]):
        ending = parse("".join(LINES[number][0] + "\n" for number in order)).ending
        assert ending is not None
        assert ending.code == code


def test_the_first_traceback_is_told() -> None:
    ending = parse(nemo2_run(0, 5) + TRACEBACK + "x\n" + TRACEBACK).ending
    assert ending is not None
    assert (ending.line, ending.code) == (7, "traceback")
    assert ending.text == "[default2]:[rank2]: Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (nemo2_run(0, 9) + TRACEBACK + nemo2_run(0, 49), None),
        (nemo2_run(0, 9) + TRACEBACK + nemo2_run(0, 30) + END, None),
        (nemo2_run(0, 30) + TRACEBACK + nemo2_run(31, 49), None),
        (nemo2_run(0, 30) + TRACEBACK + END, None),
        (nemo2_run(0, 30) + END + nemo2_run(0, 20) + TRACEBACK + nemo2_run(21, 49), None),
        (nemo2_run(0, 30) + END + TRACEBACK, 33),
        (nemo2_run(0, 49) + TRACEBACK, 51),
        (nemo2_run(0, 49) + TRACEBACK + "`Trainer.fit` stopped: `max_steps=50` reached.\n", None),
        (nemo2_run(0, 9) + TRACEBACK + nemo2_run(0, 30), None),
        (nemo2_run(0, 30) + TRACEBACK + nemo2_run(31, 40), 32),
        (nemo2_run(0, 30) + TRACEBACK, 32),
        (TRACEBACK, 1),
        ("Config param steps: 50\n" + maxtext_run(0, 49) + TRACEBACK, 52),
        ("Config param steps: 50\n" + TRACEBACK + maxtext_run(0, 49), None),
    ],
)
def test_an_ending_stands_after_the_last_end_or_in_an_unfinished_attempt(text: str, line: int | None) -> None:
    ending = parse(text).ending
    assert (ending.line if ending else None) == line


def test_the_text_is_short_and_printable() -> None:
    ending = parse(b"\x1b[31m\x00\xff Traceback (most recent call last) " + b"x" * 999 + b"\n").ending
    assert ending is not None
    assert ending.text.isprintable()
    assert len(ending.text) == 160


def test_read_ending_reads_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "log.err"
    path.write_text("slurmstepd: error: NVML: Failed\n")
    assert read_ending(path) is None
    path.write_text("Traceback (most recent call last):\n" + LINES[0][0])
    ending = read_ending(path)
    assert ending is not None
    assert (ending.code, ending.line) == ("time-limit", 2)


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        # grep -n 'DUE TO TIME LIMIT' FILE: line 371 of 372
        ("logs/slurm/time_limit.out", "time-limit", 371),
        # grep -n 'DUE TO TIME LIMIT' FILE: lines 558 (with the label of srun) and 559
        ("logs/megatron/3108456.err", "time-limit", 558),
        # one line of each kind; the strongest is the time limit, grep -n 'TIME LIMIT': lines 8 and 10
        ("logs/slurm/slurm__tails_one_each.out", "time-limit", 8),
    ],
)
def test_real_endings(name: str, code: str, line: int) -> None:
    ending = read_ending(shared(name))
    assert ending is not None
    assert (ending.code, ending.line) == (code, line)
