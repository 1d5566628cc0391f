#!/usr/bin/env bash
# PyTorch 2.13.0: torch.utils.flop_counter.FlopCounterMode counts 0 FLOPs for scaled_dot_product_attention on a CPU, without
# a warning. The fused CPU kernel (aten._scaled_dot_product_flash_attention_for_cpu) has no formula in the counter's
# registry. The same call on the meta device, which decomposes it into matrix products, counts them. An MFU that is computed
# from a CPU dry run of a transformer therefore lacks the attention scores: a fifth of the FLOPs of a 1B model at 4,096 tokens.
#
# Seen (8 heads, 64 positions, width 32; 2 products x 2 x 8 x 64 x 64 x 32 = 4,194,304 FLOPs):
#   torch 2.13.0+cpu
#   cpu 0
#   meta 4194304
#
# Exits with 1 if the behaviour changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 numpy 2>/dev/null
"$work/venv/bin/python" - <<'PYTHON'
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

print("torch", torch.__version__)
counted = {}
for device in ("cpu", "meta"):
    query, key, value = (torch.empty(1, 8, 64, 32, device=device, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(query, key, value, is_causal=True)
    counted[device] = counter.get_total_flops()
    print(device, counted[device])
sys.exit(counted != {"cpu": 0, "meta": 4_194_304})
PYTHON
