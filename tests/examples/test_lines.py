"""The generator formats log lines exactly as the recipe documents print them."""

from __future__ import annotations

from datetime import datetime

import pytest
from generator import lines
from support.shared_data import shared

GROK_24_11 = (
    "Epoch 0: : 100%|██████████| 50/50 [23:22<00:00, reduced_train_loss=0.186, global_step=49.00, "
    "consumed_samples=51200.0, train_step_timing in s=24.00]"
)
NEMOTRON_25_01 = (
    "Epoch 0: : 100%|██████████| 100/100 [07:57<00:00, reduced_train_loss=7.310, global_step=99.00, "
    "consumed_samples=25600.0, train_step_timing in s=3.590]"
)
LLAMA_25_04 = (
    "Training epoch 0, iteration 49/49 | lr: 7.496e-06 | global_batch_size: 128 | global_step: 49 | "
    "peak_memory_usage: 70833405952 | memory_allocated: 44271689728 | reduced_train_loss: 11.96 | "
    "train_step_timing in s: 12.39 | consumed_samples: 6400"
)
MAXTEXT_24_11 = (
    "completed step: 49, seconds: 7.908, TFLOP/s/device: 460.480, Tokens/s/device: 1035.970, "
    "total_weights: 524288, loss: 0.000"
)
SAVE = (
    "[NeMo I 2025-04-11 14:48:45 nemo_logging:393] Global Checkpoint Save : Rank: 0 : Iteration: 50 : "
    "Start time: 1744408121.151s : Save duration: 4.389s"
)
LOAD = (
    "[NeMo I 2025-04-11 14:46:18 nemo_logging:393] Global Checkpoint Load : Rank : 0 : "
    "Start time : 1744407969.270s : Time spent in load_checkpoint: 9.712s"
)
NCCL = (
    "[7] NCCL INFO AllReduce: opCount 2 sendbuff 0x7ffb4713c200 recvbuff 0x7ffb4713c200 count 1 datatype 1 op 0 root 0 "
    "comm 0x55556b100660 [nranks=128] stream 0x5555630c58b0"
)


def bar_values(
    loss: float, step: float, samples: float, seconds: float
) -> dict[str, float]:
    return {
        "reduced_train_loss": loss,
        "global_step": step,
        "consumed_samples": samples,
        "train_step_timing in s": seconds,
    }


WRITTEN = {
    "000_e0e04c4c085ed8d6.txt": [
        (
            GROK_24_11,
            lines.nemo1_bar(
                50, 50, 1402.4, 0.0, bar_values(0.18612, 49.0, 51200.0, 24.03)
            ),
        ),
    ],
    "001_74aabd83c4a30565.txt": [
        (
            MAXTEXT_24_11,
            lines.maxtext_line(
                49,
                7.90757,
                tflops=460.48,
                tokens_per_second=1035.97,
                total_weights=524288,
                loss=0.0,
            ),
        ),
    ],
    "002_e4d1b25d7aef7166.txt": [
        (NCCL, lines.nccl_collective(7, "AllReduce", 2, 1, 128))
    ],
    "003_6c8318a40332ad32.txt": [
        (
            NEMOTRON_25_01,
            lines.nemo1_bar(
                100, 100, 477.9, 0.0, bar_values(7.3099, 99.0, 25600.0, 3.5912)
            ),
        ),
    ],
    "004_a73f50c75f1f041c.txt": [
        (
            LLAMA_25_04,
            lines.nemo2_line(
                49,
                50,
                {
                    "lr": 0.0003 * 50 / 2001,
                    "global_batch_size": 128,
                    "global_step": 49,
                    "peak_memory_usage": 70833405952,
                    "memory_allocated": 44271689728,
                    "reduced_train_loss": 11.9612,
                    "train_step_timing in s": 12.3876,
                    "consumed_samples": 6400,
                },
            ),
        ),
        (
            SAVE,
            lines.checkpoint_save(
                datetime(2025, 4, 11, 14, 48, 45),  # noqa: DTZ001
                50,
                1744408121.151,
                4.389,
            ),
        ),
        (
            LOAD,
            lines.checkpoint_load(
                datetime(2025, 4, 11, 14, 46, 18),  # noqa: DTZ001
                1744407969.27,
                9.712,
            ),
        ),
    ],
}


@pytest.mark.parametrize(
    ("printed", "written"), [pair for pairs in WRITTEN.values() for pair in pairs]
)
def test_log_lines_formatted_by_the_generator_equal_those_of_the_documents(
    printed: str, written: str
) -> None:
    assert written == printed


@pytest.mark.parametrize("document", WRITTEN)
def test_expected_log_lines_of_these_tests_occur_in_the_documents(
    document: str,
) -> None:
    """The expected lines of this module are copied from the documents."""
    text = shared(f"recipes/{document}").read_text(encoding="utf-8")
    for printed, _ in WRITTEN[document]:
        assert printed in text
