"""How far a growing log is, from its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from parse.written import bar, maxtext_run, nemo2, nemo2_run

from pytest_llmbench.parse.tail import TAIL_BYTES, LastStep, last_step


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "log-x_1_0.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (nemo2_run(0, 22), LastStep(23, 50, 6.061)),
        (nemo2_run(0, 49), LastStep(50, 50, 6.061)),
        (bar(11, "10.00", "24.00") + "\r" + bar(12, "11.00", "24.00"), LastStep(12, 50, 24.0)),
        (maxtext_run(0, 6), LastStep(7, None, 7.908)),
        ("Config param steps: 30\n" + maxtext_run(0, 6), LastStep(7, 30, 7.908)),
        ("starting up\n", None),
        ("", None),
        (b"\x00\xff" * 5000, None),
    ],
)
def test_the_last_step_of_every_dialect(tmp_path: Path, text: str | bytes, expected: LastStep | None) -> None:
    assert last_step(written(tmp_path, text)) == expected


def test_a_line_that_is_being_written_does_not_count_with_half_a_number(tmp_path: Path) -> None:
    whole = nemo2_run(0, 9)
    for cut in range(len(whole) - len(nemo2(9)), len(whole)):
        found = last_step(written(tmp_path, whole[:cut]))
        assert found is not None
        assert found in (LastStep(9, 50, 6.061), LastStep(10, 50, 6.061)), whole[cut - 20 : cut]


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    noise = "NCCL INFO nothing of interest\n" * 100_000
    path = written(tmp_path, nemo2_run(0, 3) + noise + nemo2_run(4, 7))
    assert path.stat().st_size > 10 * TAIL_BYTES
    assert last_step(path) == LastStep(8, 50, 6.061)
    assert last_step(written(tmp_path, nemo2_run(0, 3) + noise)) is None


def test_a_requeued_run_begins_again(tmp_path: Path) -> None:
    text = nemo2_run(0, 30) + "Copying Trainer's 'max_steps' (50) to the optimizer\n" + nemo2_run(0, 4)
    found = last_step(written(tmp_path, text))
    assert found is not None
    assert found.done == 5


def test_times_that_no_step_can_take_estimate_nothing(tmp_path: Path) -> None:
    assert last_step(written(tmp_path, nemo2(0, "0.0"))) is None
    assert last_step(written(tmp_path, nemo2(0, "0.0") + nemo2(1, "6.061"))) == LastStep(2, 50, 6.061)


def test_what_is_no_log_is_no_error(tmp_path: Path) -> None:
    assert last_step(tmp_path / "missing.out") is None
    assert last_step(tmp_path) is None
