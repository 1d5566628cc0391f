"""Model FLOPs of one training sequence, forward and backward.

Each formula counts as its source does; docs/explanation/flops.md compares the formulas
and has worked examples.
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
    """Count the FLOPs of a mixture of experts with causal attention.

    Counts half of the score matrix, and the MLPs of the top-k experts. Per token, with
    L layers, h hidden size, s sequence length, g of a attention heads holding keys and
    values, f FFN size, k experts per token and V vocabulary:

    - attention: 12 L h^2 (1 + g/a + s/(2h))
    - MLP: 18 L f h k
    - embedding: 6 V h

    Source: the notes of the Grok 1 document (314B, release 25.05).
    """
    layers = architecture.layers
    hidden = architecture.hidden_size
    sequence = architecture.sequence_length
    projections = _count_projections(architecture)
    ffn_size = _require(architecture, "ffn_size")
    top_k = _require(architecture, "top_k")
    return Terms(
        attention=projections + 6 * layers * hidden * sequence,
        mlp=18 * layers * ffn_size * hidden * top_k,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_llama_flops(architecture: Architecture) -> Terms:
    """Count the FLOPs of a dense model with grouped queries and a gated MLP.

    Counts the whole score matrix, and three matrices of the MLP. Per token, with the
    symbols of `grok`:

    - attention: 12 L h^2 (1 + g/a + s/h)
    - MLP: 18 L f h
    - embedding: 6 V h

    Source: the notes of the Llama 3.1 document (release 25.04) and of the MaxText Llama
    2 document (24.11).
    """
    layers = architecture.layers
    hidden = architecture.hidden_size
    sequence = architecture.sequence_length
    projections = _count_projections(architecture)
    ffn_size = _require(architecture, "ffn_size")
    return Terms(
        attention=projections + 12 * layers * hidden * sequence,
        mlp=18 * layers * ffn_size * hidden,
        embedding=6 * architecture.vocabulary_size * hidden,
    )


def count_nemotron_flops(architecture: Architecture) -> Terms:
    """Count the FLOPs of a dense model without grouped queries, with two MLP matrices.

    The FFN size is 4 h. Per token, with the symbols of `grok`:

    - attention: 24 L h^2 + 12 L h s
    - MLP: 48 L h^2
    - embedding: 6 V h

    Source: the notes of the Nemotron 4 document (340B, release 25.01).
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
    """Count the FLOPs of a dense model with grouped queries and causal attention.

    Counts half of the score matrix. Per token, with the symbols of `grok`, d head size
    and m matrices of the MLP (3 if gated):

    - attention: 12 L (h d (a + g) + a d s/2)
    - MLP: 6 L h f m
    - embedding: 6 V h

    Source: Megatron-Bridge 0494433b, training/utils/flop_utils.py, which computes the
    TFLOP/s of its tables and logs.
    """
    ffn_size = _require(architecture, "ffn_size")
    layers = architecture.layers
    return Terms(
        attention=layers * _count_causal_attention(architecture),
        mlp=layers * _count_mlp(architecture, ffn_size),
        embedding=6 * architecture.vocabulary_size * architecture.hidden_size,
    )


def count_moe_flops(architecture: Architecture) -> Terms:
    """Count the FLOPs of a mixture of experts with grouped queries, causal attention.

    As `dense`, except for layers with experts: their FFN size is the sum over the k
    routed experts of a token, plus the size of the shared experts. The router is not
    counted. Each layer for multi-token prediction counts as a layer with experts, plus
    6 (3 h + 2 h^2), plus another embedding of 6 V h. Source: as for `dense`.
    """
    layers = architecture.layers + (architecture.mtp_layers or 0)
    return Terms(
        attention=layers * _count_causal_attention(architecture),
        mlp=_count_experts(architecture),
        embedding=_count_predictions(architecture),
    )


def count_mla_flops(architecture: Architecture) -> Terms:
    """Count the FLOPs of a mixture of experts with causal latent attention (DeepSeek).

    The attention of one layer is 6 times the sum of these terms per token. The sizes of
    a head are qk, rope and v; the ranks are q for queries, c for keys and values.

    - queries: q (h + a (qk + rope) + 1)
    - keys and values: c (h + a (qk + v) + 1)
    - outputs: h rope + a v h
    - half of the score matrix: s a (qk + rope + v)/2

    MLP and embedding are as in `moe`. Source: as for `dense`.
    """
    hidden, heads = architecture.hidden_size, _require(architecture, "attention_heads")
    q_rank = _require(architecture, "q_rank")
    kv_rank = _require(architecture, "kv_rank")
    qk = _require(architecture, "qk_head_size")
    rope = _require(architecture, "rope_size")
    v = _require(architecture, "v_head_size")
    # The 1 of each rank is a layer norm.
    query_projections = q_rank * (hidden + heads * (qk + rope) + 1)
    key_value_projections = kv_rank * (hidden + heads * (qk + v) + 1)
    outputs = hidden * rope + heads * v * hidden
    matrices = query_projections + key_value_projections + outputs
    scores = architecture.sequence_length * heads * (qk + rope + v)
    layers = architecture.layers + (architecture.mtp_layers or 0)
    return Terms(
        # Half of the scores, hence 3 instead of 6.
        attention=layers * (6 * matrices + 3 * scores),
        mlp=_count_experts(architecture),
        embedding=_count_predictions(architecture),
    )


def count_hybrid_flops(architecture: Architecture) -> Terms:
    """Count the FLOPs of a hybrid of Mamba, attention, MLP and expert layers.

    For Nemotron-H and Nemotron 3. All layers of no other kind are Mamba layers. A Mamba
    layer of width 2 h, with S state size, G groups and H heads, adds these FLOPs per
    token to the attention: 6 h (4 h + 2 G S + H) + 42 h S + 12 h^2. Experts with a
    latent size l use l instead of h, and add 12 h l. The other terms are as in `dense`
    and `moe`. Source: as for `dense`. Raises BaselineError for too many layers.
    """
    hidden = architecture.hidden_size
    state = _require(architecture, "mamba_state_size")
    groups = _require(architecture, "mamba_groups")
    heads = _require(architecture, "mamba_heads")
    attention_layers = architecture.attention_layers or 0
    mlp_layers = architecture.mlp_layers or 0
    expert_layers = architecture.expert_layers or 0
    other_layers = attention_layers + mlp_layers + expert_layers
    mamba_layers = architecture.layers - other_layers
    if mamba_layers < 0:
        kinds = f"{attention_layers} + {mlp_layers} + {expert_layers} layers of attention, MLP and experts"
        raise BaselineError(
            f"FLOPs formula 'hybrid': found {kinds}, expected at most the {architecture.layers} layers"
        )
    mamba_layer = (
        6 * hidden * (4 * hidden + 2 * groups * state + heads)
        + 42 * hidden * state
        + 12 * hidden**2
    )
    # A model need not state the sizes of layers that it does not have.
    mlp = 0
    if expert_layers:
        mlp += expert_layers * _count_hybrid_experts(architecture)
    attention = mamba_layers * mamba_layer
    if attention_layers:
        attention += attention_layers * _count_causal_attention(architecture)
    if mlp_layers:
        ffn_size = _require(architecture, "ffn_size")
        mlp += mlp_layers * _count_mlp(architecture, ffn_size)
    return Terms(attention, mlp, embedding=6 * architecture.vocabulary_size * hidden)


def _count_hybrid_experts(architecture: Architecture) -> int:
    """Return the FLOPs of one expert layer of a hybrid for one token."""
    hidden = architecture.hidden_size
    matrices = architecture.mlp_matrices or GATED
    latent = architecture.expert_latent_size
    ffn_size = _require(architecture, "expert_ffn_size")
    top_k = _require(architecture, "top_k")
    routed = 6 * matrices * (latent or hidden) * ffn_size * top_k
    shared = 6 * matrices * hidden * (architecture.shared_ffn_size or 0)
    latent_projections = 12 * hidden * (latent or 0)
    return routed + shared + latent_projections


GATED = 3
"""Number of matrices of a gated MLP."""


def _count_causal_attention(architecture: Architecture) -> int:
    """Return the attention FLOPs of one layer for one token.

    Counts half of the score matrix.
    """
    hidden, heads = architecture.hidden_size, _require(architecture, "attention_heads")
    head_size = architecture.head_size or hidden // heads
    groups = _require(architecture, "query_groups")
    projections = 12 * hidden * head_size * (heads + groups)
    scores = 6 * heads * head_size * architecture.sequence_length
    return projections + scores


def _count_mlp(architecture: Architecture, ffn_size: int) -> int:
    """Return the FLOPs of one MLP for one token."""
    matrices = architecture.mlp_matrices or GATED
    return 6 * architecture.hidden_size * ffn_size * matrices


def _count_experts(architecture: Architecture) -> int:
    """Return the FLOPs of the MLPs of all layers: expert layers and dense layers."""
    dense_layers = architecture.dense_layers or 0
    mtp_layers = architecture.mtp_layers or 0
    expert_layers = architecture.layers - dense_layers + mtp_layers
    expert_size = _require(architecture, "expert_ffn_size")
    routed_size = expert_size * _require(architecture, "top_k")
    shared_size = architecture.shared_ffn_size or 0
    flops = expert_layers * _count_mlp(architecture, routed_size + shared_size)
    # A model without dense layers need not state `ffn_size`.
    if dense_layers:
        ffn_size = _require(architecture, "ffn_size")
        flops += dense_layers * _count_mlp(architecture, ffn_size)
    return flops


def _count_predictions(architecture: Architecture) -> int:
    """Return the FLOPs of the output and of multi-token prediction for one token."""
    hidden, mtp_layers = architecture.hidden_size, architecture.mtp_layers or 0
    outputs = 6 * architecture.vocabulary_size * hidden * (1 + mtp_layers)
    mtp_projections = 6 * mtp_layers * (3 * hidden + 2 * hidden**2)
    return outputs + mtp_projections


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
    # "llama:3" is the formula llama, rounded to 3 digits.
    name, _, _ = architecture.formula.partition(":")
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
    _, _, digits = architecture.formula.partition(":")
    if not digits:
        return float(flops)
    decimals = int(digits) - 1  # 4.74E+14 has three digits, two of them decimals
    return float(f"{flops:.{decimals}e}")


def _count_projections(architecture: Architecture) -> int:
    """Return 12 L h^2 (1 + g/a) as an integer.

    The heads divide the hidden size of every real model.
    """
    heads = _require(architecture, "attention_heads")
    groups = _require(architecture, "query_groups")
    square = 12 * architecture.layers * architecture.hidden_size**2
    return square + square * groups // heads


def _require(architecture: Architecture, name: str) -> int:
    """Return a size of the model. Raises BaselineError if it is not stated."""
    value: int | None = getattr(architecture, name)
    if value is None:
        raise BaselineError(
            f"FLOPs formula {architecture.formula!r} needs {name}, which the model does not state"
        )
    return value
