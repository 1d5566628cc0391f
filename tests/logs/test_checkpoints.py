"""Checkpoint lines in a log: which lines count, their duration, and dispatches."""

from __future__ import annotations

import pytest
from support.shared_data import shared
from support.written_logs import nemo2

from pytest_llmbench.core.log_records import CheckpointAction, CheckpointRecord
from pytest_llmbench.logs import facts
from pytest_llmbench.logs.log_reader import parse_blocks, read_log

NEMO = "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] "
SAVED = f"{NEMO}Global Checkpoint Save : Rank: 0 : Iteration: 50 : Start time: 1744408121.151s : Save duration: 4.389s"
LOADED = f"{NEMO}Global Checkpoint Load : Rank : 0 : Start time : 1.270s : Time spent in load_checkpoint: 9.712s"
TITAN = "[titan] 2026-04-30 06:42:44,283 - root - INFO - "
DOTS = "................................"
BRIDGE = f"successfully saved checkpoint from iteration      50 to /nemo_run/checkpoints [ t 1/1, p 1/1 ] (min, max) time across ranks (ms): save-checkpoint {DOTS}: (24895.07, 24895.13)"  # noqa: E501
LOADED_MEGATRON = "  successfully loaded checkpoint from /checkpoints [ t 1/1, p 1/1 ] at iteration 50"


def records(*lines: str, end: str = "\n") -> tuple[CheckpointRecord, ...]:
    return parse_blocks([("\n".join(lines) + end).encode()]).checkpoints.records


SAVE, LOAD = CheckpointAction.SAVE, CheckpointAction.LOAD


@pytest.mark.parametrize(
    ("line", "action", "seconds"),
    [
        (SAVED, SAVE, 4.389),
        (LOADED, LOAD, 9.712),
        (f"55:     save-checkpoint {DOTS}: (28798.64, 28798.85)", SAVE, 28.79885),
        (f"    save-checkpoint {DOTS}: 18512.90", SAVE, 18.5129),
        (
            f"(min, max) time across ranks (ms):save-checkpoint {DOTS}: (1658.80, 1658.85)",
            SAVE,
            1.65885,
        ),
        ("time (ms) | save-checkpoint: 11.96 | other: 5.00", SAVE, 0.01196),
        (f"{TITAN}Finished loading the checkpoint in 4.84 seconds.", LOAD, 4.84),
        (
            "I0519 09:40:55 1 checkpointer.py:288] Finished restoring checkpoint in 1.23 seconds from /x.",
            LOAD,
            1.23,
        ),
        (
            "Finished asynchronous save (blocking + background) in 192.92 seconds to /x/99",
            SAVE,
            192.92,
        ),
        (
            "Finished async_save (blocking + background). Time taken: 124.1s. directory=gs://x/50",
            SAVE,
            124.1,
        ),
    ],
)
def test_checkpoint_time_is_read_in_seconds(
    line: str, action: str, seconds: float
) -> None:
    (record,) = records("first", line)
    assert (record.action, record.seconds, record.line) == (action, seconds, 2)
    assert (record.torn, record.dispatched) == (False, False)


def test_megatron_bridge_save_line_gives_the_time_of_the_checkpoint() -> None:
    output, timed = records(BRIDGE)
    assert (output.action, output.seconds, output.torn) == (
        CheckpointAction.SAVE,
        None,
        False,
    )
    assert (timed.action, timed.seconds) == (CheckpointAction.SAVE, 24.89513)


@pytest.mark.parametrize(
    "line",
    [
        SAVED[:-3],
        f"{SAVED}[NeMo I",
        SAVED[: SAVED.index("Start")],
        LOADED[:-2],
        f"    save-checkpoint {DOTS}: (28798.64, 287",
        f"    save-checkpoint {DOTS}: 18512.90 ms of rank 7",
        f"{TITAN}Finished loading the checkpoint in 4.8",
    ],
)
def test_truncated_checkpoint_line_is_flagged_and_gives_no_time(line: str) -> None:
    for end in ("\n", ""):
        (record,) = records(line, end=end)
        assert (record.seconds, record.torn) == (None, True)


@pytest.mark.parametrize(
    "line",
    [
        "  save ............................................ /results/x/checkpoints",
        "  load ............................................ /results/x/checkpoints",
        f"    save-checkpoint-non-persistent {DOTS}: (28798.64, 28798.85)",
        "[Rank 0] (after save_checkpoint for iteration 300) memory (MB) | allocated: 8058.23",
        "0: saving checkpoint at iteration     300 to /x/checkpoints in torch_dist format",
        "wandb: uploading artifact checkpoints; updating run metadata",
        "Checkpointing active. Checkpoints will be loaded from and saved to /x",
        "[GC] GC collection for checkpoint loading. took 0.05 seconds",
        "Config param enable_checkpointing: False",
        "No existing checkpoints found, not restoring checkpoint.",
        "--save-checkpoint=/x",
    ],
)
def test_similar_lines_are_not_checkpoints(line: str) -> None:
    assert records(line) == ()


@pytest.mark.parametrize(
    "mark",
    [
        f"{NEMO}Scheduled async checkpoint save for /x.ckpt",
        f"{NEMO}Pending async checkpoint saves. Finalizing them synchronously now",
        f"{NEMO}Async finalization time took 10.692 s",
        "straggler_det_callback:245] Async checkpointing detected, waiting for it to complete...",
        "  async_save ...................................... True",
        "  async_save: true",
        "{'ckpt_async_save': True}",
    ],
)
def test_time_of_an_asynchronous_save_is_marked_as_dispatch_time(mark: str) -> None:
    for lines in ((mark, SAVED), (f"    save-checkpoint {DOTS}: (28.64, 28.85)", mark)):
        (record,) = records(*lines)
        assert record.dispatched


@pytest.mark.parametrize(
    "line",
    [
        "  async_save ...................................... False",
        "  async_save: false",
        "  one_logger_async ................................ True",
        "WARNING:x:MCore's async save is deprecated and will be removed in the future releases.",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING = 1",
    ],
)
def test_similar_lines_do_not_mark_a_save_as_asynchronous(line: str) -> None:
    (record,) = records(line, SAVED)
    assert not record.dispatched


@pytest.mark.parametrize(
    ("mode", "dispatched"),
    [
        ("", True),
        ('"async_mode": "disabled"', False),
        ("async_mode=disabled", False),
        ('"async_mode": "async_with_pinned_mem"', True),
        ('"async_mode": "disabled", then "async_mode": "async"', True),
    ],
)
@pytest.mark.parametrize(
    "aside",
    [" ", " (or staging if async is enabled) ", " (or staging if async is enabled)"],
)
def test_torchtitan_save_time_is_a_dispatch_time_unless_async_mode_is_disabled(
    mode: str, dispatched: bool, aside: str
) -> None:
    (record,) = records(
        mode, f"{TITAN}Finished saving the checkpoint{aside}in 11.46 seconds."
    )
    assert (record.seconds, record.dispatched) == (11.46, dispatched)


def test_load_timer_is_read_only_after_a_load() -> None:
    timer = f"55:     load-checkpoint {DOTS}: (0.82, 0.92)"
    assert records(timer) == ()
    assert [
        (record.action, record.seconds) for record in records(LOADED_MEGATRON, timer)
    ] == [
        (LOAD, None),
        (LOAD, 0.00092),
    ]


def test_checkpoint_belongs_to_its_attempt() -> None:
    first, second = nemo2(0).rstrip("\n"), nemo2(1).rstrip("\n")
    attempt = [LOADED, first, SAVED, second, SAVED]
    result = records(SAVED, *attempt, *attempt, LOADED)
    assert [checkpoint.part for checkpoint in result] == [0, 1, 1, 1, 2, 2, 2, 0]


@pytest.mark.slow
def test_checkpoint_records_beyond_the_limit_are_counted_as_unread() -> None:
    result = parse_blocks(
        [f"{SAVED}\n".encode() * (facts.KEPT_CHECKPOINTS + 7)]
    ).checkpoints
    assert (len(result.records), result.unread) == (facts.KEPT_CHECKPOINTS, 7)


def test_checkpoint_rank_is_read_from_the_line_prefix_or_the_log_record() -> None:
    own, prefixed = records(
        SAVED, f"[rank3]:{TITAN}Finished loading the checkpoint in 4.84 seconds."
    )
    assert (own.rank, prefixed.rank) == ("0", "rank3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "saves", "loads", "dispatched"),
    [
        # grep -nE 'Save duration|Time spent in load|save-checkpoint \.|Finished
        # (saving|loading) the', Megatron in ms
        (
            "nemo2/evo2_slow_after_checkpoint_excerpt.out",
            [11.378, 23.107, 1.718, 1.136],
            [2.181],
            True,
        ),
        ("megatron/2624605.out", [28.79885, 30.97608, 29.77519, 30.42471], [], False),
        ("torchtitan/resumed_killed.out", [11.46], [4.84], True),
    ],
)
def test_real_log_gives_its_checkpoints(
    name: str, saves: list[float], loads: list[float], dispatched: bool
) -> None:
    result = read_log(shared(f"logs/{name}")).checkpoints.records
    saved = [
        checkpoint
        for checkpoint in result
        if checkpoint.seconds is not None and checkpoint.action == SAVE
    ]
    assert [checkpoint.seconds for checkpoint in saved] == saves
    assert [
        checkpoint.seconds
        for checkpoint in result
        if checkpoint.seconds is not None and checkpoint.action == LOAD
    ] == loads
    assert {checkpoint.dispatched for checkpoint in saved} == {dispatched}
