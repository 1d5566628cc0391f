"""Model FLOPs: of one training sequence, forward and backward, by named formulas over the architecture.

Each formula counts as its source does; docs/flops.md has them side by side, with worked examples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pytest_llmbench.core.errors import BaselineError, did_you_mean
from pytest_llmbench.core.models import Architecture

NO_FORMULA = "none"
"""Stands in a baseline file for a model whose FLOPs nobody counts."""


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
