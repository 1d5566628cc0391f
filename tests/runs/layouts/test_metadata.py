"""The launcher's metadata: read as text, and not trusted."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from pytest_llmbench.core.codes import Reason
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.runs.layouts.metadata import (
    SIZE_LIMIT,
    Metadata,
    interpret,
    parse,
    parse_simple_blocks,
    parse_yaml,
    read_metadata,
)


def read_hints(text: str) -> dict[str, str]:
    return {hint.field: hint.value for hint in parse_and_interpret(text).hints}


def parse_and_interpret(text: str) -> Metadata:
    return interpret(parse(text.encode()), "llmb-config_7.yaml", "7")


def make_job_config(text: str) -> str:
    return f"job_config:\n  {text}\n"


YES = ("y", "t", "1", "ON", "' true '")
NO = ("N", "f", "0", "off", "none", "null", "~", "''", "")

FULL = """
job_info: {job_id: '7', launch_time: '2026-11-20T22:36:05.996634+01:00', experiment_id: null}
workload_info: {framework: nemo2, gsw_version: 25.10, workload_type: pretrain}
model_info: {model_name: grok1, model_size: 314b, dtype: bf16, scale: "0512", gpu_type: gb200}
cluster_info: {gpus_per_node: '4'}
job_config: {profile_enabled: false, proxy: true, strong_scaling: true, env_overrides: {}, model_overrides: {}}
"""


def test_metadata_with_all_keys_is_read() -> None:
    """The release remains the text 25.10: as a number it would be 25.1."""
    record = parse_and_interpret(FULL)
    assert {hint.field: hint.value for hint in record.hints} == {
        "recipe": "grok1",
        "size": "314b",
        "dtype": "bf16",
        "gpus": "0512",
        "gpu": "gb200",
        "release": "25.10",
        "gpus_per_node": "4",
        "proxy": "true",
        "scaling": "strong",
    }
    assert record.started is not None
    assert record.started.isoformat() == "2026-11-20T21:36:05.996634+00:00"
    assert (record.job, record.excluded, record.problems) == ("7", None, ())
    assert {hint.source for hint in record.hints} == {"llmb-config_7.yaml"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FULL, {"recipe": "25.10"}),
        (
            "workload_info: {framework: nemo2, gsw_version: 25.10, fw_version: 25.04.01, megatron_commit: 1a2b3c4,"
            " commit: f00f}\n"
            "container_info: {images: ['nvcr.io#nvidia/nemo:25.04.01', null, second:1]}",
            {
                "container": "nvcr.io#nvidia/nemo:25.04.01, second:1",
                "framework": "nemo2 25.04.01",
                "megatron_commit": "1a2b3c4",
                "recipe": "25.10",
                "workload_commit": "f00f",
            },
        ),
        ("workload_info: {fw_version: '1'}", {"framework": "1"}),
        ("container_info: {images: {a: b}}\nworkload_info: {fw_version: [1]}", {}),
        ('container_info: {images: ["a\\x1bb"]}', {}),
        ('workload_info: {"a\\x1b_version": 1}', {}),
        (f"container_info: {{images: [{'x' * 201}]}}", {}),
        ("", {}),
    ],
)
def test_environment_of_a_run_is_read_from_its_metadata(
    text: str, expected: dict[str, str]
) -> None:
    environment = parse_and_interpret(text or "job_info: {}").environment
    assert dict(environment) == expected
    assert list(environment) == sorted(environment)


def test_launch_time_without_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Etc/GMT-2")  # POSIX: two hours ahead of UTC
        time.tzset()
        started = parse_and_interpret(
            "job_info: {launch_time: '2026-11-20T22:36:05'}"
        ).started
    time.tzset()
    assert started is not None
    assert started.isoformat() == "2026-11-20T20:36:05+00:00"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model_info: {scale: 16}", {"gpus": "16"}),
        ("model_info: {dtype: null, model_name: ~, new_key: x}\nnew_section: [1]", {}),
        ("workload_info: {workload_type: finetune}", {"task": "finetune"}),
        ("workload_info: {workload_type: pretraining}", {}),
        (make_job_config("strong_scaling: false"), {"scaling": "weak"}),
        (make_job_config("proxy: 'False'"), {"proxy": "false"}),
        (
            make_job_config("model_overrides: {num_layers: 2, seq: 4096}"),
            {"model_overrides": "num_layers=2, seq=4096"},
        ),
        (make_job_config("model_overrides: []"), {}),
    ],
)
def test_metadata_without_optional_keys_is_accepted(
    text: str, expected: dict[str, str]
) -> None:
    assert read_hints(text) == expected
    assert parse_and_interpret(text).problems == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", set()),
        (
            "workload_info: {framework: nemo2, gsw_version: 25.10, synthetic_dataset: true}",
            set(),
        ),
        ("workload_info: {fw_version: 25.04.01}", {"fw_version=25.04.01"}),
        (
            "workload_info: {fw_version: null, commit: ' 1f3a ', git_commit: 2b}",
            {"commit=1f3a", "git_commit=2b"},
        ),
        (
            "container_info: {images: [b:2, a:1, b:2, null]}",
            {"container.images=a:1", "container.images=b:2"},
        ),
        ("container_info: {images: a:1}", {"container.images=a:1"}),
        ("container_info: {images: {nemo: a:1, x: ~}}", {"container.images.nemo=a:1"}),
        (
            "container_info: {images: {nemo: [a:1]}, digest: ff}",
            {"container.images.nemo=a:1", "container.digest=ff"},
        ),
        (
            "container_info: {images: [{n: a, tag: 1}]}",
            {'container.images={"n": "a", "tag": "1"}'},
        ),
    ],
)
def test_build_contains_versions_and_images(text: str, expected: set[str]) -> None:
    """The release is excluded: it is a hint, which folder names contain, too."""
    record = parse_and_interpret(f"job_info: {{}}\n{text}")
    assert set(record.build) == expected
    assert record.problems == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (make_job_config("profile_enabled: true"), Reason.PROFILED),
        (make_job_config("env_overrides: {ENABLE_NCCLTRACE: 1}"), Reason.TRACED),
        (make_job_config("env_overrides: {ENABLE_NCCL_TRACE: true}"), Reason.TRACED),
        (
            make_job_config("env_overrides: {LOAD_CHECKPOINT_PATH: /ckpt/x}"),
            Reason.CHECKPOINT_LOAD,
        ),
        (make_job_config("env_overrides: {LOAD_CHECKPOINT_PATH: ''}"), None),
        (make_job_config("env_overrides: {HF_HOME: /x}"), None),
        *(
            (
                make_job_config(f"env_overrides: {{ENABLE_PROFILE: {yes}}}"),
                Reason.PROFILED,
            )
            for yes in YES
        ),
        *(
            (make_job_config(f"env_overrides: {{ENABLE_PROFILE: {no}}}"), None)
            for no in NO
        ),
    ],
)
def test_metadata_excludes_runs_that_were_profiled_traced_or_loaded_a_checkpoint(
    text: str, expected: Reason | None
) -> None:
    assert parse_and_interpret(text).excluded == expected
    assert parse_and_interpret(text).problems == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("model_info: {scale: many}", "model_info.scale is 'many', not a number"),
        ("model_info: {dtype: [bf16, fp8]}", "model_info.dtype is not a single value"),
        ("container_info: nemo:25.04", "container_info is not a section"),
        (
            "workload_info: {fw_version: [1, 2]}",
            "workload_info.fw_version is not a single value",
        ),
        (
            make_job_config("profile_enabled: perhaps"),
            "job_config.profile_enabled is 'perhaps', neither true nor false",
        ),
        (
            make_job_config("env_overrides: [ENABLE_PROFILE=true]"),
            "job_config.env_overrides is not a section",
        ),
        (
            make_job_config("env_overrides: {ENABLE_PROFILE: maybe}"),
            "job_config.env_overrides.ENABLE_PROFILE is 'maybe', neither true nor false",
        ),
        (
            make_job_config("env_overrides: {LOAD_CHECKPOINT_PATH: []}"),
            "job_config.env_overrides.LOAD_CHECKPOINT_PATH is not a single value",
        ),
        (
            "job_info: {launch_time: yesterday}",
            "job_info.launch_time is 'yesterday', which is not a date and time",
        ),
    ],
)
def test_unusable_metadata_value_is_reported(text: str, problem: str) -> None:
    record = parse_and_interpret(text)
    assert record.problems == (problem,)
    assert {hint.field for hint in record.hints} <= {"scaling"}
    assert (record.excluded, record.build) == (None, ())


def test_unusable_metadata_value_does_not_hide_that_a_run_was_profiled() -> None:
    record = parse_and_interpret(
        make_job_config("env_overrides: {ENABLE_PROFILE: 1, ENABLE_NCCLTRACE: maybe}")
    )
    assert record.excluded is Reason.PROFILED
    assert len(record.problems) == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"just text", "expected one YAML document with sections"),
        (b"a: 1\n---\nb: 2", "expected one YAML document with sections"),
        (b"model_info: {dtype: bf16, dtype: fp8}", "with a repeated key"),
        (b"? [a]\n: b", "a key that is not text"),
        (b"a: &x [1]\nb: *x", "line 2: an alias"),
        (b"a: [1", "not valid YAML"),
        (b"a: \xff\xfe", "not valid YAML"),
        (
            b"[" * 60000,
            "nested too deeply|maximum nesting depth",
        ),  # PyYAML 6.0.4's own message
        (b"{a: " * 20000, "nested too deeply"),
        (b"job_info: {job_id: 8}", "contains job_id '8'"),
    ],
)
def test_dangerous_metadata_file_is_refused(data: bytes, problem: str) -> None:
    """Deep nesting would crash the interpreter in PyYAML's C composer."""
    with pytest.raises(LogError, match=problem):
        interpret(parse(data), "llmb-config_7.yaml", "7")


def test_unreadable_or_huge_metadata_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot read"):
        read_metadata(tmp_path)
    huge = tmp_path / "llmb-config_7.yaml"
    huge.write_bytes(b"#" * (SIZE_LIMIT + 1))
    with pytest.raises(LogError, match="larger than 256 KiB"):
        read_metadata(huge)


SIMPLE = """\
job_info:
  job_id: '1000469'
  launch_time: '2025-06-12T02:07:00.000000'
  note:
workload_info:
  fw_version: 25.04.00
  synthetic_dataset: true
container_info:
  images:
  - nvcr.io#nvidia/nemo:25.04.00
  - '~'
  other:
    - a
    - b:c
job_config:
  nested:
      deeper:
        value: /lustre/llmb
  env_overrides: {}
  model_overrides: []
"""


def test_simple_blocks_are_parsed_like_yaml() -> None:
    tree = parse_simple_blocks(SIMPLE.encode())
    assert tree == parse_yaml(SIMPLE.encode())
    assert tree is not None
    assert list(tree) == ["job_info", "workload_info", "container_info", "job_config"]


@pytest.mark.parametrize(
    "line",
    [
        *("a: b c", "a: b #c", "a: b: c", "a: b:", 'a: "b"', "a: 'it''s'", "a: *b"),
        *("a: b\r", "a:\tb", "a : b", "a:  b", "- a: b", "- - a", "a: \u00e9", ""),
        *("---", "...", "? a", "&a b: c", "a: |", "a: [b]", "a: {b: c}", "# a", "- b"),
        *("  a: b", "a: b\n  c: d", "a: b\na: c", "a:\n    b: c\n  d: e", "a: -1"),
        "".join(f"{' ' * depth}a:\n" for depth in range(25)),
    ],
)
def test_other_notation_is_left_to_yaml(line: str) -> None:
    assert parse_simple_blocks(line.encode()) is None


def test_damaged_blocks_are_parsed_like_yaml_or_not_at_all() -> None:
    random = Random(7)  # noqa: S311 - fixed damage, no secret
    pieces = (*" :-#'{}[]\n\t,~\"&|.a1", "  ", "- ", ": ", "a: b\n")
    parsed = 0
    for _ in range(3000):
        lines = SIMPLE.splitlines(keepends=True)
        index = random.randrange(len(lines))
        match random.randrange(4):
            case 0:
                lines[index] = " " * random.randrange(7) + lines[index].lstrip()
            case 1:
                lines.insert(random.randrange(len(lines)), lines[index])
            case 2:
                del lines[index]
            case _:
                cut = random.randrange(len(lines[index]))
                damaged = lines[index][:cut] + random.choice(pieces)
                lines[index] = damaged + lines[index][cut:]
        data = "".join(lines).encode()
        tree = parse_simple_blocks(data)
        if tree is not None:
            parsed += 1
            assert repr(tree) == repr(parse_yaml(data)), data
    assert parsed > 500
