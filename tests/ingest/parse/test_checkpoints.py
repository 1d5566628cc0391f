"""What a log says of checkpoints: which lines count, how long they say that it took, and what is only a dispatch."""

from __future__ import annotations

import pytest
from shared_data import shared

from pytest_llmbench.core.models import CheckpointAction, CheckpointRecord
from pytest_llmbench.ingest.parse import checkpoints
from pytest_llmbench.ingest.parse.read import parse_blocks, read_log

NEMO = "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] "
SAVED = f"{NEMO}Global Checkpoint Save : Rank: 0 : Iteration: 50 : Start time: 1744408121.151s : Save duration: 4.389s"
LOADED = f"{NEMO}Global Checkpoint Load : Rank : 0 : Start time : 1.270s : Time spent in load_checkpoint: 9.712s"
TITAN = "[titan] 2026-04-30 06:42:44,283 - root - INFO - "
DOTS = "................................"
BRIDGE = f"successfully saved checkpoint from iteration      50 to /nemo_run/checkpoints [ t 1/1, p 1/1 ] (min, max) time across ranks (ms): save-checkpoint {DOTS}: (24895.07, 24895.13)"  # noqa: E501
LOADED_MEGATRON = "  successfully loaded checkpoint from /checkpoints [ t 1/1, p 1/1 ] at iteration 50"


def records(*lines: str, end: str = "\n") -> tuple[CheckpointRecord, ...]:
    return parse_blocks([("\n".join(lines) + end).encode()]).checkpoints.records


@pytest.mark.parametrize(
    ("line", "action", "seconds"),
    [
        (SAVED, CheckpointAction.SAVE, 4.389),
        (LOADED, CheckpointAction.LOAD, 9.712),
        (
            f"{NEMO}Global Checkpoint Save : Rank: 0 : Start time: 1745376794.226s : Save duration: 60.221s",
            CheckpointAction.SAVE,
            60.221,
        ),
        (f"    save-checkpoint {DOTS}: (28798.64, 28798.85)", CheckpointAction.SAVE, 28.79885),
        (f"55:     save-checkpoint {DOTS}: (28798.64, 28798.85)", CheckpointAction.SAVE, 28.79885),
        (f"    save-checkpoint {DOTS}: 18512.90", CheckpointAction.SAVE, 18.5129),
        (
            f"(min, max) time across ranks (ms):save-checkpoint {DOTS}: (1658.80, 1658.85)",
            CheckpointAction.SAVE,
            1.65885,
        ),
        ("time (ms) | save-checkpoint: 11.96", CheckpointAction.SAVE, 0.01196),
        ("time (ms) | save-checkpoint: 11.96 | other: 5.00", CheckpointAction.SAVE, 0.01196),
        (f"{TITAN}Finished loading the checkpoint in 4.84 seconds.", CheckpointAction.LOAD, 4.84),
        (
            "I0519 09:40:55 1 checkpointer.py:288] Finished restoring checkpoint in 1.23 seconds from /x.",
            CheckpointAction.LOAD,
            1.23,
        ),
        (
            "Finished asynchronous save (blocking + background) in 192.92 seconds to /x/99",
            CheckpointAction.SAVE,
            192.92,
        ),
        ("Finished synchronous save in 12.50 seconds to /x/99", CheckpointAction.SAVE, 12.5),
        (
            "Finished async_save (blocking + background). Time taken: 124.161461s. directory=gs://x/50",
            CheckpointAction.SAVE,
            124.161461,
        ),
    ],
)
def test_a_time_is_read_in_seconds(line: str, action: str, seconds: float) -> None:
    (record,) = records("first", line)
    assert (record.action, record.seconds, record.line, record.torn) == (action, seconds, 2, False)
    assert not record.dispatched


def test_the_one_line_that_the_documents_of_later_recipes_show_is_a_save_with_its_time() -> None:
    said, timed = records(BRIDGE)
    assert (said.action, said.seconds, said.torn) == (CheckpointAction.SAVE, None, False)
    assert (timed.action, timed.seconds) == (CheckpointAction.SAVE, 24.89513)


@pytest.mark.parametrize(
    "line",
    [
        SAVED[:-3],
        SAVED[:-1],
        f"{SAVED}[NeMo I",
        SAVED[: SAVED.index("Start")],
        LOADED[:-2],
        f"    save-checkpoint {DOTS}:",
        f"    save-checkpoint {DOTS}: (28798.64, 287",
        f"    save-checkpoint {DOTS}: 18512.90 ms of rank 7",
        f"{TITAN}Finished loading the checkpoint in 4.8",
        "Finished synchronous save in 12.5",
    ],
)
def test_a_record_that_is_cut_off_has_no_time_and_says_so(line: str) -> None:
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
def test_look_alikes_are_no_checkpoints(line: str) -> None:
    assert records(line) == ()


@pytest.mark.parametrize(
    "mark",
    [
        f"{NEMO}Scheduled async checkpoint save for /x.ckpt",
        f"{NEMO}Async checkpoint save for step 100 (/x.ckpt) finalized successfully.",
        f"{NEMO}Pending async checkpoint saves. Finalizing them synchronously now",
        f"{NEMO}Async finalization time took 10.692 s",
        "straggler_det_callback:245] Async checkpointing detected, waiting for it to complete...",
        "  scheduled an async checkpoint save at iteration      50 to /x",
        "  async_save ...................................... True",
        "  async_save: true",
        "ckpt_async_save=True",
        "{'ckpt_async_save': True}",
    ],
)
@pytest.mark.parametrize("save", [SAVED, f"    save-checkpoint {DOTS}: (28.64, 28.85)"])
def test_where_saves_are_asynchronous_their_time_is_a_dispatch_only(mark: str, save: str) -> None:
    for lines in ((mark, save), (save, mark)):
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
def test_other_things_that_are_asynchronous_are_no_dispatch(line: str) -> None:
    (record,) = records(line, SAVED)
    assert not record.dispatched


@pytest.mark.parametrize(
    ("mode", "dispatched"),
    [
        ("", True),
        ('"async_mode": "disabled"', False),
        ("async_mode=disabled", False),
        ('"async_mode": "async"', True),
        ('"async_mode": "async_with_pinned_mem"', True),
        ('"async_mode": "disabled", then "async_mode": "async"', True),
    ],
)
@pytest.mark.parametrize("aside", ["", " (or staging if async is enabled)"])
@pytest.mark.parametrize("blank", [" ", ""])
def test_a_save_that_may_be_staging_only_is_a_dispatch_unless_the_mode_says_otherwise(
    mode: str, dispatched: bool, aside: str, blank: str
) -> None:
    blank = blank if aside else " "
    (record,) = records(mode, f"{TITAN}Finished saving the checkpoint{aside}{blank}in 11.46 seconds.")
    assert (record.seconds, record.dispatched) == (11.46, dispatched)


def test_a_timer_of_loading_counts_only_where_something_was_loaded() -> None:
    timer = f"55:     load-checkpoint {DOTS}: (0.82, 0.92)"
    assert records(timer) == ()
    loaded = records(LOADED_MEGATRON, timer)
    assert [(one.action, one.seconds) for one in loaded] == [
        (CheckpointAction.LOAD, None),
        (CheckpointAction.LOAD, 0.00092),
    ]


def test_a_checkpoint_belongs_to_the_part_that_saved_or_loaded_it() -> None:
    step = (
        "Training epoch 0, iteration {0}/1 | global_step: {0} | reduced_train_loss: 11 | train_step_timing in s: 1.00"
    )
    part = [LOADED, step.format(0), SAVED, step.format(1), SAVED]
    found = records(SAVED, *part, *part, LOADED)
    parts = [(one.action, one.part) for one in found]
    assert parts == [
        (CheckpointAction.SAVE, 0),
        *(
            (action, number)
            for number in (1, 2)
            for action in (CheckpointAction.LOAD, CheckpointAction.SAVE, CheckpointAction.SAVE)
        ),
        (CheckpointAction.LOAD, 0),
    ]


@pytest.mark.slow
def test_more_records_than_are_kept_are_counted() -> None:
    found = parse_blocks([f"{SAVED}\n".encode() * (checkpoints.KEPT + 7)]).checkpoints
    assert (len(found.records), found.unread) == (checkpoints.KEPT, 7)


def test_the_rank_is_that_of_the_prefix_else_that_of_the_record() -> None:
    own, prefixed = records(SAVED, f"[rank3]:{TITAN}Finished loading the checkpoint in 4.84 seconds.")
    assert (own.rank, prefixed.rank) == ("0", "rank3")


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_the_blocks_that_a_log_is_read_in_change_nothing(size: int) -> None:
    data = f"{BRIDGE}\n{SAVED}\n{LOADED_MEGATRON}\n    load-checkpoint {DOTS}: 1.5\nasync_mode=disabled\n".encode() * 3
    blocks = [data[place : place + size] for place in range(0, len(data), size)]
    assert parse_blocks(blocks).checkpoints == parse_blocks([data]).checkpoints


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "saves", "loads", "dispatched"),
    [
        # grep -nE 'Save duration|Time spent in load|save-checkpoint \.|Finished (saving|loading) the', Megatron in ms
        ("nemo2/evo2_slow_after_checkpoint_excerpt.out", [11.378, 23.107, 1.718, 1.136], [2.181], True),
        ("megatron/1861140.out", [17.92559, 1.06341, 1.01798, 1.11889, 1.09802, 1.09203], [], False),
        ("megatron/2624605.out", [28.79885, 30.97608, 29.77519, 30.42471], [], False),
        ("torchtitan/resumed_killed.out", [11.46], [4.84], True),
        ("nemo2/resiliency_five_runs.out", [], [], False),
        ("maxtext/nan_loss.out", [], [], False),
    ],
)
def test_real_logs(name: str, saves: list[float], loads: list[float], dispatched: bool) -> None:
    found = read_log(shared(f"logs/{name}")).checkpoints.records
    timed = [one for one in found if one.seconds is not None]
    assert [one.seconds for one in timed if one.action == CheckpointAction.SAVE] == saves
    assert [one.seconds for one in timed if one.action == CheckpointAction.LOAD] == loads
    assert {one.dispatched for one in timed if one.action == CheckpointAction.SAVE} == (
        {dispatched} if saves else set()
    )
    assert not any(one.torn for one in found)


def test_the_saves_of_a_real_asynchronous_run() -> None:
    """grep -c 'Save duration' gives 10; the largest is 0.140 s, and each is followed by 'Scheduled async'."""
    found = read_log(shared("logs/nemo2/geneformer_500_steps.out")).checkpoints.records
    times = [one.seconds for one in found if one.seconds is not None]
    assert all(one.dispatched for one in found if one.seconds is not None)
    assert (len(times), max(times)) == (10, 0.14)
