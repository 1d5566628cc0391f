"""The training script of tiny_llama: model, training, devices and log lines."""

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
def small_size(train: ModuleType) -> Any:
    """The size of a model that trains in no time."""
    return train.Size(2, 32, 4, 2, 48, 64, sequence=16, batch=4, micro_batch=4)


@pytest.fixture
def torch(train: ModuleType) -> Any:
    """The torch module, seeded."""
    train.torch.manual_seed(1)
    return train.torch


def make_trainer(train: ModuleType, size: Any, dtype: str = "fp32") -> Any:
    """Make a trainer on the CPU."""
    return train.Trainer(size, dtype, train.torch.device(CPU))


@pytest.mark.slow
def test_sizes_and_flops_match_the_baseline_file(
    train: ModuleType, recipe: Path
) -> None:
    baselines = read_recipe(recipe / "tiny_llama.yaml").baselines
    assert {baseline.key.size for baseline in baselines} == set(train.SIZES)
    baselines += read_recipe(recipe / "tiny_llama_compiled.yaml").baselines
    for baseline in baselines:
        size, configuration = train.SIZES[baseline.key.size], baseline.configuration
        architecture = configuration.architecture
        assert (size.layers, size.hidden, size.ffn) == (
            architecture.layers,
            architecture.hidden_size,
            architecture.ffn_size,
        )
        assert (size.heads, size.groups) == (
            architecture.attention_heads,
            architecture.query_groups,
        )
        assert (size.vocabulary, size.sequence) == (
            architecture.vocabulary_size,
            architecture.sequence_length,
        )
        batch = (configuration.global_batch_size, configuration.micro_batch_size)
        assert (size.batch * baseline.key.gpus, size.micro_batch) == batch
        assert size.flops == count_model_flops(architecture), baseline.key.id


@pytest.mark.slow
def test_model_flops_match_the_formula(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    """PyTorch counts every matrix product, and attention with the whole score matrix."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    first = make_trainer(train, small_size)
    with counter, sdpa_kernel(SDPBackend.MATH):
        first.step(0)
    assert counter.get_total_flops() == small_size.flops * small_size.batch


def test_attention_is_causal(train: ModuleType, torch: Any, small_size: Any) -> None:
    attention, turn = train.Attention(small_size), train.compute_rotations(small_size)
    x = torch.randn(1, small_size.sequence, small_size.hidden)
    changed = x.clone()
    changed[:, 10:] += 1
    before, after = attention(x, turn), attention(changed, turn)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)


def test_query_key_products_after_rotary_embedding_depend_only_on_distance(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    turn = train.compute_rotations(small_size)
    query, key = (
        torch.randn(small_size.hidden // small_size.heads).expand(
            small_size.sequence, -1
        )
        for _ in range(2)
    )
    products = train.rotate(query, turn) @ train.rotate(key, turn).T
    for distance in range(small_size.sequence - 1):
        diagonal = products.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-4)
    assert not torch.allclose(products[0, 0], products[0, 1], atol=1e-3)


@pytest.mark.slow
def test_micro_batches_do_not_change_the_result(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    """Gradients are accumulated, so loss and weights do not depend on micro-batches."""
    whole, cut = (
        make_trainer(train, small_size._replace(micro_batch=number))
        for number in (4, 1)
    )
    for step in range(3):
        first, second = whole.step(step), cut.step(step)
        assert first["reduced_train_loss"] == pytest.approx(
            second["reduced_train_loss"], rel=1e-5
        )
    for first, second in zip(
        whole.model.parameters(), cut.model.parameters(), strict=True
    ):
        assert torch.allclose(first, second, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_weights_are_fp32_and_cast_once_per_step(
    train: ModuleType,
    torch: Any,
    small_size: Any,
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = make_trainer(train, small_size._replace(micro_batch=1), dtype)
    cast, before = first.weights.cast, first.weights.master.detach().clone()
    calls: list[int] = []

    def count_cast() -> None:
        calls.append(1)
        cast()

    monkeypatch.setattr(first.weights, "cast", count_cast)
    losses = [first.step(step)["reduced_train_loss"] for step in range(12)]
    assert losses[-1] < losses[0]
    assert len(calls) == 12
    assert first.weights.master.dtype is first.weights.gradient.dtype is torch.float32
    assert (first.weights.master != before).all()
    cast()
    for copy in first.model.parameters():
        assert copy.dtype is train.DTYPES[dtype]
        assert copy.grad is None
    assert torch.equal(
        torch.cat([copy.flatten() for copy in first.model.parameters()]),
        first.weights.copies,
    )


@pytest.mark.slow
def test_bf16_gradients_are_accumulated_in_fp32(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    """Losses agree for one batch, for micro-batches and for FP32, except for rounding."""
    whole, cut = (
        make_trainer(train, small_size._replace(micro_batch=number), "bf16")
        for number in (4, 1)
    )
    exact = make_trainer(train, small_size)
    for step in range(12):
        losses = [
            entry.step(step)["reduced_train_loss"] for entry in (whole, cut, exact)
        ]
        assert losses[1:] == pytest.approx(losses[:1] * 2, rel=5e-3)


def test_bf16_model_computes_in_bf16(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    dtypes = set()
    first = make_trainer(train, small_size, "bf16")
    for module in first.model.blocks.modules():
        module.register_forward_hook(
            lambda _module, _inputs, output: dtypes.add(output.dtype)
        )
    first.step(0)
    assert dtypes == {torch.bfloat16}


def test_attention_does_not_repeat_keys_and_values(
    train: ModuleType, torch: Any, small_size: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result equals attention over repeated keys and values."""
    attend, shapes = train.functional.scaled_dot_product_attention, []

    def watch(query: Any, key: Any, value: Any, **options: Any) -> Any:
        shapes.append((query.shape[1], key.shape[1], value.shape[1]))
        mixed = attend(query, key, value, **options)
        repeated = (tensor.repeat_interleave(2, dim=1) for tensor in (key, value))
        assert torch.allclose(
            mixed, attend(query, *repeated, is_causal=True), atol=1e-6
        )
        return mixed

    monkeypatch.setattr(train.functional, "scaled_dot_product_attention", watch)
    make_trainer(train, small_size).step(0)
    assert set(shapes) == {(small_size.heads, small_size.groups, small_size.groups)}


def test_model_is_compiled_only_on_request(
    train: ModuleType, torch: Any, small_size: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []

    def compile_model(model: Any) -> None:
        compiled.append(model)

    monkeypatch.setattr(train.Llama, "compile", compile_model)
    make_trainer(train, small_size)
    assert not compiled
    first = train.Trainer(small_size, "fp32", torch.device(CPU), compiled=True)
    assert compiled == [first.model]


def test_training_processes_split_one_global_batch(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    whole = train.Trainer(small_size._replace(batch=8), "fp32", torch.device(CPU))
    parts = [
        train.Trainer(small_size, "fp32", torch.device(CPU), rank=rank, ranks=2)
        for rank in range(2)
    ]
    assert torch.equal(whole._tokens(), torch.cat([part._tokens() for part in parts]))


def test_tokens_are_reproducible(
    train: ModuleType, torch: Any, small_size: Any
) -> None:
    first, second = make_trainer(train, small_size), make_trainer(train, small_size)
    tokens = first._tokens()
    assert torch.equal(tokens, second._tokens())
    assert not torch.equal(tokens, first._tokens())
    assert tokens.shape == (4, 17)
    assert 0 <= tokens.min() <= tokens.max() < small_size.vocabulary


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
def test_gpu_of_another_type_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str, gpu: str
) -> None:
    """The run would be judged against the baseline and peak of another GPU."""
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(train.torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(train.torch.cuda, "get_device_name", lambda _: name)
    assert read_gpu_type(name) == gpu
    assert train.find_device(gpu).type == "cuda"
    for other_type in {*NAMES.values()} - {gpu}:
        with pytest.raises(
            SystemExit,
            match=f"GPU_TYPE={other_type}: found {name}, which is of type {gpu}$",
        ):
            train.find_device(other_type)


def test_process_without_gpu_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(train.torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(
        SystemExit, match="process 5 of this node has no GPU: PyTorch finds 4"
    ):
        train.find_device("h100")


@pytest.mark.parametrize(("processes", "gpus"), [("2", 8), ("1", 8), ("2", 1)])
def test_number_of_processes_must_match_the_gpus(
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
def test_environment_is_logged_and_parsed(
    train: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    printed: str | None,
    expected: dict[str, str],
) -> None:
    """Values that nvidia-smi does not print are omitted."""

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
    values = train.collect_environment(train.torch.device("cuda", 0))
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


def test_missing_gpu_is_refused(
    train: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train.torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        SystemExit,
        match=r"GPU_TYPE=h100: PyTorch .* finds no GPU; GPU_TYPE=cpu needs none",
    ):
        train.find_device("h100")


def test_step_line_is_formatted_like_a_nemo_log(train: ModuleType) -> None:
    values = {
        "lr": 6e-05,
        "global_step": 3,
        "train_step_timing in s": 12.3456,
        "TFLOPS_per_GPU": 1249.4,
    }
    assert train.format_line(3, 50, values) == (
        "Training epoch 0, iteration 3/49 | lr: 6e-05 | global_step: 3 | train_step_timing in s: 12.35"
        " | TFLOPS_per_GPU: 1.249e+03"
    )
