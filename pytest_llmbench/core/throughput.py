"""What follows from a step time: throughput, model FLOPs utilization, TFLOP/s and days to train.

The FLOPs of one training sequence are as the recipe documents count them: named formulas over the architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pytest_llmbench.core.errors import BaselineError, did_you_mean
from pytest_llmbench.core.models import Architecture, Configuration

SECONDS_PER_DAY = 86400
TOKENS = 1e12


def tokens_per_second(configuration: Configuration, step_seconds: float) -> float:
    """Return tokens per second of the whole run: sequence length x global batch size / step time in seconds."""
    return configuration.architecture.sequence_length * configuration.global_batch_size / step_seconds


def tflops_per_gpu(configuration: Configuration, step_seconds: float) -> float:
    """Return model TFLOP/s per GPU: global batch size x model FLOPs / step time in seconds / GPUs / 1e12."""
    flops = configuration.global_batch_size * model_flops(configuration.architecture)
    return flops / step_seconds / configuration.key.gpus / 1e12


def model_flops_utilization(configuration: Configuration, step_seconds: float, peak_tflops: float) -> float:
    """Return MFU as a fraction (0.4759 is printed as 47.59 %) of the peak TFLOP/s of one GPU at this precision."""
    return tflops_per_gpu(configuration, step_seconds) / peak_tflops


def days_to_1t_tokens(configuration: Configuration, step_seconds: float) -> float | None:
    """Return days to train on 1e12 tokens; None for a proxy, which is not the model (the documents print NA)."""
    if configuration.proxy:
        return None
    return TOKENS / tokens_per_second(configuration, step_seconds) / SECONDS_PER_DAY


# --- model FLOPs ------------------------------------------------------------------------------------------


class Terms(NamedTuple):
    """FLOPs of one token, forward and backward, by where they are spent."""

    attention: int
    mlp: int
    embedding: int


Formula = Callable[[Architecture], Terms]


def grok(architecture: Architecture) -> Terms:
    """Mixture of experts with causal attention: half of the score matrix, the MLP of the top-k experts.

    Per token, with L layers, h hidden size, s sequence length, g of a attention heads holding keys and values,
    f FFN size, k experts a token and V vocabulary: 12 L h^2 (1 + g/a + s/(2h)); 18 L f h k; 6 V h.
    Source: the notes of the Grok 1 document (314B, release 25.05).
    """
    layers, hidden, sequence = architecture.layers, architecture.hidden_size, architecture.sequence_length
    projections = _projections(architecture)
    return Terms(
        attention=projections + 6 * layers * hidden * sequence,
        mlp=18 * layers * _require(architecture, "ffn_size") * hidden * _require(architecture, "top_k"),
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def llama(architecture: Architecture) -> Terms:
    """Dense model with grouped queries and a gated MLP of three matrices; the whole score matrix is counted.

    Per token: 12 L h^2 (1 + g/a + s/h); 18 L f h; 6 V h. Source: the notes of the Llama 3.1 document (release
    25.04) and of the MaxText Llama 2 document (24.11).
    """
    layers, hidden, sequence = architecture.layers, architecture.hidden_size, architecture.sequence_length
    return Terms(
        attention=_projections(architecture) + 12 * layers * hidden * sequence,
        mlp=18 * layers * _require(architecture, "ffn_size") * hidden,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def nemotron(architecture: Architecture) -> Terms:
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


FORMULAS: dict[str, Formula] = {"grok": grok, "llama": llama, "nemotron": nemotron}


def count_flops_per_token(architecture: Architecture) -> Terms:
    """Return the FLOPs of one token by the named formula; BaselineError for an unknown formula or a missing size."""
    name = architecture.formula.partition(":")[0]
    if name not in FORMULAS:
        expected = " or ".join(FORMULAS)
        raise BaselineError(f"FLOPs formula: found {name!r}, expected {expected}{did_you_mean(name, FORMULAS)}")
    return FORMULAS[name](architecture)


@cache
def model_flops(architecture: Architecture) -> float:
    """Return the FLOPs of one sequence (global batch size 1), forward and backward."""
    flops = architecture.sequence_length * sum(count_flops_per_token(architecture))
    # A formula may end in a number of significant digits (`llama:3`): the documents state 4.74E+14 and compute their
    # tables from that, so their MFU reproduces only from the rounded number.
    digits = architecture.formula.partition(":")[2]
    return float(f"{flops:.{int(digits) - 1}e}") if digits else float(flops)


def _projections(architecture: Architecture) -> int:
    """Return 12 L h^2 (1 + g/a) as an integer: heads divide the hidden size of every real model."""
    heads, groups = _require(architecture, "attention_heads"), _require(architecture, "query_groups")
    square = 12 * architecture.layers * architecture.hidden_size**2
    return square + square * groups // heads


def _require(architecture: Architecture, name: str) -> int:
    value: int | None = getattr(architecture, name)
    if value is None:
        raise BaselineError(f"FLOPs formula {architecture.formula!r} needs {name}, which the model does not state")
    return value
