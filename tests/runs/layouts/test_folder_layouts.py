"""Layouts at any position in a path, and the surroundings above them."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from pytest_llmbench.runs.layouts.folder_layouts import find_layout, find_surroundings

RESULTS = {"dtype": "bf16", "size": "314b", "gpus": "512"}
GROK = {"recipe": "grok1", "size": "314b", "dtype": "bf16", "gpus": "256"}
NAME = "pretrain_grok1_314b_bf16_256"


@pytest.mark.parametrize(
    ("path", "name", "expected", "first"),
    [
        (
            "/s/results/24.11/bf16/314b/512",
            "results",
            {**RESULTS, "release": "24.11"},
            "24.11",
        ),
        (
            "/s/results/25.01-nccl-trace/bf16/314b/512",
            "results",
            {**RESULTS, "release": "25.01"},
            "25.01-nccl-trace",
        ),
        (
            "/s/24.11_dev/bf16/314b/512",
            "results",
            {**RESULTS, "release": "24.11_dev"},
            "24.11_dev",
        ),
        ("/s/results/nightly/bf16/314b/512", "results", RESULTS, "nightly"),
        ("/bf16/314b/512", "", RESULTS, "bf16"),
        (f"/s/experiments/{NAME}/{NAME}_17/{NAME}", "experiments", GROK, NAME),
        (
            f"/s/experiments/{NAME}/{NAME}_17/{NAME}/nemo_run/job/{NAME}/0",
            "experiments",
            GROK,
            NAME,
        ),
        (
            "/s/experiments/grok1_314b_bf16_256",
            "experiments",
            GROK,
            "grok1_314b_bf16_256",
        ),
        (
            f"/i/workloads/pretrain_grok1/experiments/{NAME}/1795213874",
            "workloads",
            GROK,
            NAME,
        ),
        (
            f"/i/llmb-archive-20260102/pretrain_grok1/experiments/{NAME}",
            "workloads",
            GROK,
            NAME,
        ),
        (
            "/i/workloads/pretrain_grok1",
            "workloads",
            {"recipe": "grok1"},
            "pretrain_grok1",
        ),
        (f"/x/{NAME}/copy", "", GROK, NAME),
        ("/x/results", "", {}, "results"),
        # the innermost layout counts
        (f"/ci/results/24.11/fp8/8b/8/experiments/{NAME}", "experiments", GROK, NAME),
        (
            f"/s/experiments/{NAME}/results/24.11/bf16/314b/512",
            "results",
            {**RESULTS, "release": "24.11"},
            "24.11",
        ),
        (
            "/e/experiments/results/24.11/bf16/314b/512",
            "results",
            {**RESULTS, "release": "24.11"},
            "24.11",
        ),
    ],
)
def test_innermost_layout_describes_run(
    path: str, name: str, expected: dict[str, str], first: str
) -> None:
    layout = find_layout(PurePosixPath(path).parts)
    assert layout.name == name
    assert {hint.field: hint.value for hint in layout.hints} == expected
    assert layout.inside[0] == first


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/s/experiments/{NAME}/{NAME}_17/{NAME}", (NAME, f"{NAME}_17", NAME)),
        (
            f"/i/workloads/pretrain_grok1/experiments/{NAME}/1795213874",
            (NAME, "1795213874"),
        ),
        (f"/nightly/{NAME}/copy", (NAME, "copy")),
        ("/i/workloads/pretrain_grok1_1744407969", ()),
        ("/x/1744407969", ()),
    ],
)
def test_experiment_path_begins_at_the_folder_named_like_the_experiment(
    path: str, expected: tuple[str, ...]
) -> None:
    assert find_layout(PurePosixPath(path).parts).experiment == expected


def test_contradicting_folders_all_yield_hints() -> None:
    layout = find_layout(
        PurePosixPath(
            "/s/experiments/pretrain_x_8b_fp8_8/pretrain_x_8b_bf16_8_17"
        ).parts
    )
    assert {hint.value for hint in layout.hints if hint.field == "dtype"} == {
        "fp8",
        "bf16",
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/lustre/dgx-h100-01/runs", {"gpu": "h100"}),
        ("/lustre/h100/gb200_nightly/runs", {"gpu": "gb200"}),
        ("/lustre/h100-vs-gb200/runs", {}),
        ("/lustre/mi355x/runs", {"gpu": "mi355x"}),
        # a version, and a training
        ("/lustre/h100/release_v100", {"gpu": "h100"}),
        ("/lustre/h100/exp-trn1", {"gpu": "h100"}),
        ("/lustre/ch100se/runs", {}),
        ("/lustre/25.08/runs", {"release": "25.08"}),
        ("/lustre/llmb-25.08.01/runs", {"release": "25.08.01"}),
        ("/lustre/nemo-25.04/2025.05.04/runs", {}),
    ],
)
def test_gpu_type_and_release_are_read_from_folder_names_above_the_layout(
    path: str, expected: dict[str, str]
) -> None:
    assert {
        hint.field: hint.value for hint in find_surroundings(PurePosixPath(path).parts)
    } == expected


def test_gpu_type_is_read_from_the_nearest_folder_name() -> None:
    parts = (
        "/",
        "h100",
        *("d" * number for number in range(1, 5000)),
        "gb200",
        *["d"] * 5000,
    )
    assert [(hint.field, hint.value) for hint in find_surroundings(parts)] == [
        ("gpu", "gb200")
    ]
