"""The model is a Llama, it learns, and it does the work that its log and its MFU rest on."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.metric_definitions import count_model_flops

pytestmark = pytest.mark.slow

CPU = "cpu"


@pytest.fixture
def small(train: ModuleType) -> Any:
    """A model that takes no time."""
    return train.Size(2, 32, 4, 2, 48, 64, sequence=16, global_batch=4, micro_batch=4)


@pytest.fixture
def torch(train: ModuleType) -> Any:
    """PyTorch, with a seed."""
    train.torch.manual_seed(1)
    return train.torch


def trainer(train: ModuleType, size: Any, dtype: str = "fp32") -> Any:
    """Return a trainer on the CPU."""
    return train.Trainer(size, dtype, train.torch.device(CPU))


def test_sizes_and_flops_are_those_of_the_baseline_file(train: ModuleType, recipe: Path) -> None:
    baselines = read_recipe(recipe / "tiny_llama.yaml").baselines
    assert {each.key.size for each in baselines} == set(train.SIZES)
    for baseline in baselines:
        size, configuration = train.SIZES[baseline.key.size], baseline.configuration
        stated = configuration.architecture
        assert (size.layers, size.hidden, size.ffn) == (stated.layers, stated.hidden_size, stated.ffn_size)
        assert (size.heads, size.groups) == (stated.attention_heads, stated.query_groups)
        assert (size.vocabulary, size.sequence) == (stated.vocabulary_size, stated.sequence_length)
        batch = (configuration.global_batch_size, configuration.micro_batch_size)
        assert (size.global_batch, size.micro_batch) == batch
        assert size.flops == count_model_flops(stated), baseline.key.id


def test_the_model_does_as_many_flops_as_the_formula_says(train: ModuleType, torch: Any, small: Any) -> None:
    """PyTorch counts those of every matrix product; attention as plain products, the whole score matrix."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    one = trainer(train, small)
    with counter, sdpa_kernel(SDPBackend.MATH):
        one.step(0)
    assert counter.get_total_flops() == small.flops * small.global_batch


def test_attention_looks_back_only(train: ModuleType, torch: Any, small: Any) -> None:
    attention, turn = train.Attention(small), train.turns(small, torch.float32)
    x = torch.randn(1, small.sequence, small.hidden)
    changed = x.clone()
    changed[:, 10:] += 1
    before, after = attention(x, turn), attention(changed, turn)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)


def test_rotation_tells_distances_and_nothing_else(train: ModuleType, torch: Any, small: Any) -> None:
    turn = train.turns(small, torch.float32)
    query, key = (torch.randn(small.hidden // small.heads).expand(small.sequence, -1) for _ in range(2))
    products = train.rotated(query, turn) @ train.rotated(key, turn).T
    for distance in range(small.sequence - 1):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert not torch.allclose(products[0, 0], products[0, 1], atol=1e-3)


def test_micro_batches_are_one_batch(train: ModuleType, torch: Any, small: Any) -> None:
    """Gradients are accumulated: the loss and the weights after steps do not depend on how a batch is cut."""
    whole, cut = (trainer(train, small._replace(micro_batch=number)) for number in (4, 1))
    for step in range(3):
        one, other = whole.step(step), cut.step(step)
        assert one["reduced_train_loss"] == pytest.approx(other["reduced_train_loss"], rel=1e-5)
    for one, other in zip(whole.model.parameters(), cut.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_weight_is_trained_in_32_bits(train: ModuleType, torch: Any, small: Any, dtype: str) -> None:
    one = trainer(train, small, dtype)
    before = [weight.clone() for weight in one.model.parameters()]
    losses = [one.step(step)["reduced_train_loss"] for step in range(12)]
    assert losses[-1] < losses[0]
    for old, new in zip(before, one.model.parameters(), strict=True):
        assert new.dtype is torch.float32
        assert not torch.equal(old, new)


def test_bf16_computes_in_bf16(train: ModuleType, torch: Any, small: Any) -> None:
    seen = set()
    one = trainer(train, small, "bf16")
    for module in one.model.blocks.modules():
        module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    one.step(0)
    assert seen == {torch.bfloat16}


def test_two_runs_see_the_same_tokens(train: ModuleType, torch: Any, small: Any) -> None:
    one, other = trainer(train, small), trainer(train, small)
    tokens = one._tokens()
    assert torch.equal(tokens, other._tokens())
    assert not torch.equal(tokens, one._tokens())
    assert tokens.shape == (4, 17)
    assert 0 <= tokens.min() <= tokens.max() < small.vocabulary


@pytest.mark.parametrize(
    ("gpu", "name", "fits"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("h100", "NVIDIA A100-SXM4-80GB", False),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("h200", "NVIDIA GH200 480GB", False),
        ("b200", "NVIDIA GB200", False),
    ],
)
def test_a_gpu_of_another_type_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, gpu: str, name: str, fits: bool
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train.torch.cuda, "get_device_name", lambda: name)
    monkeypatch.setattr(train.torch.cuda, "current_device", lambda: 0)
    if fits:
        assert train.device_of(gpu).type == "cuda"
    else:
        with pytest.raises(SystemExit, match=f"GPU_TYPE={gpu}: found {name}"):
            train.device_of(gpu)


def test_a_missing_gpu_is_said(train: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match=r"GPU_TYPE=h100: PyTorch .* finds no GPU; GPU_TYPE=cpu needs none"):
        train.device_of("h100")


def test_numbers_are_printed_as_nemo_prints_them(train: ModuleType) -> None:
    values = {"lr": 6e-05, "global_step": 3, "train_step_timing in s": 12.3456, "TFLOPS_per_GPU": 1249.4}
    assert train.line(3, 50, values) == (
        "Training epoch 0, iteration 3/49 | lr: 6e-05 | global_step: 3 | train_step_timing in s: 12.35"
        " | TFLOPS_per_GPU: 1.249e+03"
    )
