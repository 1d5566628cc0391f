"""Frameworks without published baselines: record one day, judge the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from support.event_files import argument, event, event_file
from support.event_files import run as write_events
from support.sessions import Judge, Write

from pytest_llmbench.core.baseline_records import Baseline


def write_state(seconds: Sequence[float]) -> str:
    total = {
        "epoch": 1.0,
        "step": len(seconds),
        "train_loss": 2.0,
        "train_runtime": round(sum(seconds), 4),
    }
    rates = {
        "train_samples_per_second": 1.0,
        "train_steps_per_second": round(len(seconds) / sum(seconds), 3),
    }
    steps = [
        {"grad_norm": 1.0, "learning_rate": 1e-5, "loss": 2.0, "step": step}
        for step in range(10, 101, 10)
    ]
    return json.dumps(
        {"global_step": len(seconds), "log_history": [*steps, total | rates]}, indent=2
    )


def write_llm_c(seconds: Sequence[float]) -> str:
    return "".join(
        f"step {step:4}/{len(seconds)} | loss {9 - step / 100:.6f} (+0.19z)| norm 0.27 (+3.74z)| lr 1.79e-05 | "
        f"{1000 * value:.2f} ms | 31.1% bf16 MFU | 124285 tok/s\n"
        for step, value in enumerate(seconds, 1)
    )


def write_table(seconds: Sequence[float]) -> str:
    rows = [f"0,{step},{value},2.5" for step, value in enumerate(seconds)]
    return "\n".join(
        ["epoch,step,train_step_timing in s,reduced_train_loss", *rows, ""]
    )


WRITERS: dict[str, tuple[str, Callable[[Sequence[float]], str | bytes]]] = {
    "trainer-state": ("trainer_state.json", write_state),
    "llm.c": ("main.log", write_llm_c),
    "tensorboard": (
        "events.out.tfevents.18000000{night}.node{night}.7",
        lambda times: write_events(times, len(times)),
    ),
    "lightning": ("metrics.csv", write_table),
}
NIGHTS = (
    (1.0, {"PASS", "INCONCLUSIVE"}, "passed"),
    (1.12, {"REGRESSION", "INCONCLUSIVE"}, "failed"),
)


def write(root: Path, name: str, day: int, slower: float) -> str:
    """Write the run of one day; its steps vary by 0.3 %."""
    random = Random(day)  # noqa: S311 (a test)
    file, text = WRITERS[name]
    data = text([slower * random.gauss(2.0, 0.006) for _ in range(200)])
    path = root / f"night{day}" / "elm_7b" / file.format(night=day)
    path.parent.mkdir(parents=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return f"--llmb-logs={root / f'night{day}'}"


@pytest.mark.slow
def test_runs_match_although_their_step_counts_from_rounded_rates_differ(
    judged: Judge, tmp_path: Path
) -> None:
    """60 steps in 1,205 s are 0.05 a second, as no other number is; in 1,189 s they are
    0.05, too, as 59 would be."""
    for day, (runtime, rate) in enumerate(((1205.0, 0.05), (1189.0, 0.05))):
        values = {
            "train_runtime": runtime,
            "train_steps_per_second": rate,
            "train_loss": 1.5,
            "epoch": 1.0,
        }
        path = tmp_path / f"night{day}" / "elm_7b" / "train.log"
        path.parent.mkdir(parents=True)
        path.write_text(f"{values}\n")
    judged(f"--llmb-logs={tmp_path / 'night0'}", f"--llmb-record={tmp_path / 'own'}")
    session = judged(
        f"--llmb-logs={tmp_path / 'night1'}",
        f"--llmb-baselines={tmp_path / 'own'}",
        "-k",
        "elm",
    )
    assert session.verdicts["elm_7b-own-unknown-unknown-unknown"] in {
        "PASS",
        "INCONCLUSIVE",
    }
    assert session.statuses["elm_7b-own-unknown-unknown-unknown"] == "passed"


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_record_then_judge_works_for_each_framework(
    judged: Judge, tmp_path: Path, name: str
) -> None:
    recorded = judged(
        write(tmp_path, name, 10, 1.0), f"--llmb-record={tmp_path / 'own'}"
    )
    (row,) = [
        row for row, verdict in recorded.verdicts.items() if verdict == "RECORDED"
    ]
    assert row.startswith("elm_7b-own-")
    for day, (slower, expected, status) in enumerate(NIGHTS, 11):
        session = judged(
            write(tmp_path, name, day, slower),
            f"--llmb-baselines={tmp_path / 'own'}",
            "-k",
            "elm",
        )
        assert session.verdicts[row] in expected
        assert session.statuses[row] == status
        measured = session.described[row]["metrics"]["step_time_seconds"]["value"]
        assert measured == pytest.approx(2.0 * slower, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begun", "verdict"),
    [({"train_iters": "200"}, "INVALID"), ({}, "PASS")],
    ids=["training", "something else"],
)
def test_dead_run_next_to_a_finished_run_is_invalid(
    judged: Judge, tmp_path: Path, begun: dict[str, str], verdict: str
) -> None:
    """Nobody requeues a finished run. An event file that says nothing of a run may be
    of an evaluation."""
    judged(write(tmp_path, "tensorboard", 10, 1.0), f"--llmb-record={tmp_path / 'own'}")
    night = write(tmp_path, "tensorboard", 11, 1.0)
    later = tmp_path / "night11" / "elm_7b" / "events.out.tfevents.1900000011.node11.7"
    later.write_bytes(
        event_file(*(event(0, argument(*pair)) for pair in begun.items()))
    )
    session = judged(night, f"--llmb-baselines={tmp_path / 'own'}", "-k", "elm")
    (row,) = [row for row in session.verdicts if row.startswith("elm")]
    assert (session.verdicts[row], session.statuses[row] == "passed") == (
        verdict,
        verdict == "PASS",
    )


@pytest.mark.slow
def test_metrics_file_is_judged_next_to_another_log(
    judged: Judge, generated: Write, baselines: dict[str, Baseline], tmp_path: Path
) -> None:
    recorded = judged(
        write(tmp_path, "lightning", 10, 1.0), f"--llmb-record={tmp_path / 'own'}"
    )
    (row,) = [
        row for row, verdict in recorded.verdicts.items() if verdict == "RECORDED"
    ]
    write(tmp_path, "lightning", 11, 1.5)
    other = next(iter(baselines))
    (tmp_path / "night11").rename(generated(other) / "night11")
    session = judged(
        f"--llmb-logs={tmp_path / 'runs'}", f"--llmb-baselines={tmp_path / 'own'}"
    )
    assert (session.verdicts[row], session.verdicts[other]) == ("REGRESSION", "PASS")
