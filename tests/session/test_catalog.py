"""Suite files: required configurations, and errors for entries without a baseline."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.settings import Settings

SUITE = """config:
  scale: 512
  repeats: 3
  profile: true
workloads:
  gb200:
  - pretrain_grok1_314b:
      dtypes: [bf16, fp8]
  h100:
  - pretrain_grok1_314b:
      dtypes: [bf16, fp8]
  - pretrain_llama3.1_70b:
      dtypes: [bf16]
"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "exemplar.yaml"
    path.write_text(SUITE, encoding="utf-8")
    return path


def list_required(
    path: Path, gpu: str = "h100", release: str = ""
) -> dict[str, tuple[int, str]]:
    required = load(Settings(suites=(path,), gpu=gpu, release=release)).required_runs
    return {key.id: (runs.runs, runs.place) for key, runs in required.items()}


def get_error(path: Path, gpu: str = "h100") -> str:
    with pytest.raises(SettingsError) as error:
        list_required(path, gpu)
    return str(error.value).replace(f"{path.parent}/", "")


@pytest.mark.slow
def test_suite_file_requires_configurations_of_one_gpu(
    suite: Path,
) -> None:
    assert list_required(suite) == {
        "grok1_314b-25.05-h100-bf16-512": (3, "exemplar.yaml:10"),
        "grok1_314b-25.05-h100-fp8-512": (3, "exemplar.yaml:10"),
        "llama3.1_70b-25.04-h100-bf16-512": (3, "exemplar.yaml:12"),
    }
    assert list(list_required(suite, "gb200")) == [
        "grok1_314b-25.05-gb200-bf16-512",
        "grok1_314b-25.05-gb200-fp8-512",
    ]


@pytest.mark.slow
def test_suite_file_uses_the_newest_release(suite: Path) -> None:
    suite.write_text(
        SUITE.replace("  - pretrain_llama3.1_70b:\n      dtypes: [bf16]\n", "")
    )
    for release, expected in (("", "25.05"), ("24.11", "24.11")):
        assert {
            name.split("-")[1] for name in list_required(suite, release=release)
        } == {expected}


@pytest.mark.slow
def test_several_suite_files_require_the_most_runs(suite: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text(SUITE.replace("repeats: 3", "repeats: 5"))
    for order in ((suite, more), (more, suite)):
        required = load(Settings(suites=order, gpu="h100")).required_runs
        assert {runs.runs for runs in required.values()} == {5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "llama3.1_70b",
            "llama31_70b",
            "12: found pretrain_llama31_70b, which has no baseline, expected a workload with a baseline "
            "(did you mean 'pretrain_llama3.1_70b'?)",
        ),
        (
            "scale: 512",
            "scale: 500",
            "10: found pretrain_grok1_314b in bf16 on 500 h100, expected one",
        ),
        (
            "repeats: 3",
            "repeat: 3",
            "3: found the unknown key 'repeat', expected profile, repeats, scale (did you",
        ),
        (
            "pretrain_llama3.1_70b",
            "pretrain_grok1_314b",
            "12: found several workloads in one entry, or a repeated one",
        ),
    ],
)
def test_suite_entry_without_a_baseline_is_refused(
    suite: Path, written: str, instead: str, message: str
) -> None:
    assert written in SUITE
    suite.write_text(SUITE.replace(written, instead))
    assert f"exemplar.yaml:{message}" in get_error(suite)


@pytest.mark.slow
def test_suite_file_with_several_gpus_needs_the_option(suite: Path) -> None:
    assert (
        "6: found workloads of 2 GPU types, expected --llmb-gpu to be one of gb200, h100"
        in get_error(suite, "")
    )
    single_gpu = SUITE.replace(
        SUITE[SUITE.index("  gb200") : SUITE.index("  h100")], ""
    )
    suite.write_text(single_gpu)
    assert len(list_required(suite, "")) == 3
    assert (
        "found no workloads of --llmb-gpu=gb200, expected --llmb-gpu to be one of h100"
        in get_error(suite, "gb200")
    )


def write_ids(path: Path, gpu: str, *workloads: tuple[str, str]) -> None:
    entries = "".join(
        f"  - {name}:\n      dtypes: [{dtype}]\n" for name, dtype in workloads
    )
    path.write_text(
        f"config: {{repeats: 2}}\nworkloads:\n  {gpu}:\n{entries}", encoding="utf-8"
    )


@pytest.mark.slow
def test_suite_file_accepts_configuration_ids(suite: Path) -> None:
    """An id includes the number of GPUs (`scale` is ignored), the task, variant and
    release."""
    workloads = (
        ("megatron_bridge_llama3_70b-26.06-gb300-fp8_cs-8-lora", "fp8_cs"),
        ("megatron_bridge_deepseek_v3-26.06-gb300-fp8_mx-256-gbs15360", "fp8_mx"),
        ("megatron_bridge_llama31_405b-26.04.01-gb300-nvfp4-256", "nvfp4"),
        ("megatron_bridge_deepseek_v3-25.11-gb300-bf16-256-without_mtp", "bf16"),
    )
    write_ids(suite, "gb300", *workloads)
    assert list_required(suite, "gb300") == {
        name: (2, f"exemplar.yaml:{line}")
        for line, (name, _) in zip((4, 6, 8, 10), workloads, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (
            "megatron_bridge_llama3_70b-26.06-gb300-fp8_cs-8-lora",
            "fp8_mx",
            "expected one with a baseline: fp8_cs",
        ),
        (
            "megatron_bridge_llama3_70b-26.06-h100-fp8_cs-8-lora",
            "fp8_cs",
            "expected one with a baseline: there is none for",
        ),
    ],
)
def test_unknown_id_or_other_gpu_is_refused(
    suite: Path, name: str, dtype: str, message: str
) -> None:
    write_ids(suite, "gb300", (name, dtype))
    assert message in get_error(suite, "gb300")
