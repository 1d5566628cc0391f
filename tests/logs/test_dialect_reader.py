"""Reading by columns gives the same result as reading by records.

Columns are only read if all records have the same layout.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from generator.lines import step_time_line, torchtitan_line
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exact_comparison import to_comparable
from support.written_logs import bar, maxtext_run, nemo2, nemo2_run

from pytest_llmbench.logs import dialect_reader
from pytest_llmbench.logs.log_reader import parse_blocks

NEMO_START = "Copying Trainer's 'max_steps' (50) to the optimizer\n"
NEMO_END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"


def bars(count: int, prefix: str = "") -> str:
    """Return bars as NeMo 1 prints them: each step is printed twice.

    First with its own bar, then with the bar of the next step.
    """
    empty = f"{prefix}Epoch 0: :   2%|▏         | 1/50 [00:11<09:34]\n"
    lines = []
    for step in range(count):
        lines += [bar(step + n, f"{step}.000", f"{2 + step / 8:.3f}") for n in (1, 2)]
    return empty + "".join(f"{prefix}{line}\n" for line in lines[:-1])


def rate_line(step: int, rate: str = " | lr: 1e-05") -> str:
    """Return a NeMo 2 line that ends with a learning rate."""
    return (
        f"Training epoch 0, iteration {step}/49 | global_step: {step} | "
        f"train_step_timing in s: 6.061 | other: 1{rate}\n"
    )


def iterations(
    begin: int, end: int, prefix: str = " ", gap: int = 0, more: str = ""
) -> str:
    """Return Megatron's lines of the steps `begin` to `end`, one each 1.5 s.

    `{}` in the prefix is the time of day; after step 5 it jumps by `gap` seconds.
    """
    lines = []
    for step in range(begin, end + 1):
        seconds = 30 + 1.5 * step + (gap if step > 5 else 0)
        stamp = f"10:{int(seconds) // 60:02}:{seconds % 60:09.6f}"
        lines.append(
            f"{prefix.replace('{}', stamp)}iteration {step:8}/      40 | consumed samples: {8 * step:12} | "
            f"elapsed time per iteration (ms): {1500 + step / 10:.1f} | learning rate: 3.0E-05 | "
            f"global batch size:     8 | lm loss: {10 - step / 8:.6E} | loss scale: 1.0 | grad norm: 1.275 | "
            f"{more}number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        )
    return "".join(lines)


def titan(begin: int, end: int, prefix: str = "[titan]", colours: bool = True) -> str:
    """Return torchtitan's lines of the steps `begin` to `end`, one each 1.5 s."""
    lines = []
    for step in range(begin, end + 1):
        time = datetime(2026, 11, 24, 10) + timedelta(seconds=1.5 * step)  # noqa: DTZ001
        line = torchtitan_line(
            time,
            step,
            loss=10 - step / 8,
            tokens_per_second=5110.0,
            tflops=299.8,
            colours=colours,
        )
        lines.append(line.replace("[titan]", prefix) + "\n")
    return "".join(lines)


def bridge(end: int) -> str:
    """Return the two lines of each step up to `end` of Megatron-Bridge."""
    pairs = [
        f"{iterations(step, step, STAMPED)}{step_time_line(1.5 + step / 1e4, 5.1)}\n"
        for step in range(1, end + 1)
    ]
    return "".join(pairs)


STAMPED = " [2026-11-24 {}] "
MEGATRON_START = "time to initialize megatron (seconds): 21.4\n"

UNIFORM = {
    "nemo2 with a rank": nemo2_run(0, 20, "9: [default3]: "),
    "nemo2, the first step without samples": nemo2(0, more="") + nemo2_run(1, 20),
    "nemo2, the first step without learning rate": rate_line(0, "")
    + "".join(rate_line(step) for step in range(1, 9)),
    "nemo2 with other lines between": nemo2_run(0, 3)
    + "saved\n"
    + nemo2_run(4, 9)
    + NEMO_END,
    "nemo2 in two attempts": NEMO_START
    + nemo2_run(0, 9)
    + NEMO_START
    + nemo2_run(0, 12),
    "nemo1": NEMO_START + bars(12) + NEMO_END,
    "megatron": MEGATRON_START + iterations(1, 20),
    "megatron with time stamps": iterations(1, 20, STAMPED),
    "megatron with a rank": iterations(1, 9, "3: [default3]:" + STAMPED),
    "megatron after a checkpoint save": iterations(1, 5, STAMPED)
    + "saving checkpoint at iteration 5 to /ckpt\n"
    + iterations(6, 9, STAMPED, gap=60),
    "megatron in two attempts": iterations(1, 9, STAMPED)
    + "loading checkpoint\n"
    + MEGATRON_START
    + iterations(5, 12, STAMPED, gap=90),
    "megatron, every fifth step": "".join(
        iterations(step, step, STAMPED) for step in range(5, 41, 5)
    ),
    "megatron, the first and every fifth step": "".join(
        iterations(step, step, STAMPED) for step in (1, *range(5, 41, 5))
    ),
    "megatron with a further loss": iterations(1, 9, more="mtp_1 loss: 9.1E+00 | "),
    "megatron with averages": iterations(1, 9).replace(
        " | learning", "/1501.0 | learning"
    ),
    "megatron with consumed tokens": "".join(
        iterations(step, step, more=f"consumed tokens: {step * 16384:12} | ")
        for step in range(1, 12)
    ),
    "megatron with the text of another rank after a record": iterations(1, 9).replace(
        "iterations:   0 |\n", "iterations:   0 |[default3]:\n", 1
    ),
    "megatron with lines of saved checkpoints": iterations(1, 9, STAMPED)
    + "  successfully saved checkpoint from iteration       9 to /ckpt\n"
    + iterations(10, 12, STAMPED),
    "megatron with step times": bridge(9),
    "gpt-neox": iterations(1, 9, " samples/sec: 13.930 | "),
    "gpt-neox with approximate flops": iterations(
        1, 9, " samples/sec: 13.930 | ", more="approx flops per GPU: 37.3TFLOPS | "
    ),
    "torchtitan": titan(1, 20),
    "torchtitan without colours": titan(1, 20, colours=False),
    "torchtitan, every fifth step": "".join(
        titan(step, step) for step in (1, *range(5, 41, 5))
    ),
    "torchtitan with a rank": titan(1, 9, "[rank0]:[titan]"),
    "torchtitan in two attempts": titan(1, 9)
    + "Training starts at step 5\n"
    + titan(5, 20),
    "torchtitan with equal time stamps": titan(1, 2).replace(":01,500", ":03,000")
    + titan(3, 9),
    "maxtext": "Config param steps: 30\n" + maxtext_run(0, 29),
    "maxtext with time stamps": "".join(
        f"I1127 09:58:{step:02}.508358 140360008055680 metric_logger.py:265] "
        + maxtext_run(step, step)
        for step in range(30)
    ),
    "nemo2, one step with a time stamp": "2026-11-24 10:00:01 " + nemo2(0),
    "nemo2 with a validation and checkpoints": nemo2_run(0, 9)
    + "Successfully saved checkpoint from iteration       9 to /ckpt\n"
    + "Epoch 0, global step 9: 'reduced_train_loss' reached 8.83520\n"
    + nemo2_run(10, 12).replace("\n", " | val_loss: 9.014\n"),
}
MIXED = {
    "a repeated step": nemo2_run(0, 9) + nemo2_run(9, 12),
    "two ranks": nemo2_run(0, 9, "0: ") + nemo2_run(10, 12, "1: "),
    "steps after the end": nemo2_run(0, 9) + NEMO_END + nemo2_run(10, 12),
    "a non-finite loss": nemo2_run(0, 9)
    + nemo2(10).replace("reduced_train_loss: ", "reduced_train_loss: nan"),
    "no line break at the end": nemo2_run(0, 9).removesuffix("\n"),
    "a number that continues on the next line": nemo2(0, more="")
    + "07 | consumed_samples: 4\n"
    + nemo2_run(1, 5),
    "another total": nemo2_run(0, 9) + nemo2_run(10, 12).replace("/49", "/59"),
    "carriage returns": bars(9).replace("\n", "\r"),
    "a bar with another time": bars(5) + bar(5, "4.000", "9.000") + "\n",
    "megatron with an infinite further loss": iterations(
        1, 9, more="mtp_1 loss: inf | "
    ),
    "megatron with a skipped step": iterations(1, 9).replace(
        "skipped iterations:   0", "skipped iterations:   1", 1
    ),
    "megatron without a field": iterations(1, 9)
    + iterations(10, 12, more="num zeros: 0.0 | "),
    "megatron, a record without its head": iterations(1, 9).replace(
        "iteration        4/      40 | ", ""
    ),
    "megatron of two ranks": iterations(1, 9, "3: ") + iterations(10, 12, "4: "),
    "megatron of two ranks that print in turn": "".join(
        iterations(step, step, rank) for step in (8, 9, 10) for rank in ("3: ", "4: ")
    ),
    "megatron, a line without a stamp": iterations(1, 9, STAMPED) + iterations(10, 12),
    "megatron with a repeated step": iterations(1, 9) + iterations(9, 12),
    "megatron with a step time too many": bridge(3)
    + "Step Time : 1.50s GPU utilization: 5.0MODEL_TFLOP/s/GPU\n",
    "megatron with other step times": bridge(9).replace("Time : 1.50", "Time : 1.70"),
    "megatron with stamped step times": bridge(9).replace(
        "Step", "2026-11-24 10:00:01 Step"
    ),
    "megatron with a time field after a record": iterations(1, 9).replace(
        "0 |\n", "0 | elapsed time per iteration (ms): 5\n", 1
    ),
    "torchtitan with a validation": titan(1, 9)
    + titan(9, 9).replace("step:", "validate step:")
    + titan(10, 20),
    "torchtitan with a repeated step": titan(1, 9) + titan(9, 12),
    "torchtitan, a line without a stamp": titan(1, 9)
    + titan(10, 12).replace("2026", "26"),
    "torchtitan of two ranks": titan(1, 9, "[rank0]:") + titan(10, 12, "[rank1]:"),
    "torchtitan with a clock that was set": titan(1, 9)
    + titan(10, 20).replace(" 10:", " 11:"),
    "torchtitan with a digit before the stamp": titan(1, 9).replace(" 2026", " 12026"),
    "maxtext, some lines with time stamps": maxtext_run(0, 9)
    + f"I1127 09:58:20.508358 140360 metric_logger.py:265] {maxtext_run(10, 10)}",
    "nemo2 in two attempts, the second with time stamps": nemo2_run(0, 9)
    + NEMO_START
    + nemo2_run(0, 9, "2026-11-24 10:00:01 "),
    "megatron in two attempts with other time stamps": iterations(1, 9, STAMPED)
    + MEGATRON_START
    + iterations(1, 9, "I1124 10:00:01.5 "),
    "nemo2 with a failed validation": nemo2_run(0, 9)
    + nemo2(10).replace("\n", " | val_loss: nan\n"),
    "another dialect": nemo2_run(0, 9) + maxtext_run(10, 12),
}


def read_by_records(data: bytes) -> object:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect_reader, "read_segments", lambda *_: None)
        return to_comparable(parse_blocks([data]))


def read_by_columns(data: bytes) -> tuple[object, bool]:
    """Parse a log; also return True if it was read by columns."""
    calls = []
    read = dialect_reader.read_segments

    def spy(*arguments: object) -> dialect_reader.UniformSegments | None:
        segments = read(*arguments)  # type: ignore[arg-type]
        calls.append(segments is not None)
        return segments

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect_reader, "read_segments", spy)
        return to_comparable(parse_blocks([data])), calls == [True]


@pytest.mark.parametrize("name", [*UNIFORM, *MIXED])
def test_reading_by_columns_or_by_records_gives_equal_logs(
    name: str,
) -> None:
    data = (UNIFORM | MIXED)[name].encode()
    parsed, used_columns = read_by_columns(data)
    assert parsed == read_by_records(data)
    assert used_columns == (name in UNIFORM)


pieces = st.sampled_from(
    [
        "",
        "\n",
        "|",
        ", ",
        "nan",
        "9",
        ".",
        "e+03",
        "\0",
        "\r",
        "Epoch 0: ",
        "Training epoch 0, ",
        "=",
    ]
)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    text=st.sampled_from([*UNIFORM.values(), *MIXED.values()]),
    edits=st.lists(
        st.tuples(st.integers(0, 6000), st.integers(0, 30), pieces), max_size=3
    ),
)
def test_parsing_a_damaged_log_by_columns_and_by_records_gives_equal_logs(
    text: str, edits: list[tuple[int, int, str]]
) -> None:
    for offset, length, piece in edits:
        start = offset % len(text)
        text = text[:start] + piece + text[start + length :] or "\n"
    assert read_by_columns(text.encode())[0] == read_by_records(text.encode())
