"""`llmbench nccl`: the summary of a trace, and its changes from a saved trace."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from support.nccl_traces import record, run

from pytest_llmbench.cli.main import main
from pytest_llmbench.tools.nccl.nccl_trace import read_saved_or_logs, read_trace

PAGE = """\
damaged: 2 records (3.2 %: 1 AllReduce, 1 other), not counted below
communicators, counted once per member rank: 2 of 2 ranks

operation              ranks  datatype          records      volume        mean
AllGather                  2  float32                20     640 KiB      32 KiB
AllReduce                  2  float32                40     160 KiB       4 KiB
all                                                  60     800 KiB

buffer size                 records
4 KiB to 8 KiB                   40  ########## AllReduce
32 KiB to 64 KiB                 20  #####      AllGather

A record is one rank's share of an operation. Volume is the size of its buffer:
count x bytes of the datatype, x ranks for AllGather, whose count is the share
of one rank.
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "log.out"
    path.write_text("".join(run()) + record()[:64] + "\n" + "Reduc: opCount 1\n")
    return path


def run_nccl(capsys: pytest.CaptureFixture[str], code: int, *arguments: object) -> str:
    assert main(["nccl", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    return captured.err if code == 2 else captured.out


def test_summary_page_is_complete(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    text = run_nccl(capsys, 0, trace)
    assert text.partition("\n")[2] == PAGE
    assert text.startswith(
        f"1 file, {trace.stat().st_size:,} bytes; 60 records of 2 ranks on 1 host\n"
    )


def test_json_output_contains_the_counts(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    values = json.loads(run_nccl(capsys, 0, trace, "--format", "json"))
    assert (values["llmbench_nccl"], values["ranks"], values["damaged"]) == (
        1,
        2,
        [["AllReduce", 1], ["other", 1]],
    )
    assert values["rows"][0] == {
        "operation": "AllGather",
        "nranks": 2,
        "datatype": "float32",
        "from_bytes": 32768,
        "records": 20,
        "bytes": 20 * 4096 * 4 * 2,
    }


@pytest.mark.slow
@pytest.mark.parametrize("printed", [True, False], ids=["printed", "saved"])
def test_saved_trace_equals_its_log(
    capsys: pytest.CaptureFixture[str], trace: Path, printed: bool
) -> None:
    saved = trace.with_name("grok1-25.05.nccl.json")
    saved.write_text('{\n "llmbench_nccl": 1}\n')
    text = run_nccl(
        capsys, 0, trace, *(["--format", "json"] if printed else ["--save", saved])
    )
    if printed:
        saved.write_text(text)
    assert read_saved_or_logs([saved]) == read_trace([trace])
    assert sorted(path.name for path in trace.parent.iterdir()) == [
        "grok1-25.05.nccl.json",
        "log.out",
    ]
    assert run_nccl(capsys, 0, trace, "--against", saved).endswith("nothing changed\n")
    assert run_nccl(capsys, 0, saved) == run_nccl(capsys, 0, trace)


def test_save_refuses_to_replace_a_log(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    before = trace.read_bytes()
    assert (
        "log.out: an existing file of another kind (expected: saved NCCL trace) is not r"
        in run_nccl(capsys, 2, trace, "--save", trace)
    )
    assert trace.read_bytes() == before


def test_changes_are_listed_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    other = trace.with_name("other.out")
    other.write_text(
        "".join(line.replace("AllGather", "ReduceScatter") for line in run(20))
    )
    text = run_nccl(capsys, 1, trace, "--against", other)
    assert (
        "2 changes:\n  AllGather: new, 20 records\n  ReduceScatter: gone, had 40 records\n\npossible causes:\n"
        in text
    )
    assert "; for each rank 0.5125 times as many:\n" in text
    values = json.loads(
        run_nccl(capsys, 1, trace, "--against", other, "--format", "json")
    )
    assert [change["operation"] for change in values["comparison"]["changes"]] == [
        "AllGather",
        "ReduceScatter",
    ]


def test_invalid_input_prints_one_message(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    missing = trace.with_name("missing.out")
    assert run_nccl(capsys, 2, missing).startswith(
        f"llmbench: LOGS {missing} does not exist"
    )
    assert run_nccl(capsys, 2, trace, "--against", missing).startswith(
        f"llmbench: --against={missing} does not exist"
    )
    assert run_nccl(capsys, 2, trace, "--save", missing / "x").startswith(
        f"llmbench: cannot write {missing}/x: No such file"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"llmbench_nccl": 1', "no complete JSON text"),
        ('{"llmbench_nccl": 2}', "schema 2, but this version reads 1"),
        (f'{{"llmbench_nccl": {"9" * 5000}}}', "no complete JSON text"),
        ('{"llmbench_nccl": 1}', "KeyError: 'rows'"),
        (
            '{"llmbench_nccl": 1, "rows": [{"operation": 7, "nranks": 1}]}',
            "found '7', expected str",
        ),
    ],
)
def test_invalid_saved_trace_is_refused_with_reason(
    capsys: pytest.CaptureFixture[str], trace: Path, text: str, reason: str
) -> None:
    saved = trace.with_name("kept.json")
    saved.write_text(text)
    error = run_nccl(capsys, 2, trace, "--against", saved)
    assert error.startswith(f"llmbench: {saved} is not a saved trace: ")
    assert reason in error
    assert "save it again with `llmbench nccl LOG --save kept.json`" in error


def test_nccl_command_refuses_pipes_and_device_files(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        assert "not a regular file" in run_nccl(capsys, 2, path)
        assert "not a regular file" in run_nccl(capsys, 2, trace, "--against", path)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("ranks", -2, "expected a number >= 0"),
        ("damaged", [["AllReduce", 10**4000]], "expected a number >= 0"),
        ("records", 10**400, "expected a number >= 1"),
        ("bytes", 1e300, "expected int"),
    ],
)
def test_saved_nccl_trace_with_invalid_counts_is_refused(
    capsys: pytest.CaptureFixture[str],
    trace: Path,
    key: str,
    value: object,
    expected: str,
) -> None:
    values = json.loads(run_nccl(capsys, 0, trace, "--format", "json"))
    (values["rows"][0] if key == "records" else values)[key] = value
    saved = trace.with_name("saved.json")
    saved.write_text(json.dumps(values))
    message = run_nccl(capsys, 2, trace, "--against", saved)
    assert expected in message
    assert len(message) < 500


@pytest.mark.slow
def test_nccl_trace_in_a_folder_1100_levels_deep_is_read(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    deep_folder = tmp_path
    for _ in range(1100):
        deep_folder = deep_folder / "d"
        deep_folder.mkdir()
    shutil.move(trace, deep_folder / "n1.7")
    assert "60 records" in run_nccl(capsys, 0, tmp_path)
    shutil.move(deep_folder / "n1.7", trace)
    for folder in (deep_folder, *deep_folder.parents):  # shutil.rmtree is recursive
        if folder == tmp_path:
            break
        folder.rmdir()
