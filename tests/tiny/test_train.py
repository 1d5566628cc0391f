"""The model is a Llama, it learns, and it does the work that its log and its MFU rest
on."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support.written_logs import parse

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.core.flops import count_model_flops
from pytest_llmbench.core.gpus import read_gpu_type

CPU = "cpu"


@pytest.fixture
def small(train: ModuleType) -> Any:
    """A model that takes no time."""
    return train.Size(2, 32, 4, 2, 48, 64, sequence=16, batch=4, micro_batch=4)


@pytest.fixture
def torch(train: ModuleType) -> Any:
    """PyTorch, with a seed."""
    train.torch.manual_seed(1)
    return train.torch


def trainer(train: ModuleType, size: Any, dtype: str = "fp32") -> Any:
    """Return a trainer on the CPU."""
    return train.Trainer(size, dtype, train.torch.device(CPU))


@pytest.mark.slow
def test_sizes_and_flops_are_those_of_the_baseline_file(
    train: ModuleType, recipe: Path
) -> None:
    baselines = read_recipe(recipe / "tiny_llama.yaml").baselines
    assert {each.key.size for each in baselines} == set(train.SIZES)
    baselines += read_recipe(recipe / "tiny_llama_compiled.yaml").baselines
    for baseline in baselines:
        size, configuration = train.SIZES[baseline.key.size], baseline.configuration
        stated = configuration.architecture
        assert (size.layers, size.hidden, size.ffn) == (
            stated.layers,
            stated.hidden_size,
            stated.ffn_size,
        )
        assert (size.heads, size.groups) == (
            stated.attention_heads,
            stated.query_groups,
        )
        assert (size.vocabulary, size.sequence) == (
            stated.vocabulary_size,
            stated.sequence_length,
        )
        batch = (configuration.global_batch_size, configuration.micro_batch_size)
        assert (size.batch * baseline.key.gpus, size.micro_batch) == batch
        assert size.flops == count_model_flops(stated), baseline.key.id


@pytest.mark.slow
def test_the_model_does_as_many_flops_as_the_formula_says(
    train: ModuleType, torch: Any, small: Any
) -> None:
    """PyTorch counts those of every matrix product; attention as plain products, the
    whole score matrix."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    one = trainer(train, small)
    with counter, sdpa_kernel(SDPBackend.MATH):
        one.step(0)
    assert counter.get_total_flops() == small.flops * small.batch


def test_attention_looks_back_only(train: ModuleType, torch: Any, small: Any) -> None:
    attention, turn = train.Attention(small), train.turns(small)
    x = torch.randn(1, small.sequence, small.hidden)
    changed = x.clone()
    changed[:, 10:] += 1
    before, after = attention(x, turn), attention(changed, turn)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)


def test_rotation_tells_distances_and_nothing_else(
    train: ModuleType, torch: Any, small: Any
) -> None:
    turn = train.turns(small)
    query, key = (
        torch.randn(small.hidden // small.heads).expand(small.sequence, -1)
        for _ in range(2)
    )
    products = train.rotated(query, turn) @ train.rotated(key, turn).T
    for distance in range(small.sequence - 1):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert not torch.allclose(products[0, 0], products[0, 1], atol=1e-3)


@pytest.mark.slow
def test_micro_batches_are_one_batch(train: ModuleType, torch: Any, small: Any) -> None:
    """Gradients are accumulated: the loss and the weights after steps do not depend on
    how a batch is cut."""
    whole, cut = (
        trainer(train, small._replace(micro_batch=number)) for number in (4, 1)
    )
    for step in range(3):
        one, other = whole.step(step), cut.step(step)
        assert one["reduced_train_loss"] == pytest.approx(
            other["reduced_train_loss"], rel=1e-5
        )
    for one, other in zip(
        whole.model.parameters(), cut.model.parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_are_trained_in_32_bits_and_cast_once_a_step(
    train: ModuleType,
    torch: Any,
    small: Any,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = trainer(train, small._replace(micro_batch=1), dtype)
    cast, before = one.weights.cast, one.weights.master.detach().clone()
    calls: list[int] = []

    def count_cast() -> None:
        calls.append(1)
        cast()

    monkeypatch.setattr(one.weights, "cast", count_cast)
    losses = [one.step(step)["reduced_train_loss"] for step in range(12)]
    assert losses[-1] < losses[0]
    assert len(calls) == 12
    assert one.weights.master.dtype is one.weights.gradient.dtype is torch.float32
    assert (one.weights.master != before).all()
    cast()
    for copy in one.model.parameters():
        assert copy.dtype is train.DTYPES[dtype]
        assert copy.grad is None
    assert torch.equal(
        torch.cat([copy.flatten() for copy in one.model.parameters()]),
        one.weights.copies,
    )


@pytest.mark.slow
def test_gradients_of_micro_batches_are_added_up_in_32_bits(
    train: ModuleType, torch: Any, small: Any
) -> None:
    """The same batch, cut or whole, has the same loss in BF16 to its rounding, and
    learns as FP32 does."""
    whole, cut = (
        trainer(train, small._replace(micro_batch=number), "bf16") for number in (4, 1)
    )
    exact = trainer(train, small)
    for step in range(12):
        losses = [each.step(step)["reduced_train_loss"] for each in (whole, cut, exact)]
        assert losses[1:] == pytest.approx(losses[:1] * 2, rel=5e-3)


def test_bf16_computes_in_bf16(train: ModuleType, torch: Any, small: Any) -> None:
    seen = set()
    one = trainer(train, small, "bf16")
    for module in one.model.blocks.modules():
        module.register_forward_hook(
            lambda _module, _inputs, output: seen.add(output.dtype)
        )
    one.step(0)
    assert seen == {torch.bfloat16}


def test_keys_and_values_are_shared_without_being_repeated(
    train: ModuleType, torch: Any, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And give what attention over repeated ones gives."""
    attend, shapes = train.functional.scaled_dot_product_attention, []

    def watch(query: Any, key: Any, value: Any, **options: Any) -> Any:
        shapes.append((query.shape[1], key.shape[1], value.shape[1]))
        mixed = attend(query, key, value, **options)
        repeated = (each.repeat_interleave(2, dim=1) for each in (key, value))
        assert torch.allclose(
            mixed, attend(query, *repeated, is_causal=True), atol=1e-6
        )
        return mixed

    monkeypatch.setattr(train.functional, "scaled_dot_product_attention", watch)
    trainer(train, small).step(0)
    assert set(shapes) == {(small.heads, small.groups, small.groups)}


def test_only_a_compiled_run_compiles(
    train: ModuleType, torch: Any, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def compile_model(model: Any) -> None:
        compiled.append(model)

    monkeypatch.setattr(train.Llama, "compile", compile_model)
    trainer(train, small)
    assert not compiled
    one = train.Trainer(small, "fp32", torch.device(CPU), compiled=True)
    assert compiled == [one.model]


def test_processes_take_parts_of_one_batch(
    train: ModuleType, torch: Any, small: Any
) -> None:
    whole = train.Trainer(small._replace(batch=8), "fp32", torch.device(CPU))
    parts = [
        train.Trainer(small, "fp32", torch.device(CPU), rank=rank, ranks=2)
        for rank in range(2)
    ]
    assert torch.equal(whole._tokens(), torch.cat([part._tokens() for part in parts]))


def test_two_runs_see_the_same_tokens(
    train: ModuleType, torch: Any, small: Any
) -> None:
    one, other = trainer(train, small), trainer(train, small)
    tokens = one._tokens()
    assert torch.equal(tokens, other._tokens())
    assert not torch.equal(tokens, one._tokens())
    assert tokens.shape == (4, 17)
    assert 0 <= tokens.min() <= tokens.max() < small.vocabulary


NAMES = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H100 PCIe": "h100pcie",
    "NVIDIA H100 NVL": "h100nvl",
    "NVIDIA H200": "h200",
    "NVIDIA H200 NVL": "h200nvl",
    "NVIDIA GH200 480GB": "gh200",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA A100 80GB PCIe": "a100",
    "NVIDIA B200": "b200",
    "NVIDIA GB200": "gb200",
    "NVIDIA L4": "l4",
    "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "geforcertx4090",
    "NVIDIA GeForce RTX 4090 Laptop GPU": "geforcertx4090laptopgpu",
    "NVIDIA RTX A6000": "rtxa6000",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gpu"), NAMES.items())
def test_a_device_is_called_as_a_launch_calls_it_and_one_of_another_type_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, gpu: str
) -> None:
    """It would be judged against the baseline of another one, with another peak."""
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train.torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(train.torch.cuda, "get_device_name", lambda _: name)
    assert read_gpu_type(name) == gpu
    assert train.device_of(gpu).type == "cuda"
    for other in {*NAMES.values()} - {gpu}:
        with pytest.raises(
            SystemExit, match=f"GPU_TYPE={other}: found {name}, which is of type {gpu}$"
        ):
            train.device_of(other)


def test_a_process_without_a_gpu_of_its_own_says_so(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train.torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(
        SystemExit, match="process 5 of this node has no GPU: PyTorch finds 4"
    ):
        train.device_of("h100")


@pytest.mark.parametrize(("processes", "gpus"), [("2", 8), ("1", 8), ("2", 1)])
def test_as_many_processes_as_gpus_are_asked_for(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, processes: str, gpus: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", processes)
    with pytest.raises(
        SystemExit,
        match=f"JOB_TOTAL_GPUS={gpus}: started as {processes} processes, expected one",
    ):
        train.join_processes(train.torch.device(CPU), gpus)


SMI = "570.133.20, 700.00 W, 1980 MHz, 2619 MHz\n"


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (
            SMI,
            {
                "power_limit": "700.00 W",
                "clocks": "1980 MHz SM, 2619 MHz memory, at most",
                "driver": "570.133.20",
            },
        ),
        (
            SMI.replace("700.00 W", "[N/A]"),
            {"clocks": "1980 MHz SM, 2619 MHz memory, at most", "driver": "570.133.20"},
        ),
        ("No devices were found\n", {}),
        (None, {}),
    ],
)
def test_what_a_run_ran_on_stands_in_its_log_and_is_read(
    train: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    printed: str | None,
    expected: dict[str, str],
) -> None:
    """Whatever nvidia-smi does not say, or where there is none, is left out."""

    def run(command: list[str], **_: Any) -> Any:
        if printed is None:
            raise FileNotFoundError(command[0])
        assert command[1] == "--id=GPU-7f"
        return SimpleNamespace(stdout=printed)

    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3", uuid="7f")
    monkeypatch.setattr(train.subprocess, "run", run)
    monkeypatch.setattr(train.torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(train.torch.cuda.nccl, "version", lambda: (2, 27, 3))
    monkeypatch.setattr(train.torch.version, "cuda", "12.8")
    values = train.environment(train.torch.device("cuda", 0))
    log = "".join(
        f"llmb environment: {name}: {value}\n"
        for name, value in values.items()
        if value
    )
    always = {
        "device": gpu.name,
        "cuda": "12.8",
        "nccl": "2.27.3",
        "pytorch": train.torch.__version__,
    }
    assert dict(parse(log).environment) == {**always, **expected}


def test_a_missing_gpu_is_said(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        SystemExit,
        match=r"GPU_TYPE=h100: PyTorch .* finds no GPU; GPU_TYPE=cpu needs none",
    ):
        train.device_of("h100")


def test_numbers_are_printed_as_nemo_prints_them(train: ModuleType) -> None:
    values = {
        "lr": 6e-05,
        "global_step": 3,
        "train_step_timing in s": 12.3456,
        "TFLOPS_per_GPU": 1249.4,
    }
    assert train.line(3, 50, values) == (
        "Training epoch 0, iteration 3/49 | lr: 6e-05 | global_step: 3 | train_step_timing in s: 12.35"
        " | TFLOPS_per_GPU: 1.249e+03"
    )
