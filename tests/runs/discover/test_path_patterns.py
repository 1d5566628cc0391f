"""Patterns of paths: which parts are generalised, and which are kept."""

from __future__ import annotations

import pytest

from pytest_llmbench.runs.discover.path_patterns import (
    find_job_number,
    generalise,
    make_pattern,
    matches,
)

OPEN = {
    "slurm-1234567.out": ("slurm-#.out", "slurm-7654321.out"),
    "2025-11-20_03-15-22": ("#-#-#_#-#-#", "2025-12-01_23-00-00"),
    "run-20251120_031522-a1b2c3d4": ("run-#_#-*", "run-20251201_230000-zz9y8x7w"),
    "Nov20_03-15-22_nid001": ("*#_#-#-#_nid001", "Dec01_23-00-00_nid001"),
    "version_3": ("version_#", "version_12"),
    "run7": ("run#", "run8"),
    "result_2.txt": ("result_#.txt", "result_10.txt"),
    "attempt_0": ("attempt_#", "attempt_1"),
}
KEPT = (
    "gpt2_8",
    "llama_seq32768_bf16",
    "ctx_65536",
    "vocab_50257",
    "trial_3",
    "steps_100000",
    "qwen3-14b_8gpus",
    "tp4_pp2",
    "lr0.0003",
    "run_8b",
    "version_64gpu",
    "seq4096",
    "prerun_4",
)


@pytest.mark.parametrize("name", OPEN)
def test_dates_and_job_numbers_in_paths_are_generalised(name: str) -> None:
    pattern, later = OPEN[name]
    assert generalise(name) == pattern
    assert matches(pattern, ("any", name))
    assert matches(pattern, ("any", later))


@pytest.mark.parametrize("name", KEPT)
def test_sizes_and_settings_in_path_components_are_not_generalised(name: str) -> None:
    assert generalise(name) == name


def test_short_job_id_is_generalised_in_log_name() -> None:
    assert make_pattern(("gpt2_8", "log-x_8_0.out"), "8") == "gpt2_8/log-x_#_0.out"
    assert (
        make_pattern(("gpt2_81234", "log-x_81234_0.out"), "81234")
        == "gpt2_#/log-x_#_0.out"
    )


def test_job_id_of_any_length_is_generalised() -> None:
    assert (
        make_pattern(("llama3_8b", "log-x_12_0.out.gz"), "12")
        == "llama3_8b/log-x_#_0.out"
    )


SHORT_JOBS = {
    "titan_4811.err": "titan_#.err",
    "train-47113.out": "train-#.out",
    "4811_0_log.err": "#_0_log.err",
    "train-4811-worker-1.log": "train-#-worker-1.log",
    "lsf.4811.err": "lsf.#.err",
    "4811.pbs01.OU": "#.pbs01.OU",
    "output.4811": "output.#",
    "train_seed_1234.log": "train_seed_1234.log",
    "seq_32769.log": "seq_32769.log",
    "llama_1152_gpus.out": "llama_1152_gpus.out",
    "llama_1250_gpus.out": "llama_1250_gpus.out",
    "llama_4096.out": "llama_4096.out",
    "lr_0.0003.log": "lr_0.0003.log",
    "d4811.log": "d4811.log",
    "titan_812.err": "titan_812.err",
}


@pytest.mark.parametrize("name", SHORT_JOBS)
def test_short_number_is_generalised_unless_a_size(name: str) -> None:
    assert make_pattern(("x", name)) == f"x/{SHORT_JOBS[name]}"


def test_folder_number_is_generalised_unless_a_size() -> None:
    assert make_pattern(("llama", "4811", "rank_3.log")) == "llama/#/rank_3.log"
    assert make_pattern(("llama", "4608", "rank_3.log")) == "llama/4608/rank_3.log"
    assert make_pattern(("llama", "812", "rank_3.log")) == "llama/812/rank_3.log"


@pytest.mark.parametrize(
    ("name", "job"),
    [("slurm-4811_3.out", "4811_3"), ("x.o4811.3", "4811.3"), ("x.o4811-3", "")],
)
def test_array_job_matches_its_pattern(name: str, job: str) -> None:
    pattern = make_pattern(("x", name), job)
    assert matches(pattern, ("x", name))
    assert matches(pattern, ("x", name.replace("4811", "4977")))


@pytest.mark.parametrize(
    "launch", ["none_ab12_d9z", "ad1460d7-4986-4a2c-825c-39c744d58182__1pvzz1k"]
)
def test_random_torchrun_folder_is_generalised(launch: str) -> None:
    pattern = make_pattern(("elog", launch, "attempt_0", "0", "stderr.log"))
    assert matches(
        pattern, ("x", "elog", launch[:-8] + "q8_x7yz1", "attempt_1", "0", "stderr.log")
    )
    assert not matches(pattern, ("x", "elog", launch, "attempt_1", "1", "stderr.log"))
    assert make_pattern(("llama_tokenized", "train.log")) == "llama_tokenized/train.log"


@pytest.mark.parametrize(
    "path",
    [
        "train.log",
        "a/b/x/train.log",
        "a/x/train.log.gz",
        "b/x/train.out",
        "b/x2/train.log",
    ],
)
def test_path_pattern_of_a_baseline_matches_no_other_path(path: str) -> None:
    assert matches("b/x/train.log", path.split("/")) is (path == "a/b/x/train.log")


def test_number_placeholder_of_a_path_pattern_matches_digits_only() -> None:
    assert not matches("run_#", ("run_fp8",))
    assert not matches("run_#", ("run_1_fp8",))
    assert matches("*_#", ("any_7",))


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("llama/train-4711.out", "4711"),
        ("llama/train_7654711.out.gz", "7654711"),
        ("llama/7654711/train.log", "7654711"),
        ("llama/4711/node3/train.log", "4711"),
        ("llama/2026-11-20/train.log", ""),
        ("llama/train_20261120_020000.log", ""),
        ("llama/train_1763692800.log", ""),
        ("llama/seq_32769/train.log", ""),
        ("llama_4096/train.log", ""),
        ("llama/train_4711_20011.log", ""),
        ("9123456/a/b/c/train.log", ""),
        ("llama/run_7/train.log", ""),
    ],
)
def test_job_number_is_read_from_the_nearest_path_component_if_unambiguous(
    path: str, number: str
) -> None:
    assert find_job_number(path.split("/")) == number
