"""How the sizes of the parallel groups, the batch sizes and the number of GPUs have to fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_llmbench.core.models import Configuration


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A column that does not follow from the others; `expected` is None where no whole number would."""

    column: str
    printed: str
    expected: str | None


def contradictions(configuration: Configuration, *, dp_excludes_ep: bool) -> Iterator[Contradiction]:
    """Yield every column that contradicts: GPUs = TP x PP x CP x DP, GBS = MBS x GA x DP, and FSDP groups of GPUs.

    Columns that the document does not print are not checked. `dp_excludes_ep`: DP counts copies of all the experts,
    so that GPUs = TP x PP x CP x EP x DP (expert parallelism divides the data-parallel ranks).
    """
    groups, gpus = configuration.parallelism, configuration.key.gpus
    if groups.fsdp is not None and gpus % groups.fsdp:
        yield Contradiction("fsdp", str(groups.fsdp), None)
    model_parallel = (groups.tp or 1) * (groups.pp or 1) * (groups.cp or 1)
    if gpus % model_parallel:
        yield Contradiction("tp", str(groups.tp), None)
        return
    ranks = gpus // model_parallel
    yield from _data_parallel(groups.dp, ranks, (groups.ep or 1) if dp_excludes_ep else 1)
    yield from _batch(configuration, ranks)


def _data_parallel(printed: int | None, ranks: int, experts: int) -> Iterator[Contradiction]:
    if printed is not None and printed * experts != ranks:
        yield Contradiction("dp", str(printed), _whole(ranks, experts))


def _batch(configuration: Configuration, ranks: int) -> Iterator[Contradiction]:
    batch, micro = configuration.global_batch_size, configuration.micro_batch_size
    accumulation = configuration.gradient_accumulation
    if micro is None or batch == micro * (accumulation or 1) * ranks:
        return
    if accumulation is not None:
        yield Contradiction("ga", str(accumulation), _whole(batch, micro * ranks))
    elif configuration.parallelism.fsdp is not None or batch % (micro * ranks):
        yield Contradiction("gbs", str(batch), str(micro * ranks))


def _whole(numerator: int, denominator: int) -> str | None:
    return None if numerator % denominator else str(numerator // denominator)
