"""What is measured: each metric is declared once, here, with its formula and with all that reports need to show it.

The FLOPs of one training sequence are as the recipe documents count them: named formulas over the architecture.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from pytest_llmbench.core.errors import BaselineError, did_you_mean
from pytest_llmbench.core.models import Architecture

if TYPE_CHECKING:
    from pytest_llmbench.core.models import Baseline, Configuration

SECONDS_PER_DAY = 86400
TOKENS = 1e12
STEP_TIME = "step_time_seconds"


class Statistic(Enum):
    """How the values that a log prints step by step become one: those of the window, or of all sound steps."""

    MEAN_OF_WINDOW = "mean of the window"
    LARGEST_OF_RUN = "largest of the run"


class Definition(NamedTuple):
    """A metric: JSON and the output of JUnit show every one that a run has."""

    unit: str
    larger_is_better: bool | None
    """None: neither is better."""
    formula: Callable[[Baseline, float], float | None] | None = None
    """Its value at a step time in seconds, None where a configuration has none. With a formula a baseline expects a
    value of it, and a tolerance may limit it."""
    printed: tuple[str, Statistic] | None = None
    """The column of `Steps` that it is taken from, where a log prints it."""
    label: str = ""
    """How a row of the terminal's and the page's tables calls it; empty: it has no row."""
    form: str = "{:g}"
    """How such a row writes a value."""
    is_property: bool = False
    """Whether it is a property of a test case in --junitxml."""

    @property
    def of_step_time(self) -> bool:
        """Whether it follows from the step time."""
        return self.formula is not None


def _get_step_time(_: Baseline, seconds: float) -> float:
    return seconds


def _compute_tokens(baseline: Baseline, seconds: float) -> float:
    return compute_tokens_per_second(baseline.configuration, seconds)


def _compute_tokens_per_gpu(baseline: Baseline, seconds: float) -> float:
    return _compute_tokens(baseline, seconds) / baseline.configuration.key.gpus


def _compute_mfu(baseline: Baseline, seconds: float) -> float | None:
    if math.isnan(baseline.peak_tflops):  # a GPU whose peak no baseline file states
        return None
    return compute_model_flops_utilization(baseline.configuration, seconds, baseline.peak_tflops)


def _compute_tflops_per_gpu(baseline: Baseline, seconds: float) -> float:
    return compute_tflops_per_gpu(baseline.configuration, seconds)


def _compute_days_to_1t_tokens(baseline: Baseline, seconds: float) -> float | None:
    return compute_days_to_1t_tokens(baseline.configuration, seconds)


# Reports list metrics in this order.
METRICS = {
    STEP_TIME: Definition(
        "s", larger_is_better=False, formula=_get_step_time, label="step time", form="{:#.4g} s", is_property=True
    ),
    "step_time_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_trimmed_mean_seconds": Definition("s", larger_is_better=False),
    "step_time_cv": Definition("", larger_is_better=False),
    "tokens_per_second": Definition(
        "tokens/s", larger_is_better=True, formula=_compute_tokens, label="tokens/s", form="{:,.0f}", is_property=True
    ),
    "tokens_per_second_per_gpu": Definition("tokens/s", larger_is_better=True, formula=_compute_tokens_per_gpu),
    "mfu": Definition("", larger_is_better=True, formula=_compute_mfu, label="MFU", form="{:.2%}", is_property=True),
    "tflops_per_gpu": Definition(
        "TFLOP/s",
        larger_is_better=True,
        formula=_compute_tflops_per_gpu,
        label="TFLOP/s per GPU",
        form="{:,.1f}",
        is_property=True,
    ),
    "logged_tflops_per_gpu": Definition(
        "TFLOP/s", larger_is_better=True, printed=("tflops_per_gpu", Statistic.MEAN_OF_WINDOW)
    ),
    "days_to_1t_tokens": Definition(
        "days",
        larger_is_better=False,
        formula=_compute_days_to_1t_tokens,
        label="days to 1T tokens",
        form="{:,.2f}",
        is_property=True,
    ),
    "weak_scaling_efficiency": Definition("", larger_is_better=True),
    # More memory is no regression: a recipe may use what is there.
    "peak_memory_bytes": Definition(
        "bytes", larger_is_better=None, printed=("peak_memory_bytes", Statistic.LARGEST_OF_RUN)
    ),
    "checkpoint_save_seconds": Definition("s", larger_is_better=False),
    "checkpoint_save_dispatch_seconds": Definition("s", larger_is_better=False),
    "checkpoint_load_seconds": Definition("s", larger_is_better=False),
    "checkpoint_saves": Definition("", larger_is_better=None),
}

BUDGETED = ("checkpoint_save_seconds", "checkpoint_save_dispatch_seconds", "checkpoint_load_seconds")
"""Metrics of which a baseline file can say the largest value."""


def list_rows() -> Iterator[tuple[str, Definition]]:
    """Yield name and definition of the metrics that have a row in the tables of the terminal and the page."""
    return ((name, definition) for name, definition in METRICS.items() if definition.label)


def list_property_names() -> tuple[str, ...]:
    """Return the names of the metrics that are properties in --junitxml."""
    return tuple(name for name, definition in METRICS.items() if definition.is_property)


# --- what follows from a step time ------------------------------------------------------------------------


def compute_tokens_per_second(configuration: Configuration, step_seconds: float) -> float:
    """Return tokens per second of the whole run: sequence length x global batch size / step time in seconds."""
    return configuration.architecture.sequence_length * configuration.global_batch_size / step_seconds


def compute_tflops_per_gpu(configuration: Configuration, step_seconds: float) -> float:
    """Return model TFLOP/s per GPU: global batch size x model FLOPs / step time in seconds / GPUs / 1e12."""
    flops = configuration.global_batch_size * count_model_flops(configuration.architecture)
    return flops / step_seconds / configuration.key.gpus / 1e12


def compute_model_flops_utilization(configuration: Configuration, step_seconds: float, peak_tflops: float) -> float:
    """Return MFU as a fraction (0.4759 is printed as 47.59 %) of the peak TFLOP/s of one GPU at this precision."""
    return compute_tflops_per_gpu(configuration, step_seconds) / peak_tflops


def compute_days_to_1t_tokens(configuration: Configuration, step_seconds: float) -> float | None:
    """Return days to train on 1e12 tokens; None for a proxy, which is not the model (the documents print NA)."""
    if configuration.proxy:
        return None
    return TOKENS / compute_tokens_per_second(configuration, step_seconds) / SECONDS_PER_DAY


# --- model FLOPs ------------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """FLOPs of one token, forward and backward, by where they are spent."""

    attention: int
    mlp: int
    embedding: int


Formula = Callable[[Architecture], Terms]


def count_grok_flops(architecture: Architecture) -> Terms:
    """Mixture of experts with causal attention: half of the score matrix, the MLP of the top-k experts.

    Per token, with L layers, h hidden size, s sequence length, g of a attention heads holding keys and values,
    f FFN size, k experts a token and V vocabulary: 12 L h^2 (1 + g/a + s/(2h)); 18 L f h k; 6 V h.
    Source: the notes of the Grok 1 document (314B, release 25.05).
    """
    layers, hidden, sequence = architecture.layers, architecture.hidden_size, architecture.sequence_length
    projections = _count_projections(architecture)
    return Terms(
        attention=projections + 6 * layers * hidden * sequence,
        mlp=18 * layers * _require(architecture, "ffn_size") * hidden * _require(architecture, "top_k"),
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_llama_flops(architecture: Architecture) -> Terms:
    """Dense model with grouped queries and a gated MLP of three matrices; the whole score matrix is counted.

    Per token: 12 L h^2 (1 + g/a + s/h); 18 L f h; 6 V h. Source: the notes of the Llama 3.1 document (release
    25.04) and of the MaxText Llama 2 document (24.11).
    """
    layers, hidden, sequence = architecture.layers, architecture.hidden_size, architecture.sequence_length
    return Terms(
        attention=_count_projections(architecture) + 12 * layers * hidden * sequence,
        mlp=18 * layers * _require(architecture, "ffn_size") * hidden,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_nemotron_flops(architecture: Architecture) -> Terms:
    """Dense model counted with full attention heads and an MLP of two matrices and 4 h.

    Per token: 24 L h^2 + 12 L h s; 48 L h^2; 6 V h. Source: the notes of the Nemotron 4 document (340B, release
    25.01).
    """
    layers, hidden, sequence = architecture.layers, architecture.hidden_size, architecture.sequence_length
    # The document leaves out that the model groups its queries.
    return Terms(
        attention=24 * layers * hidden**2 + 12 * layers * hidden * sequence,
        mlp=48 * layers * hidden**2,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


FORMULAS: dict[str, Formula] = {"grok": count_grok_flops, "llama": count_llama_flops, "nemotron": count_nemotron_flops}


def count_flops_per_token(architecture: Architecture) -> Terms:
    """Return the FLOPs of one token by the named formula; BaselineError for an unknown formula or a missing size."""
    name = architecture.formula.partition(":")[0]
    if name not in FORMULAS:
        expected = " or ".join(FORMULAS)
        raise BaselineError(f"FLOPs formula: found {name!r}, expected {expected}{did_you_mean(name, FORMULAS)}")
    return FORMULAS[name](architecture)


@cache
def count_model_flops(architecture: Architecture) -> float:
    """Return the FLOPs of one sequence (global batch size 1), forward and backward."""
    flops = architecture.sequence_length * sum(count_flops_per_token(architecture))
    # A formula may end in a number of significant digits (`llama:3`): the documents state 4.74E+14 and compute their
    # tables from that, so their MFU reproduces only from the rounded number.
    digits = architecture.formula.partition(":")[2]
    return float(f"{flops:.{int(digits) - 1}e}") if digits else float(flops)


def _count_projections(architecture: Architecture) -> int:
    """Return 12 L h^2 (1 + g/a) as an integer: heads divide the hidden size of every real model."""
    heads, groups = _require(architecture, "attention_heads"), _require(architecture, "query_groups")
    square = 12 * architecture.layers * architecture.hidden_size**2
    return square + square * groups // heads


def _require(architecture: Architecture, name: str) -> int:
    value: int | None = getattr(architecture, name)
    if value is None:
        raise BaselineError(f"FLOPs formula {architecture.formula!r} needs {name}, which the model does not state")
    return value
