"""A baseline file as users write it for custom log formats."""

from __future__ import annotations

TEMPLATE = """\
schema: 1
kind: published
recipe: {recipe}
release: "{release}"
title: {recipe}, measured on this cluster
framework: {framework}
names: [{recipe}]
dialect: {dialect}
source: {{document: our own notes}}
timed: mean
window: {{statistic: mean, first: {first}, last: {last}}}
steps: {steps}
peak_tflops: {{{gpu}: {{bf16: "{peak}"}}}}
{more}
models: {{{size}: {{formula: llama, {model}}}}}
configurations:
  - {{size: {size}, gpu: {gpu}, dtype: bf16, gpus: {gpus}, {shape}, cells: {{step_time: "{seconds}"}}}}
"""

LLAMA_8B = "hidden_size: 4096, attention_heads: 32, query_groups: 8, ffn_size: 14336, vocabulary_size: 128256"


def custom_baseline(**values: object) -> str:
    """Return the text of a baseline file. `more` contains additional keys."""
    defaults = {
        "release": "own",
        "framework": "its framework",
        "first": 11,
        "last": 44,
        "steps": 50,
        "more": "",
    }
    return TEMPLATE.format(**defaults | values)
