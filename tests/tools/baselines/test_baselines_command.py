"""`llmbench baselines list | show | lint`: output for 80 columns, one message for an
error, and the exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_llmbench.cli.main import main

CUSTOM = """\
schema: 1
kind: published
recipe: mine
release: "25.05"
title: My model
framework: NeMo-Run
names: [mine]
dialect: nemo2
source: {document: my notes}
timed: last_step
window: {statistic: mean, first: 11, last: 44}
steps: 50
tolerance: 2.5%
peak_tflops: {h100: {bf16: "989"}}
models: {8b: {formula: nemotron, hidden_size: 4096, vocabulary_size: 128256}}
configurations:
  - {size: 8b, gpu: h100, dtype: bf16, gpus: 8, sequence_length: 8192, layers: 32, gbs: 128,
     cells: {step_time: "12.30"}}
"""


@pytest.fixture
def custom_file(tmp_path: Path) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(CUSTOM)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["baselines", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.slow
def test_list_prints_one_line_per_configuration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "list")
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 84)
    assert (
        err
        == "not listed, use --recipe: megatron_bridge (docs/reference/megatron-bridge.md)\n"
    )
    assert lines[0].split() == ["configuration", "step", "time", "MFU", "kind"]
    assert (
        "grok1_314b-25.05-gb200-bf16-128             7.325 s   47.59%  published"
        in lines
    )
    assert lines[-1] == "82 configurations"
    assert max(map(len, lines)) < 80


@pytest.mark.slow
def test_show_prints_the_complete_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "show", "grok1_314b-25.05-gb200-bf16-512")
    assert (code, err) == (0, "")
    for text in (
        "expected   7.324 s a step",
        "judged by  mean of steps 11 to 44, of 50 steps",
        "TP 4, PP 1, CP 1, EP 8, ETP 4, DP 128, VP 1",
        "GBS 1024, MBS 1, GA 8",
        "2450 TFLOP/s per GPU",
        "throughput (tokens/s)        572679       1145359",
        "MFU                           47.6%         47.6%",
        "TFLOP/s per GPU                   -       1166.03",
        "grok1_314b-25.05-gb200-bf16-512: tokens_per_second 572679 -> 1145359",
        "because computed with half of the batch",
        "launch     llmb-run single -w pretrain_grok1",
        "25.05.yaml:",
    ):
        assert text in out, text
    assert "grok1_314b-25.05-gb200-fp8-512" not in out, (
        "errata of other configurations are left out"
    )
    assert [
        line for line in out.splitlines() if len(line) >= 80 and ".yaml:" not in line
    ] == []


@pytest.mark.slow
def test_custom_baselines_are_listed_and_shown(
    capsys: pytest.CaptureFixture[str], custom_file: Path
) -> None:
    code, out, _ = run(
        capsys, "list", "--baselines", custom_file.parent, "--recipe", "mine"
    )
    assert (code, out.splitlines()[-1]) == (0, "1 configuration")
    assert "mine_8b-25.05-h100-bf16-8" in out
    assert "12.30 s" in out
    assert (
        "tolerance  2.5 %"
        in run(
            capsys,
            "show",
            "mine_8b-25.05-h100-bf16-8",
            "--baselines",
            custom_file.parent,
        )[1]
    )
    custom_file.write_text(CUSTOM.replace("tolerance:", "tolerence:"))
    for arguments in (
        ["list", "--baselines", custom_file.parent],
        ["lint", custom_file],
    ):
        code, _, err = run(capsys, *arguments)
        assert code == 2
        assert f"{custom_file}:13: found the unknown key 'tolerence'" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["show", "grok1_314b-25.05-gb20-bf16-512"],
            "did you mean 'grok1_314b-25.05-gb200-bf16-512'?",
        ),
        (
            ["list", "--recipe", "grok"],
            "maxtext_llama2, megatron_bridge, nemotron4 (did you mean 'grok1'?)",
        ),
        (
            ["list", "--baselines", "no/such/folder"],
            "no/such/folder: No such file or directory",
        ),
        (
            ["lint", "no/such.yaml"],
            "no/such.yaml: No such file or directory, expected a readable baseline file",
        ),
    ],
)
def test_bad_input_prints_one_message_and_exits_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("llmbench: ")
    assert message in err


@pytest.mark.slow
def test_lint_accepts_the_shipped_files(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "lint")
    flat = " ".join(out.split())
    assert (code, err) == (0, "")
    assert (
        "347 configurations, 843 cells (825 numbers), 213 derived: 183 reproduce, 30 do not; "
        "errata: 36 in tables, 42 in the text" in flat
    )
    assert out.splitlines()[-1] == "0 findings"
    assert flat.count(" because ") == 54, "12 kinds of cells and 42 passages of text"
    assert [
        line for line in out.splitlines() if len(line) >= 80 and ".yaml" not in line
    ] == []


def test_lint_exits_1_on_findings(
    capsys: pytest.CaptureFixture[str], custom_file: Path
) -> None:
    custom_file.write_text(
        CUSTOM.replace('"12.30"', '"12.30", tokens_per_second: "85521"')
    )
    code, out, _ = run(capsys, "lint", custom_file.parent)
    assert code == 1
    assert "found tokens_per_second 85521, expected 85250;" in " ".join(out.split())
    assert "1 finding" in out


@pytest.mark.parametrize(
    "arguments", [[], ["baselines"], ["baselines", "shwo"], ["baselines", "show"]]
)
def test_invalid_command_line_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: llmbench" in capsys.readouterr().err


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest_llmbench.cli.main", *arguments]


@pytest.mark.slow
def test_show_escapes_text_on_ascii_terminals(
    custom_file: Path,
) -> None:
    custom_file.write_text(CUSTOM.replace("my notes", "mes résultats"))
    arguments = command(
        "baselines",
        "show",
        "mine_8b-25.05-h100-bf16-8",
        "--baselines",
        str(custom_file.parent),
    )
    done = subprocess.run(
        arguments,
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"mes r\xe9sultats" in done.stdout


UNTIMED = (
    CUSTOM.replace("kind: published", "kind: recipe")
    .replace("last_step", "mean")
    .replace('"989"', '"NA"')
)


@pytest.fixture
def untimed(tmp_path: Path) -> Path:
    path = tmp_path / "untimed.yaml"
    path.write_text(UNTIMED.replace(',\n     cells: {step_time: "12.30"}', ""))
    return path


@pytest.mark.slow
def test_untimed_recipe_is_listed_without_numbers(
    capsys: pytest.CaptureFixture[str], untimed: Path
) -> None:
    code, out, _ = run(capsys, "list", "--baselines", untimed)
    assert code == 0
    (line,) = [line for line in out.splitlines() if line.startswith("mine_8b")]
    assert line.split() == ["mine_8b-25.05-h100-bf16-8", "-", "-", "recipe"]
    code, out, err = run(
        capsys, "show", "mine_8b-25.05-h100-bf16-8", "--baselines", untimed
    )
    assert (code, err) == (0, "")
    assert "no step time yet: record a baseline" in out
    assert "nan" not in out.lower()
    assert (
        "1 configuration, 0 cells (0 numbers), 0 derived"
        in run(capsys, "lint", untimed)[1]
    )


@pytest.mark.slow
def test_diff_compares_two_releases(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "diff", "24.11", "25.05")
    assert (code, err) == (1, "")
    assert (
        "grok1_314b-h100-bf16-512                  20.83 s    15.93 s   -23.5 %  +30.6 %"
        in out
    )
    assert "  MFU 41.50% -> 54.20%, by step time +30.7 %" in out
    assert "only in 24.11: 28: grok1_314b-h100-bf16-8," in out
    assert max(map(len, out.splitlines())) < 80


def test_diff_compares_files_as_json(
    capsys: pytest.CaptureFixture[str], custom_file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        CUSTOM.replace("12.30", "12.00").replace("layers: 32", "layers: 31")
    )
    code, out, _ = run(capsys, "diff", custom_file, other, "--format", "json")
    (difference,) = json.loads(out)
    assert (code, difference["id"]) == (1, "mine_8b-h100-bf16-8")
    assert (difference["step_seconds"], difference["facts"]) == (
        [12.3, 12.0],
        {"layers": ["32", "31"]},
    )
    assert run(capsys, "diff", custom_file, custom_file)[0] == 0


@pytest.mark.slow
def test_diff_refuses_unknown_release(
    capsys: pytest.CaptureFixture[str], custom_file: Path
) -> None:
    code, _, err = run(capsys, "diff", custom_file, "25.50")
    assert code == 2
    assert (
        "expected a file, a folder or a release among 24.11, 25.01, 25.04, 25.05, 25.11, 26.02, "
        in err
    )
    assert "(did you mean '25.05'?)" in err


TABLE = """\
| Oak 8b FP8 | 8x H100 GPUs |
|---|---|
| Step time (s) | 9.33 |
"""


def test_import_prints_draft_and_missing_values(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = tmp_path / "README.md"
    document.write_text(TABLE)
    code, out, err = run(capsys, "import", document, "--release", "25.05")
    assert code == 0
    assert out.startswith("# Drafted from README.md by llmbench baselines import;")
    assert 'cells: {step_time: "9.33"}}' in out
    assert "oak 25.05: 1 configuration, 1 cell\nto fill in, oak line 9: dialect" in err


def test_import_replaces_files_only_with_force(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document, folder = tmp_path / "README.md", tmp_path / "own"
    document.write_text(TABLE)
    arguments = (
        "import",
        document,
        "--release",
        "25.05",
        "--recipe",
        "mine",
        "-o",
        folder,
    )
    assert run(capsys, *arguments)[0] == 0
    path = folder / "mine" / "25.05.yaml"
    before = path.read_bytes()
    document.write_text(TABLE.replace("9.33", "9.40"))
    code, out, _ = run(capsys, *arguments)
    assert (code, path.read_bytes()) == (1, before)
    assert '+     cells: {step_time: "9.40"}}' in out
    assert run(capsys, *arguments, "--force")[0] == 0
    assert b"9.40" in path.read_bytes()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (TABLE.replace("9.33", "9,330"), 2, "the comma may be a decimal comma"),
        (TABLE + "| MFU | 0.41 |\n", 1, "may be a percentage or a fraction"),
        (
            TABLE + "\n| Model | Disk |\n|---|---|\n| 8b | 105 GB |\n",
            0,
            "is not about performance or",
        ),
    ],
)
def test_import_fails_if_a_performance_number_is_ambiguous(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    text: str,
    code: int,
    message: str,
) -> None:
    """A table with another subject is listed without a failure."""
    document = tmp_path / "README.md"
    document.write_text(text)
    exit_code, _, err = run(capsys, "import", document, "--release", "25.05")
    assert exit_code == code
    assert message in " ".join(err.split())
