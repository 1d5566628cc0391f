"""Models without a FLOP formula: judged by step time, tokens and logged FLOPs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sessions import Judge

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import read_file
from pytest_llmbench.core.errors import BaselineError

FILE = """\
schema: 1
kind: {kind}
recipe: oak
release: own
title: Oak
framework: MaxText
names: [oak]
dialect: maxtext
source: {{document: our own notes}}
peak_tflops: {{h100: {{bf16: "{peak}"}}}}
{models}
configurations:
  - {{size: 8b, gpu: h100, dtype: bf16, gpus: 8{more}}}
"""


def write_file(
    folder: Path,
    *,
    kind: str = "recipe",
    models: str = "",
    extra: str = "",
    peak: str = "989",
) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "oak.yaml"
    path.write_text(FILE.format(kind=kind, models=models, more=extra, peak=peak))
    return path


def write_run(
    folder: Path, day: int, *, slower: float = 1.0, work: float = 3600.0
) -> None:
    """Write a run of steps of about 8 s and this much TFLOP of a step."""
    run = folder / f"2026-05-0{day}" / "pretrain_oak_8b_bf16_8"
    run.mkdir(parents=True)
    seconds = [8 * slower * (1 + (step * 7 + day) % 5 / 1000) for step in range(50)]
    lines = [
        f"completed step: {step}, seconds: {time:.3f}, TFLOP/s/device: {work / time:.3f}, "
        f"Tokens/s/device: {8192 / time:.3f}, total_weights: 65536, loss: {9 - step / 50:.3f}\n"
        for step, time in enumerate(seconds)
    ]
    (run / f"log-oak_8b_bf16_8_{day}.out").write_text("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("models", ["", "models: {8b: {formula: none}}"])
def test_recorded_run_is_judged_by_logged_flops(
    judged: Judge, tmp_path: Path, models: str
) -> None:
    write_file(
        tmp_path / "mine", models=models, extra=", gbs: 8, sequence_length: 8192"
    )
    write_run(tmp_path / "first", 1)
    options = (f"--llmb-baselines={tmp_path / 'mine'}", "-k", "oak")
    assert list(
        judged(
            f"--llmb-logs={tmp_path / 'first'}",
            *options,
            f"--llmb-record={tmp_path / 'own'}",
        ).verdicts.values()
    ) == ["RECORDED"]
    file = tmp_path / "own" / "oak" / "own.yaml"
    assert "logged_tflop: 3600.0" in file.read_text()
    assert lint_file(read_file(file)).findings == ()

    for day, slower, expected in ((2, 1.0, "PASS"), (3, 1.12, "REGRESSION")):
        write_run(tmp_path / f"night{day}", day, slower=slower)
        session = judged(
            f"--llmb-logs={tmp_path / f'night{day}'}",
            f"--llmb-baselines={tmp_path / 'own'}",
            "-k",
            "oak",
        )
        (outcome,) = session.described.values()
        assert outcome["verdict"] == expected
        metrics = outcome["metrics"]
        assert metrics["mfu_logged"]["value"] == pytest.approx(
            3600 / 8 / slower / 989, rel=5e-3
        )
        assert outcome["expected_metrics"]["logged_tflops_per_gpu"] == pytest.approx(
            450, rel=5e-3
        )
        assert not {"mfu", "tflops_per_gpu"} & set(metrics)
        (message,) = session.messages.values()
        if expected == "REGRESSION":
            assert "MFU (logged)" in message
            assert "logged TFLOP/s" in message
            assert "MFU  " not in message


@pytest.mark.slow
def test_run_with_other_logged_work_is_unmatched(judged: Judge, tmp_path: Path) -> None:
    write_file(tmp_path / "mine", extra=", logged_tflop: 3600")
    write_run(tmp_path / "runs", 1, work=3900.0)
    session = judged(
        f"--llmb-logs={tmp_path / 'runs'}",
        f"--llmb-baselines={tmp_path / 'mine'}",
        "-k",
        "oak",
    )
    (outcome,) = session.described.values()
    assert (outcome["verdict"], outcome["reason"]) == ("INVALID", "wrong-configuration")


@pytest.mark.parametrize(
    ("models", "extra", "problem"),
    [
        (
            "models: {8b: {formula: llama}}",
            "",
            "found no 'hidden_size' of 8b, expected it for formula llama",
        ),
        (
            "models: {8b: {formula: nemotron, hidden_size: 8, vocabulary_size: 8}}",
            "",
            "found no 'sequence_length', 'layers', 'gbs', expected them for counting FLOPs",
        ),
        (
            "models: {8b: {formula: nemotron, hidden_size: 8, vocabulary_size: 8}}",
            ", gbs: 8, sequence_length: 8, layers: 8, logged_tflop: 3",
            "found 'logged_tflop' of a counted model, expected it with formula: none only",
        ),
        (
            "models: {9b: {formula: none}}",
            "",
            "found size '8b', expected a name under models: 9b",
        ),
    ],
)
def test_flops_by_formula_need_the_model_architecture(
    tmp_path: Path, models: str, extra: str, problem: str
) -> None:
    with pytest.raises(BaselineError) as raised:
        read_file(write_file(tmp_path, models=models, extra=extra))
    assert problem in str(raised.value)
