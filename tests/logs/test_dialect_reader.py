"""Reading by columns: taken where records are alike, and then with the result of
reading them one by one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.compared import described
from support.written_logs import bar, maxtext_run, nemo2, nemo2_run

from pytest_llmbench.logs import dialect_reader
from pytest_llmbench.logs.log_reader import parse_blocks

NEMO_START = "Copying Trainer's 'max_steps' (50) to the optimizer\n"
NEMO_END = "`Trainer.fit` stopped: `max_steps=50` reached.\n"


def bars(count: int, prefix: str = "") -> str:
    """Bars as NeMo 1 prints them: each step with the bar of its own step, and again
    with the next one."""
    empty = f"{prefix}Epoch 0: :   2%|▏         | 1/50 [00:11<09:34]\n"
    lines = []
    for step in range(count):
        lines += [bar(step + n, f"{step}.000", f"{2 + step / 8:.3f}") for n in (1, 2)]
    return empty + "".join(f"{prefix}{line}\n" for line in lines[:-1])


def rated(step: int, rate: str = " | lr: 1e-05") -> str:
    """Write a NeMo 2 line that ends with a learning rate."""
    return (
        f"Training epoch 0, iteration {step}/49 | global_step: {step} | "
        f"train_step_timing in s: 6.061 | other: 1{rate}\n"
    )


ALIKE = {
    "nemo2 with a rank": nemo2_run(0, 20, "9: [default3]: "),
    "nemo2, the first step without samples": nemo2(0, more="") + nemo2_run(1, 20),
    "nemo2, the first step without learning rate": rated(0, "")
    + "".join(rated(step) for step in range(1, 9)),
    "nemo2 with other lines between": nemo2_run(0, 3)
    + "saved\n"
    + nemo2_run(4, 9)
    + NEMO_END,
    "nemo2 in two attempts": NEMO_START
    + nemo2_run(0, 9)
    + NEMO_START
    + nemo2_run(0, 12),
    "nemo1": NEMO_START + bars(12) + NEMO_END,
    "maxtext": "Config param steps: 30\n" + maxtext_run(0, 29),
}
OTHERWISE = {
    "a step again": nemo2_run(0, 9) + nemo2_run(9, 12),
    "two ranks": nemo2_run(0, 9, "0: ") + nemo2_run(10, 12, "1: "),
    "steps after the end": nemo2_run(0, 9) + NEMO_END + nemo2_run(10, 12),
    "a loss that is no number": nemo2_run(0, 9)
    + nemo2(10).replace("reduced_train_loss: ", "reduced_train_loss: nan"),
    "no end of the last line": nemo2_run(0, 9).removesuffix("\n"),
    "a number that continues on the next line": nemo2(0, more="")
    + "07 | consumed_samples: 4\n"
    + nemo2_run(1, 5),
    "another total": nemo2_run(0, 9) + nemo2_run(10, 12).replace("/49", "/59"),
    "carriage returns": bars(9).replace("\n", "\r"),
    "a bar with another time": bars(5) + bar(5, "4.000", "9.000") + "\n",
    "another dialect": nemo2_run(0, 9) + maxtext_run(10, 12),
}


def one_by_one(data: bytes) -> object:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect_reader, "read_segments", lambda *_: None)
        return described(parse_blocks([data]))


def by_columns(data: bytes) -> tuple[object, bool]:
    """What a log says, and whether it was read by columns."""
    taken = []
    read = dialect_reader.read_segments

    def watched(*given: object) -> dialect_reader.UniformSegments | None:
        parts = read(*given)  # type: ignore[arg-type]
        taken.append(parts is not None)
        return parts

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialect_reader, "read_segments", watched)
        return described(parse_blocks([data])), taken == [True]


@pytest.mark.parametrize("name", [*ALIKE, *OTHERWISE])
def test_columns_are_read_where_records_are_alike_with_the_same_result(
    name: str,
) -> None:
    data = (ALIKE | OTHERWISE)[name].encode()
    said, taken = by_columns(data)
    assert said == one_by_one(data)
    assert taken == (name in ALIKE)


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
    text=st.sampled_from([*ALIKE.values(), *OTHERWISE.values()]),
    edits=st.lists(
        st.tuples(st.integers(0, 6000), st.integers(0, 30), pieces), max_size=3
    ),
)
def test_columns_of_a_damaged_log_match_its_records(
    text: str, edits: list[tuple[int, int, str]]
) -> None:
    for place, length, piece in edits:
        begin = place % len(text)
        text = text[:begin] + piece + text[begin + length :] or "\n"
    assert by_columns(text.encode())[0] == one_by_one(text.encode())
