"""The runs of `examples/experiments/`, each with its expected verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from generator.layouts import layout
from generator.plan import Plan
from generator.runs import write_plan
from pytest_llmbench.core.codes import Reason, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pytest_llmbench.core.baseline_records import Baseline

PASS = Verdict.PASS, Reason.WITHIN_TOLERANCE
REGRESSION = Verdict.REGRESSION, Reason.SLOWER_THAN_BOUND
CANNOT_TELL = Verdict.INCONCLUSIVE, Reason.CANNOT_TELL
IMPROVEMENT = Verdict.IMPROVEMENT, Reason.FASTER_THAN_BASELINE
DIVERGED = Verdict.INVALID, Reason.DIVERGED
INCOMPLETE = Verdict.INVALID, Reason.INCOMPLETE
PROFILED = Verdict.NOT_COMPARABLE, Reason.PROFILED
TRACED = Verdict.NOT_COMPARABLE, Reason.TRACED
CHECKPOINT_LOAD = Verdict.NOT_COMPARABLE, Reason.CHECKPOINT_LOAD
UNMATCHED = None, Reason.UNMATCHED
ONLY_NOT_COMPARABLE = Verdict.MISSING, Reason.ONLY_NOT_COMPARABLE


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run of the examples.

    `configuration` is the id of its baseline. `verdict` is the expected verdict and
    reason; the verdict is None if no shipped baseline matches. `options` are options of
    `Plan`.
    """

    configuration: str
    job_id: str
    started: datetime
    shows: str
    verdict: tuple[Verdict | None, Reason] = PASS
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def expected(self) -> Verdict | None:
        """The expected verdict of this run alone; None if no baseline matches."""
        return self.verdict[0]

    @property
    def reason(self) -> Reason:
        """The reason code of the verdict."""
        return self.verdict[1]

    def plan(self, baseline: Baseline) -> Plan:
        """Return the plan of this run, from the baseline of its configuration."""
        return Plan(baseline, job_id=self.job_id, started=self.started, **self.options)


def full_hour(year: int, month: int, day: int, hour: int) -> datetime:
    """Return a full hour, UTC."""
    return datetime(year, month, day, hour, tzinfo=UTC)


DAILY_FACTORS = (1.002, 0.999, 1.0005, 1.0015, 0.998, 1.0, 0.9975, 1.001, 0.9995)
"""Step times of the runs before the last run, relative to the documented step time."""


def daily_runs(
    configuration: str, first_job: int, first: datetime
) -> Iterator[Experiment]:
    """Yield one run per day with ordinary noise, and a last run that is 6 % slow."""
    for day, factor in enumerate(DAILY_FACTORS):
        shows = f"day {day + 1} of {len(DAILY_FACTORS)}: history that shows how much runs differ"
        started = first + timedelta(days=day)
        yield Experiment(
            configuration,
            str(first_job + day),
            started,
            shows,
            options={"factor": factor},
        )
    shows = "6 % slow on the next day: a regression, given its history"
    last = first + timedelta(days=len(DAILY_FACTORS))
    yield Experiment(
        configuration,
        str(first_job + len(DAILY_FACTORS)),
        last,
        shows,
        REGRESSION,
        {"factor": 1.06},
    )


EXPERIMENTS = (
    Experiment(
        "grok1_314b-24.11-h100-bf16-512",
        "1388101",
        full_hour(2025, 1, 14, 8),
        "a clean run, progress bars only",
    ),
    Experiment(
        "grok1_314b-24.11-h100-fp8-512",
        "1388102",
        full_hour(2025, 1, 14, 9),
        "progress bars after carriage returns, each followed by a DLLogger record on the same line",
        options={"dllogger": True, "carriage_returns": True},
    ),
    Experiment(
        "grok1_314b-24.11-h100-bf16-8",
        "1388117",
        full_hour(2025, 1, 15, 8),
        "a proxy: fewer layers, a shorter sequence; 24.03 s printed as 24.00 and 24.10",
    ),
    Experiment(
        "grok1_314b-24.11-h100-fp8-256",
        "1388120",
        full_hour(2025, 1, 15, 10),
        "killed at its time limit after step 27; only the .err file states the reason",
        INCOMPLETE,
        {"ending": "time-limit", "cut": 28},
    ),
    Experiment(
        "maxtext_llama2_70b-24.11-h100-bf16-64",
        "1407993",
        full_hour(2025, 1, 28, 14),
        "file name as in the document; 15 profiling steps precede the 50 measured steps",
        options={"document_name": True},
    ),
    Experiment(
        "maxtext_llama2_70b-24.11-h100-fp8-128",
        "1407998",
        full_hour(2025, 1, 28, 16),
        "steps 1 and 2 are impossibly fast (asynchronous dispatch), outside the window",
        options={"dispatch_artefact": True},
    ),
    Experiment(
        "maxtext_llama2_70b-24.11-h100-bf16-256",
        "1408011",
        full_hour(2025, 1, 29, 7),
        "two processes print every step",
        options={"ranks": ("0: ", "1: ")},
    ),
    Experiment(
        "nemotron4_340b-25.01-h100-bf16-128",
        "1452207",
        full_hour(2025, 3, 4, 6),
        "a clean run",
    ),
    Experiment(
        "nemotron4_340b-25.01-h100-fp8-256",
        "1452210",
        full_hour(2025, 3, 4, 7),
        "requeued after a node failure; one file contains both attempts",
        options={"restarts": 1, "cut": 22},
    ),
    Experiment(
        "nemotron4_340b-25.01-h100-bf16-1024",
        "1452219",
        full_hour(2025, 3, 5, 6),
        "an NCCL trace, in a separate folder",
        TRACED,
        {"traced": True},
    ),
    Experiment(
        "llama3.1_8b-25.04-h100-bf16-8",
        "1530003",
        full_hour(2025, 5, 12, 8),
        "a clean run",
    ),
    Experiment(
        "llama3.1_8b-25.04-h100-fp8-16",
        "1530004",
        full_hour(2025, 5, 12, 9),
        "a clean run that saved a checkpoint at its end",
        options={"checkpoint": "save"},
    ),
    Experiment(
        "llama3.1_8b-25.04-h100-bf16-32",
        "1530018",
        full_hour(2025, 5, 13, 9),
        "a checkpoint was loaded and one step done to verify it",
        CHECKPOINT_LOAD,
        {"checkpoint": "load"},
    ),
    Experiment(
        "llama3.1_70b-25.04-h100-bf16-64",
        "1530007",
        full_hour(2025, 5, 12, 13),
        "12 % slow, but older than the next run: history",
        REGRESSION,
        {"factor": 1.12},
    ),
    Experiment(
        "llama3.1_70b-25.04-h100-bf16-64",
        "1561142",
        full_hour(2025, 6, 9, 13),
        "the newest run of its configuration; a straggler on the last step alone",
        options={"last_step_factor": 1.4},
    ),
    Experiment(
        "llama3.1_70b-25.04-h100-fp8-256",
        "1561150",
        full_hour(2025, 6, 9, 15),
        "6 % slow, without a history of the noise: fails by the literal rule",
        CANNOT_TELL,
        {"factor": 1.06},
    ),
    Experiment(
        "llama3.1_70b-25.04-h100-fp8-64",
        "1561158",
        full_hour(2025, 6, 10, 7),
        "profiled with Nsight Systems: 25 steps, a separate task folder",
        PROFILED,
        {"profiled": True},
    ),
    *daily_runs("llama3.1_8b-25.04-h100-fp8-64", 1561201, full_hour(2025, 6, 11, 2)),
    Experiment(
        "llama3.1_405b-25.04-h100-bf16-512",
        "1561163",
        full_hour(2025, 6, 10, 11),
        "requeued after a node failure: attempt 0 is truncated, attempt 1 complete, one file each",
        options={"restarts": 1, "cut": 17},
    ),
    Experiment(
        "llama3.1_405b-25.04-h100-fp8-32",
        "1561170",
        full_hour(2025, 6, 10, 18),
        "a clean run of a proxy",
    ),
    Experiment(
        "grok1_314b-25.05-gb200-bf16-128",
        "1640021",
        full_hour(2025, 7, 21, 5),
        "a clean run with the launcher's metadata and the batch script's output",
        options={"sbatch": "script"},
    ),
    Experiment(
        "grok1_314b-25.05-gb200-bf16-256",
        "1640022",
        full_hour(2025, 7, 21, 7),
        "names as in the document: the experiment name contains the configuration, logs have no job id",
        options={
            "document_name": True,
            "sbatch": "script",
            "experiment": "pretraining_grok1_314b_bf16_256_tp4_pp1_cp1_vp1_mbs1_gbs512",
        },
    ),
    Experiment(
        "grok1_314b-25.05-gb200-fp8-128",
        "1640025",
        full_hour(2025, 7, 22, 5),
        "a clean run, the newer spelling of experiment names",
        options={
            "experiment": "pretrain_grok1_314b_fp8_gpus128_tp4_pp1_cp1_vp1_mbs1_gbs256"
        },
    ),
    Experiment(
        "grok1_314b-25.05-gb200-fp8-256",
        "1640026",
        full_hour(2025, 7, 22, 7),
        "the loss is NaN from step 31 on; the step time is perfect",
        DIVERGED,
        {"ending": "diverged", "cut": 31},
    ),
    Experiment(
        "grok1_314b-25.05-gb200-fp8-512",
        "1640040",
        full_hour(2025, 7, 23, 5),
        "profiled with Nsight Systems: all 50 steps, shown by the metadata and nsys_profile/",
        PROFILED,
        {"profiled": True},
    ),
    Experiment(
        "grok1_314b-25.05-gb200-bf16-512",
        "1640041",
        full_hour(2025, 7, 23, 7),
        "an NCCL trace within the ordinary log",
        TRACED,
        {"traced": True},
    ),
    Experiment(
        "grok1_314b-25.05-h100-bf16-512",
        "1655310",
        full_hour(2025, 8, 4, 6),
        "the attached launcher repeated every line in sbatch_*.out",
        options={"sbatch": "copy"},
    ),
    Experiment(
        "grok1_314b-25.05-h100-fp8-512",
        "1655311",
        full_hour(2025, 8, 4, 8),
        "7 % faster than documented",
        IMPROVEMENT,
        {"factor": 0.93},
    ),
    Experiment(
        "grok1_314b-25.05-gb200-fp8-128",
        "2210007",
        full_hour(2026, 7, 2, 6),
        "release 26.06, which has no baseline, in the newer launcher's folders",
        UNMATCHED,
        {"release": "26.06", "layout": "launcher"},
    ),
)


def write_experiments(
    root: Path, baselines: Mapping[str, Baseline], *, replace: bool = False
) -> None:
    """Write every example under `root`; `baselines` are the shipped ones by id."""
    for experiment in EXPERIMENTS:
        write_plan(
            root, experiment.plan(baselines[experiment.configuration]), replace=replace
        )


def verdicts(
    experiments: Iterable[Experiment] = EXPERIMENTS,
) -> dict[str, tuple[Verdict, Reason]]:
    """Return the expected verdict of each configuration that has runs, by id.

    The newest comparable run decides. A configuration without comparable runs is
    missing.
    """
    expected: dict[str, tuple[Verdict, Reason]] = {}
    for experiment in sorted(experiments, key=lambda run: run.started):
        if experiment.expected is Verdict.NOT_COMPARABLE:
            expected.setdefault(experiment.configuration, ONLY_NOT_COMPARABLE)
        elif experiment.expected is not None:
            expected[experiment.configuration] = experiment.expected, experiment.reason
    return expected


def table(baselines: Mapping[str, Baseline]) -> str:
    """Return the table of the README: log, configuration, purpose and expected verdict."""
    rows = [
        "| job | configuration | what it shows | verdict on the run |",
        "|---|---|---|---|",
    ]
    for experiment in EXPERIMENTS:
        log = layout(experiment.plan(baselines[experiment.configuration])).logs[-1]
        configuration = (
            f"`{experiment.configuration}`" if experiment.expected else "none"
        )
        verdict = f"{experiment.expected or 'none'} ({experiment.reason})"
        rows.append(
            f"| [{experiment.job_id}](experiments/{log}) | {configuration} | {experiment.shows} | {verdict} |"
        )
    return "\n".join(rows) + "\n"
