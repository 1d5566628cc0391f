"""Model FLOPs of one training sequence, forward and backward.

Each formula counts as its source does; docs/explanation/flops.md compares them and has worked
examples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from pytest_llmbench.core.baseline_records import Architecture
from pytest_llmbench.core.errors import BaselineError, did_you_mean

NO_FORMULA = "none"
"""The formula of a model whose FLOPs are not counted."""


class Terms(NamedTuple):
    """FLOPs of one token, forward and backward, by component."""

    attention: int
    mlp: int
    embedding: int


Formula = Callable[[Architecture], Terms]


def count_grok_flops(architecture: Architecture) -> Terms:
    """Count a mixture of experts with causal attention.

    Counts half of the score matrix, and the MLPs of the top-k experts.

    Per token, with L layers, h hidden size, s sequence length, g of a attention heads
    holding keys and values, f FFN size, k experts per token and V vocabulary: 12 L h^2
    (1 + g/a + s/(2h)); 18 L f h k; 6 V h. Source: the notes of the Grok 1 document
    (314B, release 25.05).
    """
    layers = architecture.layers
    hidden = architecture.hidden_size
    sequence = architecture.sequence_length
    projections = _count_projections(architecture)
    return Terms(
        attention=projections + 6 * layers * hidden * sequence,
        mlp=18
        * layers
        * _require(architecture, "ffn_size")
        * hidden
        * _require(architecture, "top_k"),
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_llama_flops(architecture: Architecture) -> Terms:
    """Count a dense model with grouped queries and a gated MLP of three matrices.

    Counts the whole score matrix. Per token: 12 L h^2 (1 + g/a + s/h); 18 L f h; 6 V h.
    Source: the notes of the Llama 3.1 document (release 25.04) and of the MaxText Llama
    2 document (24.11).
    """
    layers = architecture.layers
    hidden = architecture.hidden_size
    sequence = architecture.sequence_length
    return Terms(
        attention=_count_projections(architecture) + 12 * layers * hidden * sequence,
        mlp=18 * layers * _require(architecture, "ffn_size") * hidden,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_nemotron_flops(architecture: Architecture) -> Terms:
    """Count a dense model with full attention heads and an MLP of two matrices, FFN size 4 h.

    Per token: 24 L h^2 + 12 L h s; 48 L h^2; 6 V h. Source: the notes of the Nemotron 4
    document (340B, release 25.01).
    """
    layers = architecture.layers
    hidden = architecture.hidden_size
    sequence = architecture.sequence_length
    # The document ignores that the model groups its queries.
    return Terms(
        attention=24 * layers * hidden**2 + 12 * layers * hidden * sequence,
        mlp=48 * layers * hidden**2,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_dense_flops(architecture: Architecture) -> Terms:
    """Count a dense model with grouped queries and causal attention.

    Counts half of the score matrix. Per token, with d head size and m matrices of the
    MLP (3 if gated): 12 L (h d (a + g) + a d s/2); 6 L h f m; 6 V h. Source:
    Megatron-Bridge 0494433b, training/utils/flop_utils.py, which computes the TFLOP/s
    of its tables and logs.
    """
    hidden, ffn = architecture.hidden_size, _require(architecture, "ffn_size")
    return Terms(
        attention=architecture.layers * _count_causal_attention(architecture),
        mlp=architecture.layers * _count_mlp(architecture, ffn),
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_moe_flops(architecture: Architecture) -> Terms:
    """Count a mixture of experts with grouped queries and causal attention.

    May have dense layers and shared experts. As `dense`, but layers with experts use
    the FFN size of the k routed experts of a token plus that of the shared experts. The
    router is not counted. Each layer for multi-token prediction counts as a layer with
    experts plus 6 (3 h + 2 h^2) and another 6 V h. Source: as for `dense`.
    """
    layers = architecture.layers + (architecture.mtp_layers or 0)
    return Terms(
        attention=layers * _count_causal_attention(architecture),
        mlp=_count_experts(architecture),
        embedding=_count_predictions(architecture),
    )


def count_mla_flops(architecture: Architecture) -> Terms:
    """Count a mixture of experts with causal multi-head latent attention (DeepSeek,
    Kimi).

    Per token and layer, with qk, rope and v the sizes of a head, q and c the ranks of
    queries and of keys and values: 6 (q (h + a (qk + rope) + 1) + c (h + a (qk + v) +
    1) + h rope + a v h + s a (qk + rope)/2 + s a v/2). The other terms are as in `moe`.
    Source: as for `dense`.
    """
    hidden, heads = architecture.hidden_size, _require(architecture, "attention_heads")
    names = ("q_rank", "kv_rank", "qk_head_size", "rope_size", "v_head_size")
    q_rank, kv_rank, qk, rope, v = (_require(architecture, name) for name in names)
    projections = q_rank * (hidden + heads * (qk + rope) + 1) + kv_rank * (
        hidden + heads * (qk + v) + 1
    )
    outputs = hidden * rope + heads * v * hidden
    scores = architecture.sequence_length * heads * (qk + rope + v)
    layers = architecture.layers + (architecture.mtp_layers or 0)
    return Terms(
        attention=layers * (6 * (projections + outputs) + 3 * scores),
        mlp=_count_experts(architecture),
        embedding=_count_predictions(architecture),
    )


def count_hybrid_flops(architecture: Architecture) -> Terms:
    """Count a hybrid of Mamba, attention, MLP and expert layers (Nemotron-H, Nemotron
    3).

    Layers that are neither attention, MLP nor expert layers are Mamba layers. Per token and Mamba layer, with S state
    size, G groups, H heads and a width of 2 h: 6 h (4 h + 2 G S + H) + 42 h S + 12 h^2,
    added to the attention term. Experts
    with a latent size l use l instead of h, and add 12 h l. The other terms are as in `dense` and `moe`. Source: as for `dense`. Raises
    BaselineError for too many layers.
    """
    hidden, matrices = architecture.hidden_size, architecture.mlp_matrices or GATED
    names = ("mamba_state_size", "mamba_groups", "mamba_heads")
    state, groups, heads = (_require(architecture, name) for name in names)
    attention, dense, expert = (
        getattr(architecture, f"{name}_layers") or 0
        for name in ("attention", "mlp", "expert")
    )
    mamba = architecture.layers - attention - dense - expert
    if mamba < 0:
        kinds = f"{attention} + {dense} + {expert} layers of attention, MLP and experts"
        raise BaselineError(
            f"FLOPs formula 'hybrid': found {kinds}, expected at most the {architecture.layers} layers"
        )
    scan = (
        6 * hidden * (4 * hidden + 2 * groups * state + heads)
        + 42 * hidden * state
        + 12 * hidden**2
    )
    routed = 0
    if expert:
        latent = architecture.expert_latent_size
        width = _require(architecture, "expert_ffn_size")
        routed = (
            6
            * matrices
            * ((latent or hidden) * width * _require(architecture, "top_k"))
        )
        routed += 6 * matrices * hidden * (
            architecture.shared_ffn_size or 0
        ) + 12 * hidden * (latent or 0)
    return Terms(
        attention=mamba * scan
        + (attention * _count_causal_attention(architecture) if attention else 0),
        mlp=expert * routed
        + (
            dense * _count_mlp(architecture, _require(architecture, "ffn_size"))
            if dense
            else 0
        ),
        embedding=6 * architecture.vocabulary_size * hidden,
    )


GATED = 3
"""Number of matrices of a gated MLP."""


def _count_causal_attention(architecture: Architecture) -> int:
    """Return the attention FLOPs of one layer for one token.

    Counts half of the score matrix.
    """
    hidden, heads = architecture.hidden_size, _require(architecture, "attention_heads")
    size = architecture.head_size or hidden // heads
    groups = _require(architecture, "query_groups")
    return (
        12 * hidden * size * (heads + groups)
        + 6 * heads * size * architecture.sequence_length
    )


def _count_mlp(architecture: Architecture, width: int) -> int:
    return 6 * architecture.hidden_size * width * (architecture.mlp_matrices or GATED)


def _count_experts(architecture: Architecture) -> int:
    """Return the FLOPs of the MLPs of all layers: expert layers and dense layers."""
    dense = architecture.dense_layers or 0
    expert = architecture.layers - dense + (architecture.mtp_layers or 0)
    width = _require(architecture, "expert_ffn_size") * _require(architecture, "top_k")
    flops = expert * _count_mlp(
        architecture, width + (architecture.shared_ffn_size or 0)
    )
    return flops + (
        dense * _count_mlp(architecture, _require(architecture, "ffn_size"))
        if dense
        else 0
    )


def _count_predictions(architecture: Architecture) -> int:
    hidden, extra = architecture.hidden_size, architecture.mtp_layers or 0
    return 6 * architecture.vocabulary_size * hidden * (1 + extra) + 6 * extra * (
        3 * hidden + 2 * hidden**2
    )


FORMULAS: dict[str, Formula] = {
    "grok": count_grok_flops,
    "llama": count_llama_flops,
    "nemotron": count_nemotron_flops,
    "dense": count_dense_flops,
    "moe": count_moe_flops,
    "mla": count_mla_flops,
    "hybrid": count_hybrid_flops,
}


def count_flops_per_token(architecture: Architecture) -> Terms:
    """Return the FLOPs of one token by the architecture's formula.

    Raises BaselineError for an unknown formula or a missing size.
    """
    name = architecture.formula.partition(":")[0]
    if name not in FORMULAS:
        expected = " or ".join(FORMULAS)
        raise BaselineError(
            f"FLOPs formula: found {name!r}, expected {expected}{did_you_mean(name, FORMULAS)}"
        )
    return FORMULAS[name](architecture)


@cache
def count_model_flops(architecture: Architecture) -> float:
    """Return the FLOPs of one sequence (global batch size 1), forward and backward."""
    flops = architecture.sequence_length * sum(count_flops_per_token(architecture))
    # A formula may end in a number of significant digits (`llama:3`). Some documents
    # round to 4.74E+14 and compute their tables from that, so that their MFU can only be
    # reproduced from the rounded number.
    digits = architecture.formula.partition(":")[2]
    return float(f"{flops:.{int(digits) - 1}e}") if digits else float(flops)


def _count_projections(architecture: Architecture) -> int:
    """Return 12 L h^2 (1 + g/a) as an integer.

    The heads divide the hidden size of every real model.
    """
    heads = _require(architecture, "attention_heads")
    groups = _require(architecture, "query_groups")
    square = 12 * architecture.layers * architecture.hidden_size**2
    return square + square * groups // heads


def _require(architecture: Architecture, name: str) -> int:
    value: int | None = getattr(architecture, name)
    if value is None:
        raise BaselineError(
            f"FLOPs formula {architecture.formula!r} needs {name}, which the model does not state"
        )
    return value
