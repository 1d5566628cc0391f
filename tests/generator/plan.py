"""The plan of one run: configuration, speed, ending and file layout."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING, Literal

from generator import series

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline

Ending = Literal["finished", "diverged", "time-limit", "killed"]
LayoutName = Literal[
    "results", "experiments", "workloads", "launcher", "sbatch", "local"
]
STARTED = datetime(2025, 6, 2, 3, 0, 0, tzinfo=UTC)
START_UP = timedelta(seconds=95)
BETWEEN_ATTEMPTS = timedelta(seconds=300)
PROFILED_STEPS = {"nemo1": 30, "experiments": 25}
TRACED_STEPS = 5
REQUEUED = "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"


def release_number(release: str) -> tuple[int, ...]:
    """Return a release as comparable numbers: (25, 5, 4) for `25.05.04`."""
    return tuple(int(part) for part in release.split("."))


@dataclass(frozen=True)
class Plan:
    """All options that determine the files of a run.

    Equal plans write equal bytes.

    factor: mean step time of the window / step time of the baseline.
    last_step_factor: last step / steady step.
    seconds: the step times, instead of computed ones.
    noise: relative standard deviation of a step. With 0.0 all steady steps are equal,
        or two neighbouring printed values if the mean is between them.
    cut: step at which an unfinished run ends, or from which the loss is NaN.
    restarts: number of truncated attempts before the last one.
    layout: layout name; the layout of the recipe by default.
    experiment: another experiment name.
    document_name: use the file name that the documents show.
    ranks: prefixes with which each step is printed.
    profiling_steps: steps of MaxText's first run.
    sbatch: write the output of the batch script next to a NeMo-Run log, or a copy of
        every line, as an attached launcher does.
    """

    baseline: Baseline
    factor: float = 1.0
    last_step_factor: float = 1.0
    seconds: tuple[float, ...] | None = None
    noise: float = 0.005
    steps: int | None = None
    ending: Ending = "finished"
    cut: int = 30
    restarts: int = 0
    started: datetime = STARTED
    job_id: str = "1400000"
    release: str = ""
    layout: LayoutName | None = None
    experiment: str = ""
    document_name: bool = False
    profiled: bool = False
    traced: bool = False
    checkpoint: Literal["", "save", "load"] = ""
    dllogger: bool = False
    carriage_returns: bool = False
    ranks: tuple[str, ...] = ("",)
    profiling_steps: int = 15
    dispatch_artefact: bool = False
    sbatch: Literal["", "script", "copy"] = ""

    @property
    def dialect(self) -> str:
        """The log dialect of the baseline."""
        return self.baseline.dialect

    @property
    def gsw_version(self) -> str:
        """The release in names and metadata; the release of the baseline by default."""
        return self.release or self.baseline.key.release

    @property
    def framework(self) -> str:
        """The framework in file names: `maxtext` or `nemo`."""
        return "maxtext" if self.dialect == "maxtext" else "nemo"

    @property
    def model(self) -> str:
        """The model in file names: `grok1`, `llama2`, `nemotron4`, `llama3.1`."""
        return self.baseline.key.recipe.removeprefix("maxtext_")

    @property
    def gpus_per_node(self) -> int:
        """4 for Grace Blackwell nodes, otherwise 8."""
        return 4 if self.baseline.key.gpu in ("gb200", "gb300") else 8

    @property
    def layout_name(self) -> LayoutName:
        """The name of the file layout."""
        if self.layout is not None:
            return self.layout
        number = release_number(self.gsw_version)
        if number >= (25, 5):
            return "workloads"
        return "experiments" if self.dialect == "nemo2" else "results"

    @property
    def total_steps(self) -> int:
        """The planned number of steps.

        Profiled, traced and checkpoint-load runs have fewer.
        """
        if self.steps is not None:
            return self.steps
        if self.checkpoint == "load":
            return 1
        if self.traced:
            return TRACED_STEPS
        full = self.baseline.steps
        key = self.dialect if self.dialect == "nemo1" else self.layout_name
        return min(full, PROFILED_STEPS.get(key, full)) if self.profiled else full

    @cached_property
    def step_seconds(self) -> tuple[float, ...]:
        """The seconds of every step of a complete attempt."""
        if self.seconds is not None:
            return self.seconds
        mean = self.baseline.step_seconds * self.factor
        decimals = series.printed_decimals(self.dialect, mean * (1 + 3.5 * self.noise))
        return series.step_seconds(
            self.total_steps,
            self.baseline.window,
            mean,
            series.FULL_PRECISION_DECIMALS if self.dllogger else decimals,
            noise=self.noise,
            last_step_factor=self.last_step_factor,
            seed=f"{self.baseline.key.id} {self.job_id}",
        )

    def loss(self, step: int, start: float) -> float:
        """Return the loss of a step, which falls from `start`.

        NaN from `cut` on in a diverged run.
        """
        diverged = self.ending == "diverged" and step >= self.cut
        return float("nan") if diverged else series.falling_loss(step, start)

    def printed_steps(self, attempt: int) -> int:
        """Return the number of steps that an attempt prints."""
        unfinished = attempt < self.restarts or self.ending in ("time-limit", "killed")
        return (
            min(self.cut, len(self.step_seconds))
            if unfinished
            else len(self.step_seconds)
        )

    def began(self, attempt: int) -> datetime:
        """Return the start of an attempt: after the previous attempt and a pause."""
        return self.ended(attempt - 1) + BETWEEN_ATTEMPTS if attempt else self.started

    def after_step(self, attempt: int, steps: int) -> datetime:
        """Return the time at which an attempt had done `steps` steps."""
        return (
            self.began(attempt)
            + START_UP
            + timedelta(seconds=fsum(self.step_seconds[:steps]))
        )

    def ended(self, attempt: int) -> datetime:
        """Return the end of an attempt."""
        return self.after_step(attempt, self.printed_steps(attempt)) + timedelta(
            seconds=20
        )

    def cancelled_because(self, attempt: int) -> str:
        """Return the reason that Slurm prints for ending an attempt, or ""."""
        if attempt < self.restarts:
            return REQUEUED
        return "TIME LIMIT" if self.ending == "time-limit" else ""
