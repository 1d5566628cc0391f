"""Names of experiments and logs: all documented spellings, and other names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.runs.discover.names import (
    Experiment,
    LogName,
    is_profiled,
    is_traced,
    read_experiment,
    read_log_name,
    read_workload,
    strip_suffix,
)


def to_dict(text: str) -> dict[str, str]:
    parsed = read_experiment(text)
    assert parsed is not None
    return dict(parsed.pairs)


GROK = {"recipe": "grok1", "size": "314b", "dtype": "bf16", "gpus": "256"}
LLAMA = {"recipe": "llama3.1", "size": "70b", "dtype": "fp8", "gpus": "256"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pretrain_grok1_314b_bf16_256", GROK),
        ("pretraining_grok1_314b_bf16_256", GROK),
        ("pretrain_grok1_314b_bf16_256_388660", GROK),
        ("pretrain_grok1_314b_bf16_256_1795213958444873766", GROK),
        ("pretrain_llama3.1_70b_fp8_256_nsys", LLAMA),
        ("pretrain_llama3.1_70b_fp8_256_second-try", LLAMA),
        (
            "pretrain_faketrain_8b_bf16_2nodes",
            {"recipe": "faketrain", "size": "8b", "dtype": "bf16", "nodes": "2"},
        ),
        (
            "pretrain_mixtral_8x7b_fp8cs_8",
            {"recipe": "mixtral", "size": "8x7b", "dtype": "fp8cs", "gpus": "8"},
        ),
        (
            "pretrain_qwen3_30b_a3b_mxfp8_gb200_64",
            {
                "recipe": "qwen3",
                "size": "30b_a3b",
                "dtype": "mxfp8",
                "gpu": "gb200",
                "gpus": "64",
            },
        ),
        (
            "pretrain_llama3.1_405b_proxy_bf16_64",
            {
                "recipe": "llama3.1",
                "size": "405b",
                "dtype": "bf16",
                "proxy": "true",
                "gpus": "64",
            },
        ),
        (
            "finetune_llama3_70b_lora_bf16_8",
            {
                "task": "finetune",
                "recipe": "llama3",
                "size": "70b",
                "dtype": "bf16",
                "variant": "lora",
                "gpus": "8",
            },
        ),
        (
            "pretrain_llama3.1_70b_fp8_cs_256",
            {**LLAMA, "variant": "cs"},
        ),
        (
            "pretrain_llama3_70b_fp8_cs_gpus64_tp1_pp4_cp2_vp5_ep1_etpNone_mbs1_gbs256_7_0",
            {
                "recipe": "llama3",
                "size": "70b",
                "dtype": "fp8",
                "variant": "cs",
                "gpus": "64",
                "tp": "1",
                "pp": "4",
                "cp": "2",
                "vp": "5",
                "ep": "1",
                "micro_batch_size": "1",
                "global_batch_size": "256",
            },
        ),
        (
            "pretrain_x_8b_lora_fp8_ds_8",
            {
                "recipe": "x",
                "size": "8b",
                "dtype": "fp8",
                "variant": "lora_ds",
                "gpus": "8",
            },
        ),
        (
            "pretrain_x_8b_bf16_mx_gpus8",
            {"recipe": "x", "size": "8b", "dtype": "bf16", "gpus": "8"},
        ),
    ],
)
def test_experiment_name_is_parsed(name: str, expected: dict[str, str]) -> None:
    assert to_dict(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "grok1_314b_bf16_256",
        "pretrain_grok1",
        "results",
        "nemo_experiments",
        "pretrain_grok1_256",
        "",
    ],
)
def test_name_of_another_form_is_no_experiment(name: str) -> None:
    assert read_experiment(name) is None


@pytest.mark.parametrize(
    ("stem", "base", "job", "attempt", "expected"),
    [
        (
            "log-nemo_grok1_314b_512_1234",
            "log-nemo_grok1_314b_512",
            "1234",
            0,
            ("nemo_grok1", "314b", "512"),
        ),
        (
            "log-nemo_grok1_314b_512",
            "log-nemo_grok1_314b_512",
            "",
            0,
            ("nemo_grok1", "314b", "512"),
        ),
        (
            "log-maxtext-64_70b_1407993",
            "log-maxtext-64_70b",
            "1407993",
            0,
            ("maxtext", "70b", "64"),
        ),
        (
            "log-root-root.pretrain_x_8b_bf16_2nodes_2_0",
            "log-root-root.pretrain_x_8b_bf16_2nodes",
            *("2", 0, ("x", "8b", None)),
        ),
        (
            "log-pretrain_team-a.pretrain_llama3.1_70b_fp8_256_77_1",
            "log-pretrain_team-a.pretrain_llama3.1_70b_fp8_256",
            *("77", 1, ("llama3.1", "70b", "256")),
        ),
        (
            "log-pretrain_grok1_314b_bf16_256",
            "log-pretrain_grok1_314b_bf16_256",
            "",
            0,
            ("grok1", "314b", "256"),
        ),
        (
            "log-pretrain_grok1_314b_bf16_256_38",
            "log-pretrain_grok1_314b_bf16_256",
            "38",
            0,
            ("grok1", "314b", "256"),
        ),
        (
            "log-a-a.pretrain_grok1_314b_fp8_gpus128_tp4_gbs512_7_12",
            "log-a-a.pretrain_grok1_314b_fp8_gpus128_tp4_gbs512",
            *("7", 12, ("grok1", "314b", "128")),
        ),
        ("log-fakecfg_8_0", "log-fakecfg", "8", 0, (None, None, None)),
        ("grok1_314b_bf16_256", "grok1_314b_bf16_256", "", 0, ("grok1", "314b", "256")),
        ("tuesday_12_1", "tuesday_12_1", "", 0, (None, None, None)),
    ],
)
def test_log_name_is_parsed(
    stem: str, base: str, job: str, attempt: int, expected: tuple[str | None, ...]
) -> None:
    """Only the position of a number decides if it is a GPU count or a job id."""
    parsed = read_log_name(stem)
    assert (parsed.base, parsed.job, parsed.attempt) == (base, job, attempt)
    assert (
        tuple(dict(parsed.pairs).get(field) for field in ("recipe", "size", "gpus"))
        == expected
    )


def test_name_with_any_characters_is_parsed() -> None:
    assert read_log_name("log-a\nb ü_7_0") == LogName("log-a\nb ü", (), "7", 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pretrain_grok1", (("recipe", "grok1"),)),
        ("pretraining_llama3.1", (("recipe", "llama3.1"),)),
        ("finetune_llama3", (("task", "finetune"), ("recipe", "llama3"))),
        ("images", ()),
    ],
)
def test_workload_name_is_parsed(
    name: str, expected: tuple[tuple[str, str], ...]
) -> None:
    assert read_workload(name) == expected


@pytest.mark.parametrize(
    ("name", "profiled", "traced"),
    [
        ("pretrain_llama3.1_70b_fp8_256_nsys", True, False),
        ("log-a-a.pretrain_llama3.1_70b_fp8_256_nsys_1234_0", True, False),
        ("nsys_free_run", False, False),
        ("profile-results", False, False),
        ("24.11-nccl-trace", False, True),
        ("pretrain_llama3.1_8b_fp8_16_nccltrace", False, True),
        ("nccl-tests", False, False),
    ],
)
def test_profiled_and_traced_names_are_recognised(
    name: str, profiled: bool, traced: bool
) -> None:
    assert (is_profiled(name), is_traced(name)) == (profiled, traced)


HEADS = ["", "grok1_8b_bf16_", "pretrain_grok1_8b_bf16_", "sft_x_8x9b_proxy_fp8_512_"]
WORDS = [
    "pretrain",
    "grok1",
    "8b",
    "bf16",
    "fp",
    "512",
    "31",
    "gpus64",
    "2nodes",
    "tp4",
    "v1",
    "nsys",
]


@pytest.mark.slow
@given(
    st.sampled_from(HEADS),
    st.lists(st.sampled_from(WORDS), max_size=5),
    st.sampled_from(["", "_0", "_31"]),
)
def test_short_and_long_job_number_in_a_name_are_parsed_alike(
    head: str, words: list[str], restart: str
) -> None:
    """Long trailing numbers are removed before parsing, short ones are parsed with the
    name."""
    short, long = (head + "_".join([*words, job]) + restart for job in ("7", "1234567"))
    for typed in (True, False):
        assert repr(read_experiment(short, typed=typed)) == strip_long_numbers(
            read_experiment(long, typed=typed)
        )
    assert repr(read_log_name(f"log-x.{short}")) == strip_long_numbers(
        read_log_name(f"log-x.{long}")
    )


def strip_long_numbers(parsed: Experiment | LogName | None) -> str:
    return repr(parsed).replace("1234567", "7")


def test_folder_name_tells_number_of_gpus_from_job_id_in_a_log_name() -> None:
    """`results/.../<size>/<gpus>/log-<recipe>_<size>_<gpus>_<job>.out` with an unusual
    size."""
    assert (
        read_log_name("log-mine_small_8_1", "8").job,
        read_log_name("log-mine_small_8_1", "8").attempt,
    ) == ("1", 0)
    assert (
        read_log_name("log-mine_small_8_1", "16").job,
        read_log_name("log-mine_small_8_1", "16").attempt,
    ) == (
        "8",
        1,
    )
    assert (
        read_log_name("log-mine_small_8_1", "8").base
        == read_log_name("log-mine_small_8_2", "8").base
    )


@pytest.mark.parametrize("dtype", ["fp8_mx", "bf16"])
def test_megatron_bridge_name_without_gpus_ends_with_job(dtype: str) -> None:
    base = f"log-acct-llm.llama3_8b_llm_pretrain_{dtype}"
    assert read_log_name(f"{base}_1409900_1") == LogName(base, (), "1409900", 1)


@pytest.mark.parametrize("file", ["a.b.log", ".out", "a.", "..", "", "a"])
def test_file_name_stem_equals_that_of_pathlib(file: str) -> None:
    # Python 3.14 treats a trailing dot as a suffix.
    assert strip_suffix(file) == (file if file.endswith(".") else Path(file).stem)
