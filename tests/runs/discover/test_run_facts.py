"""Facts about the configuration, collected from runs of any framework."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from support.builders import log, segment, steps
from support.written_logs import parse

from pytest_llmbench.core.log_records import ParsedLog, StatedField, Statement
from pytest_llmbench.core.run_records import AttemptFiles, RunFiles
from pytest_llmbench.runs.discover.run_facts import collect_facts


def collect(*logs: ParsedLog) -> dict[str, tuple[str, str]]:
    """Return the value and the source of each fact."""
    files = tuple(
        AttemptFiles(number, "/runs", f"log-x_7_{number}.out")
        for number in range(len(logs))
    )
    return {
        fact.name: (fact.text, fact.source)
        for fact in collect_facts(RunFiles("x_7", "/runs", files, ()), logs)
    }


def make_trainer_summary(runtime: str, rate: str) -> ParsedLog:
    """Return a log that contains only the summary of Hugging Face's Trainer."""
    return parse(
        f"{{'train_runtime': {runtime}, 'train_samples_per_second': 95.339, 'train_steps_per_second': {rate}, "
        "'train_loss': 1.5, 'epoch': 3.0}\n"
    )


@pytest.mark.parametrize(
    ("runtime", "rate", "count"),
    [("98.95", "0.051", "5"), ("2577.7505", "0.745", None)],
    ids=["sure", "1919 to 1922"],
)
def test_number_of_steps_is_a_fact_only_if_certain(
    runtime: str, rate: str, count: str | None
) -> None:
    assert (
        collect(make_trainer_summary(runtime, rate)).get("steps", (None, ""))[0]
        == count
    )


def test_batch_size_of_a_run_with_growing_batch_is_the_last_one() -> None:
    grows = segment(steps(global_batch_size=np.where(np.arange(50) < 10, 16.0, 32.0)))
    assert collect(log(grows))["batch of the steps"] == ("32", "its steps")
    assert "batch of the steps" not in collect(
        log(segment(steps(global_batch_size=np.full(50, np.nan))))
    )


@pytest.mark.parametrize(
    ("job_id", "size", "fact"),
    [
        ("1", "1", "1"),
        ("256", "256", "256"),
        ("18734", "run of job 18734", "run of job #"),
    ],
)
def test_batch_size_equal_to_the_job_id_is_not_generalised(
    job_id: str, size: str, fact: str
) -> None:
    part = replace(
        segment(steps()), stated=(Statement(StatedField.MICRO_BATCH, size, 5),)
    )
    run = RunFiles(
        "x",
        "/runs",
        (AttemptFiles(0, "/runs", "slurm.out"),),
        (),
        job_id=job_id,
    )
    facts = {facts.name: facts.text for facts in collect_facts(run, [log(part)])}
    assert facts[str(StatedField.MICRO_BATCH)] == fact
