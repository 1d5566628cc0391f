"""Profiles, traces and checkpoints: documented variables are set, other requests
refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.builders import BASELINE
from support.planned_jobs import FACTS

from pytest_llmbench.core.baseline_records import Configuration, Key
from pytest_llmbench.core.errors import LaunchError
from pytest_llmbench.core.job_records import LaunchFacts, Pairs, Profiling, Purpose
from pytest_llmbench.launch.plan.purpose import (
    ProfileRequest,
    build_variables,
    explain_ineffective,
    explain_unloadable,
    find_outputs,
    parse_profile,
)

NEMOTRON = replace(
    FACTS,
    recipe="nemotron4",
    release="25.01",
    profiling=Profiling(
        enable=(("ENABLE_PROFILE", "true"),),
        start="RUN_CONF_PROFILE_START_STEP",
        stop="RUN_CONF_PROFILE_STOP_STEP",
        ranks="RUN_CONF_PROFILE_RANKS",
        gpu_metrics="RUN_CONF_PROFILE_GPU_METRICS",
        cpu="RUN_CONF_PROFILE_CPU",
        default_start=20,
        default_stop=30,
    ),
    nccl_trace=(("ENABLE_NCCL_TRACE", "true"),),
    checkpoint=None,
)
PLAIN = replace(
    FACTS,
    recipe="grok1",
    release="24.11",
    profiling=None,
    nccl_trace=(),
    checkpoint=None,
)


def configuration(gpus: int = 16, size: str = "8b") -> Configuration:
    key = Key("llama3.1", size, "25.04", "h100", "bf16", gpus)
    return replace(BASELINE.configuration, key=key)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("", ProfileRequest()),
        ("default", ProfileRequest()),
        ("start:20", ProfileRequest(start=20)),
        ("start:20, stop:30", ProfileRequest(start=20, stop=30)),
        ("ranks:0+8+0", ProfileRequest(ranks=(0, 8))),
        ("gpu_metrics,cpu", ProfileRequest(gpu_metrics=True, cpu=True)),
        (
            "start:20,stop:30,ranks:0+1,gpu_metrics,cpu",
            ProfileRequest(start=20, stop=30, ranks=(0, 1), gpu_metrics=True, cpu=True),
        ),
    ],
)
def test_profile_option_is_parsed(text: str, request_: ProfileRequest) -> None:
    assert parse_profile(text) == request_


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("strat:20", "found 'strat:20' (did you mean 'start'?)"),
        ("start", "expected start: with a value"),
        ("cpu:yes", "expected cpu without a value"),
        ("start:2O", "start is '2O', expected a whole number"),
        ("start:-1", "start is '-1', expected a whole number"),
        ("start:", "start is '', expected a whole number"),
        ("start:99999999999", "expected a whole number"),
        ("ranks:0,1", "found '1'"),
        ("ranks:0-3", "ranks is '0-3'"),
        ("start:1,start:2", "duplicate setting"),
        ("start:30,stop:20", "stop must be larger than start"),
        (",", "found ''"),
    ],
)
def test_unreadable_profile_request_is_refused(text: str, message: str) -> None:
    with pytest.raises(LaunchError) as raised:
        parse_profile(text)
    assert message in str(raised.value)
    assert "--llmb-profile" in str(raised.value)


CASES: dict[str, tuple[LaunchFacts, Purpose, str, Pairs]] = {
    "measure": (PLAIN, Purpose.MEASURE, "", ()),
    "default": (FACTS, Purpose.PROFILE, "", (("ENABLE_PROFILE", "true"),)),
    "steps": (
        FACTS,
        Purpose.PROFILE,
        "start:5,stop:9",
        (
            ("ENABLE_PROFILE", "true"),
            ("PROFILE_START_STEP", "5"),
            ("PROFILE_STOP_STEP", "9"),
        ),
    ),
    "all": (
        NEMOTRON,
        Purpose.PROFILE,
        "start:21,ranks:0+1,gpu_metrics,cpu",
        (
            ("ENABLE_PROFILE", "true"),
            ("RUN_CONF_PROFILE_START_STEP", "21"),
            ("RUN_CONF_PROFILE_RANKS", "0,1"),
            ("RUN_CONF_PROFILE_GPU_METRICS", "true"),
            ("RUN_CONF_PROFILE_CPU", "true"),
        ),
    ),
    "trace": (FACTS, Purpose.NCCL_TRACE, "-", (("ENABLE_NCCLTRACE", "true"),)),
    "old trace": (NEMOTRON, Purpose.NCCL_TRACE, "-", (("ENABLE_NCCL_TRACE", "true"),)),
    "save": (FACTS, Purpose.SAVE_CHECKPOINT, "-", (("ENABLE_CHECKPOINT", "true"),)),
}


@pytest.mark.parametrize("name", CASES)
def test_variables_for_each_job_purpose_come_from_the_document(name: str) -> None:
    facts, purpose, profile, pairs = CASES[name]
    request = parse_profile("" if profile == "-" else profile)
    assert (
        build_variables(facts, purpose, configuration().key, profile=request) == pairs
    )


@pytest.mark.parametrize(
    ("facts", "purpose", "name", "text"),
    [
        (
            FACTS,
            Purpose.PROFILE,
            "RUN_CONF_PROFILE_RANKS",
            "has no effect on llama3.1 25.04: the recipe reads PROFILE_START_STEP, PROFILE_STOP_STEP",
        ),
        (
            PLAIN,
            Purpose.MEASURE,
            "RUN_CONF_PROFILE_CPU",
            "has no effect on grok1 24.11: the document of the recipe has no profiling",
        ),
        (
            NEMOTRON,
            Purpose.MEASURE,
            "RUN_CONF_PROFILE_RANKS",
            "has no effect without --llmb-profile",
        ),
        (
            FACTS,
            Purpose.MEASURE,
            "ENABLE_PROFILE",
            "has no effect: --llmb-profile sets it",
        ),
        (
            FACTS,
            Purpose.PROFILE,
            "ENABLE_NCCLTRACE",
            "has no effect: --llmb-nccl-trace sets it",
        ),
        (NEMOTRON, Purpose.PROFILE, "RUN_CONF_PROFILE_RANKS", ""),
        (FACTS, Purpose.PROFILE, "PROFILE_STOP_STEP", ""),
        (FACTS, Purpose.MEASURE, "PROFILE_DIR", ""),
    ],
)
def test_ineffective_profile_setting_is_reported(
    facts: LaunchFacts, purpose: Purpose, name: str, text: str
) -> None:
    assert list(explain_ineffective(facts, purpose, ["HOME", name])) == (
        [f"{name} {text}"] if text else []
    )


@pytest.mark.parametrize(
    ("purpose", "noun"),
    [
        (Purpose.PROFILE, "no profiling: omit --llmb-profile"),
        (Purpose.NCCL_TRACE, "no NCCL trace: omit --llmb-nccl-trace"),
        (
            Purpose.SAVE_CHECKPOINT,
            "no saving of checkpoints: omit --llmb-save-checkpoint",
        ),
        (
            Purpose.LOAD_CHECKPOINT,
            "no loading of checkpoints: omit --llmb-load-checkpoint",
        ),
    ],
)
def test_undocumented_profile_trace_or_checkpoint_request_is_refused(
    purpose: Purpose, noun: str
) -> None:
    with pytest.raises(LaunchError, match=f"grok1 24.11 documents {noun}"):
        build_variables(PLAIN, purpose, configuration().key)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (
            "ranks:0",
            "no variable for 'ranks'; it has start (PROFILE_START_STEP), stop (PROFILE_STOP_STEP)",
        ),
        ("cpu", "no variable for 'cpu'"),
        ("gpu_metrics", "no variable for 'gpu_metrics'"),
        ("start:25", "profiling from step 25 to 25: stop must be larger"),
        ("stop:20", "profiling from step 20 to 20: stop must be larger"),
        ("ranks:16", "found rank 16, expected 0 to 15"),
    ],
)
def test_unsupported_profile_is_refused(profile: str, message: str) -> None:
    with pytest.raises(LaunchError) as raised:
        build_variables(
            FACTS, Purpose.PROFILE, configuration().key, profile=parse_profile(profile)
        )
    assert message in str(raised.value)


# --- checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [16, 128])
def test_checkpoint_is_saved_at_documented_scales(gpus: int) -> None:
    assert build_variables(FACTS, Purpose.SAVE_CHECKPOINT, configuration(gpus).key)


@pytest.mark.parametrize(
    ("gpus", "size", "message"),
    [
        (8, "8b", "documented for 8b on 16 to 128 GPUs, not on 8"),
        (256, "8b", "documented for 8b on 16 to 128 GPUs, not on 256"),
        (16, "9b", "documents no scale for a checkpoint of 9b"),
    ],
)
def test_undocumented_checkpoint_scale_is_refused(
    gpus: int, size: str, message: str
) -> None:
    with pytest.raises(LaunchError, match=message):
        build_variables(FACTS, Purpose.SAVE_CHECKPOINT, configuration(gpus, size).key)


def checkpoint(folder: Path, name: str = "epoch=0-consumed_samples=12800.0") -> Path:
    weights = (
        folder
        / "experiments/x/x_1/x/code/nemo_experiments/default/checkpoints"
        / name
        / "weights"
    )
    weights.mkdir(parents=True)
    (weights / "__0_0.distcp").write_text("")
    return weights.parent


def load(folder: Path, gpus: int = 16) -> Pairs:
    return build_variables(
        FACTS, Purpose.LOAD_CHECKPOINT, configuration(gpus).key, checkpoint=folder
    )


def test_checkpoint_is_loaded_from_its_folder(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    assert load(folder) == (("LOAD_CHECKPOINT_PATH", str(folder)),)
    assert load(folder, gpus=2048)


def test_weights_folder_is_refused_and_the_checkpoint_folder_above_is_suggested(
    tmp_path: Path,
) -> None:
    folder = checkpoint(tmp_path)
    with pytest.raises(LaunchError) as raised:
        load(folder / "weights")
    assert str(raised.value).endswith(f"pass its parent: {folder}")


def test_folder_with_several_checkpoints_is_refused_and_the_newest_is_suggested(
    tmp_path: Path,
) -> None:
    old, new = checkpoint(tmp_path, "a"), checkpoint(tmp_path, "b")
    os.utime(old / "weights", (1, 1))
    assert explain_unloadable(tmp_path, None).endswith(
        f"did you mean {new}? (2 checkpoints in it)"
    )


def test_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    assert explain_unloadable(tmp_path / "nowhere", None) == "no such folder"
    assert (
        "has no file *.distcp: not a checkpoint, or an incomplete one"
        in explain_unloadable(tmp_path, None)
    )


def test_checkpoint_outside_the_stage_folder_is_refused(tmp_path: Path) -> None:
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "link").symlink_to(checkpoint(tmp_path / "other"))
    assert f"the checkpoint must be in {stage}" in explain_unloadable(
        stage / "link", stage
    )


def test_loading_needs_a_folder_and_enough_gpus(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="expected the folder of a checkpoint"):
        build_variables(FACTS, Purpose.LOAD_CHECKPOINT, configuration().key)
    with pytest.raises(
        LaunchError, match="documented for 8b on 16 or more GPUs, not on 8"
    ):
        load(checkpoint(tmp_path), gpus=8)


# --- output files ---------------------------------------------------------------------


def test_profile_file_is_assigned_to_the_job_id_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    names = (
        "grok1-314b-fp8_16g_12_0_1.nsys-rep",
        "grok1-314b-fp8_16g_1_0_12.nsys-rep",
        "profile_7.nsys-rep",
        "log.out",
    )
    for name in names:
        (folder / name).write_text("")
    assert [
        path.name for path in find_outputs(tmp_path, Purpose.PROFILE, FACTS, "12")
    ] == [names[0], names[2]]
    assert find_outputs(tmp_path, Purpose.PROFILE, FACTS, "12", since=2**40) == ()
    assert find_outputs(tmp_path, Purpose.MEASURE, FACTS, "12") == ()
    assert find_outputs(tmp_path / "nowhere", Purpose.PROFILE, FACTS, "12") == ()


def test_saved_checkpoint_is_reported_as_its_weights_folder(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    (tmp_path / "weights").mkdir()
    assert find_outputs(tmp_path, Purpose.SAVE_CHECKPOINT, FACTS) == (
        folder / "weights",
    )


def test_search_for_outputs_is_bounded(tmp_path: Path) -> None:
    """The search ends after twelve folder levels, and does not follow a circular link."""
    deep = tmp_path.joinpath(*"abcdefghijklmn")
    deep.mkdir(parents=True)
    (deep / "profile_1.nsys-rep").write_text("")
    (tmp_path / "a/circle").symlink_to(tmp_path)
    assert find_outputs(tmp_path, Purpose.PROFILE, FACTS) == ()
