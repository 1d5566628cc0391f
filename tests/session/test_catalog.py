"""Suite files: what they ask for, and that nothing they ask for is passed over."""

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


def asked(
    path: Path, gpu: str = "h100", release: str = ""
) -> dict[str, tuple[int, str]]:
    found = load(Settings(suites=(path,), gpu=gpu, release=release)).required_runs
    return {key.id: (one.runs, one.place) for key, one in found.items()}


def refused(path: Path, gpu: str = "h100") -> str:
    with pytest.raises(SettingsError) as error:
        asked(path, gpu)
    return str(error.value).replace(f"{path.parent}/", "")


@pytest.mark.slow
def test_the_configurations_of_one_gpu_type_are_asked_for_with_their_repeats(
    suite: Path,
) -> None:
    assert asked(suite) == {
        "grok1_314b-25.05-h100-bf16-512": (3, "exemplar.yaml:10"),
        "grok1_314b-25.05-h100-fp8-512": (3, "exemplar.yaml:10"),
        "llama3.1_70b-25.04-h100-bf16-512": (3, "exemplar.yaml:12"),
    }
    assert list(asked(suite, "gb200")) == [
        "grok1_314b-25.05-gb200-bf16-512",
        "grok1_314b-25.05-gb200-fp8-512",
    ]


@pytest.mark.slow
def test_of_several_releases_it_is_the_newest_unless_one_is_named(suite: Path) -> None:
    suite.write_text(
        SUITE.replace("  - pretrain_llama3.1_70b:\n      dtypes: [bf16]\n", "")
    )
    for given, used in (("", "25.05"), ("24.11", "24.11")):
        assert {name.split("-")[1] for name in asked(suite, release=given)} == {used}


@pytest.mark.slow
def test_several_files_ask_for_the_most(suite: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.yml"
    more.write_text(SUITE.replace("repeats: 3", "repeats: 5"))
    for order in ((suite, more), (more, suite)):
        found = load(Settings(suites=order, gpu="h100")).required_runs
        assert {one.runs for one in found.values()} == {5}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        (
            "llama3.1_70b",
            "llama31_70b",
            "12: found pretrain_llama31_70b, of which there is no baseline, expected a workload that has one "
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
            "12: found several workloads in one entry, or one again",
        ),
    ],
)
def test_what_cannot_be_judged_is_not_passed_over(
    suite: Path, written: str, instead: str, message: str
) -> None:
    assert written in SUITE
    suite.write_text(SUITE.replace(written, instead))
    assert f"exemplar.yaml:{message}" in refused(suite)


@pytest.mark.slow
def test_the_gpu_type_has_to_be_said_where_the_file_has_several(suite: Path) -> None:
    assert (
        "6: found workloads of 2 GPU types, expected --llmb-gpu to be one of gb200, h100"
        in refused(suite, "")
    )
    one = SUITE.replace(SUITE[SUITE.index("  gb200") : SUITE.index("  h100")], "")
    suite.write_text(one)
    assert len(asked(suite, "")) == 3
    assert (
        "found no workloads of --llmb-gpu=gb200, expected --llmb-gpu to be one of h100"
        in refused(suite, "gb200")
    )


def write_ids(path: Path, gpu: str, *named: tuple[str, str]) -> None:
    entries = "".join(
        f"  - {name}:\n      dtypes: [{dtype}]\n" for name, dtype in named
    )
    path.write_text(
        f"config: {{repeats: 2}}\nworkloads:\n  {gpu}:\n{entries}", encoding="utf-8"
    )


@pytest.mark.slow
def test_an_id_names_one_configuration_with_its_own_gpus(suite: Path) -> None:
    """Of rows of any size, whatever `scale` says; a task, a variant and a release of
    its own are part of the id."""
    named = (
        ("megatron_bridge_llama3_70b-26.06-gb300-fp8_cs-8-lora", "fp8_cs"),
        ("megatron_bridge_deepseek_v3-26.06-gb300-fp8_mx-256-gbs15360", "fp8_mx"),
        ("megatron_bridge_llama31_405b-26.04.01-gb300-nvfp4-256", "nvfp4"),
        ("megatron_bridge_deepseek_v3-25.11-gb300-bf16-256-without_mtp", "bf16"),
    )
    write_ids(suite, "gb300", *named)
    assert asked(suite, "gb300") == {
        name: (2, f"exemplar.yaml:{line}")
        for line, (name, _) in zip((4, 6, 8, 10), named, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (
            "megatron_bridge_llama3_70b-26.06-gb300-fp8_cs-8-lora",
            "fp8_mx",
            "expected one that has a baseline: fp8_cs",
        ),
        (
            "megatron_bridge_llama3_70b-26.06-h100-fp8_cs-8-lora",
            "fp8_cs",
            "expected one that has a baseline: none on",
        ),
    ],
)
def test_an_id_that_is_none_or_of_another_gpu_type_is_refused(
    suite: Path, name: str, dtype: str, message: str
) -> None:
    write_ids(suite, "gb300", (name, dtype))
    assert message in refused(suite, "gb300")
