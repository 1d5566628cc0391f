"""Runs with wrong settings or without training never pass, however fast."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.sessions import Judge, JudgedSession, Write

GROK = "grok1_314b-25.05-gb200-bf16-128"
GROK_FP8 = "grok1_314b-25.05-gb200-fp8-128"
NEMO1 = "grok1_314b-24.11-h100-bf16-512"
MAXTEXT = "maxtext_llama2_70b-24.11-h100-bf16-64"
MAXTEXT_FP8 = "maxtext_llama2_70b-24.11-h100-fp8-128"

Edit = Callable[[str], str]


def replaced(pattern: str, by: str | Callable[[re.Match[str]], str]) -> Edit:
    """Return an edit that replaces every match; at least one is required."""

    def edit(text: str) -> str:
        edited, count = re.subn(pattern, by, text)
        assert count, pattern
        return edited

    return edit


def edited(folder: Path, edit: Edit) -> Path:
    """Change the logs of the runs below a folder."""
    for path in folder.rglob("log-*.out"):
        path.write_text(edit(path.read_text(encoding="utf-8")), encoding="utf-8")
    return folder


def judge_edited(
    judged: Judge,
    generated: Write,
    name: str,
    edit: Edit,
    *arguments: str,
    **options: object,
) -> JudgedSession:
    folder = edited(generated(name, **options), edit)
    return judged(f"--llmb-logs={folder}", "-k", name, "--llmb-no-cache", *arguments)


def get_verdict(session: JudgedSession, name: str) -> tuple[str, str, str]:
    """Return verdict, reason and status of an item."""
    outcome = session.described[name]
    return outcome["verdict"], outcome["reason"], outcome["status"]


def first_line(line: str) -> Edit:
    return lambda text: f"{line}\n{text}"


# --- another configuration ------------------------------------------------------------


class Wrong(NamedTuple):
    """A run, the edit of its log, and a word of the expected problem."""

    name: str
    edit: Edit
    told: str


WRONG = {
    "samples-grow-by-half": Wrong(
        GROK,
        replaced(
            r"consumed_samples: (\d+)",
            lambda match: f"consumed_samples: {int(match[1]) // 2}",
        ),
        "consumed samples grow by 128 a step",
    ),
    "members-nemo-1": Wrong(
        NEMO1, replaced(r"MEMBER: (\d+)/512", r"MEMBER: \1/256"), "states 256 GPUs"
    ),
    "pcie-cards": Wrong(
        MAXTEXT,
        first_line("GPU 0: NVIDIA H100 PCIe (UUID: GPU-1)"),
        "states h100pcie GPUs, the baseline is for h100",
    ),
    "half-the-target-tokens": Wrong(
        MAXTEXT,
        replaced("total_weights: 524288", "total_weights: 262144"),
        "262144 tokens a step",
    ),
    "not-quantized": Wrong(
        MAXTEXT_FP8,
        replaced("Config param quantization: fp8\n", "Config param quantization: \n"),
        "16 or 32 bits",
    ),
    "fp8-in-a-bf16-folder": Wrong(NEMO1, replaced("fp8: False", "fp8: True"), "fp8"),
    "another-model": Wrong(
        GROK,
        replaced("/nemo_run/grok1_314b", "/nemo_run/llama3.1_405b"),
        "llama3.1_405b",
    ),
    "another-experiment": Wrong(
        GROK,
        first_line("+ srun python pretrain.py --exp-name pretrain_grok1_314b_fp8_128"),
        "pretrain_grok1_314b_fp8_128",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_run_of_another_configuration_is_invalid(
    judged: Judge, generated: Write, case: Wrong
) -> None:
    session = judge_edited(judged, generated, case.name, case.edit)
    assert get_verdict(session, case.name) == (
        "INVALID",
        "wrong-configuration",
        "failed",
    )
    assert re.search(case.told, session.described[case.name]["text"])


SAME = {
    "a-card-for-a-screen": Wrong(
        MAXTEXT, first_line("GPU 8: NVIDIA RTX A400 (UUID: GPU-1)"), ""
    ),
    "world-size-of-a-later-process": Wrong(
        GROK,
        replaced(
            r"(?=Initializing distributed: GLOBAL_RANK: 0)",
            "GLOBAL_RANK: 0, MEMBER: 1/1\n",
        ),
        "",
    ),
    "starts-from-another-run": Wrong(
        GROK,
        first_line(
            "load /data/pretrain_llama3.1_8b_bf16_8/checkpoints, then run pretrain_grok1_314b_bf16_128"
        ),
        "",
    ),
    "padded-batches": Wrong(
        MAXTEXT,
        replaced(
            r"completed step: (\d+)(.*)total_weights: 524288",
            lambda m: (
                f"completed step: {m[1]}{m[2]}total_weights: {300000 + 97 * int(m[1])}"
            ),
        ),
        "",
    ),
    "bf16-optimizer-in-an-fp8-run": Wrong(
        GROK_FP8, first_line("[NeMo I] Setting up optimizer with bf16=True"), ""
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SAME.values(), ids=SAME)
def test_run_that_resembles_another_configuration_is_valid(
    judged: Judge, generated: Write, case: Wrong
) -> None:
    session = judge_edited(judged, generated, case.name, case.edit)
    assert get_verdict(session, case.name) == ("PASS", "within-tolerance", "passed")


@pytest.mark.slow
def test_gpu_count_is_read_from_the_judged_attempt_of_a_restarted_job(
    judged: Judge, generated: Write
) -> None:
    """The first attempt ran on fewer GPUs and was killed, or the other way round."""
    name = "nemotron4_340b-25.01-h100-fp8-256"
    first = replaced(r"MEMBER: (\d+)/256", r"MEMBER: \1/128")

    def halves(text: str) -> tuple[str, str]:
        offset = text.rindex("GLOBAL_RANK: 0, MEMBER")
        return text[:offset], text[offset:]

    folder = generated(name, restarts=1)
    (path,) = folder.rglob("log-*.out")
    before, after = halves(path.read_text(encoding="utf-8"))
    path.write_text(first(before) + after, encoding="utf-8")
    options = (f"--llmb-logs={folder}", "-k", name, "--llmb-no-cache")
    assert get_verdict(judged(*options), name)[0] == "PASS"
    path.write_text(before + first(after), encoding="utf-8")
    assert get_verdict(judged(*options), name)[:2] == ("INVALID", "wrong-configuration")


# --- implausibly fast -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "reason", "status"),
    [(0.75, "implausibly-fast", "failed"), (0.88, "faster-than-baseline", "passed")],
)
def test_implausibly_fast_run_fails(
    judged: Judge, generated: Write, factor: float, reason: str, status: str
) -> None:
    session = judged(f"--llmb-logs={generated(GROK, factor=factor)}", "-k", GROK)
    assert get_verdict(session, GROK) == ("IMPROVEMENT", reason, status)
    assert ("probably another configuration" in session.described[GROK]["text"]) is (
        status == "failed"
    )
    assert ("--llmb-improvement=pass" in session.messages[GROK]) is (status == "failed")
    assert session.ret == (
        pytest.ExitCode.TESTS_FAILED if status == "failed" else pytest.ExitCode.OK
    )


@pytest.mark.slow
def test_implausibly_fast_run_passes_with_the_improvement_setting_pass(
    judged: Judge, generated: Write, pytester: pytest.Pytester
) -> None:
    chosen = (f"--llmb-logs={generated(GROK, factor=0.7)}", "-k", GROK)
    assert judged(*chosen, "--llmb-baseline-release=25.05").statuses == {GROK: "passed"}
    pytester.makeini("[pytest]\nllmb_improvement = pass\n")
    assert get_verdict(judged(*chosen), GROK) == (
        "IMPROVEMENT",
        "faster-than-baseline",
        "passed",
    )
    assert judged(*chosen, "--llmb-certify").statuses == {GROK: "failed"}
    assert judged(*chosen, "--llmb-certify", "--llmb-improvement=pass").statuses == {
        GROK: "passed"
    }


# --- runs that did not train ----------------------------------------------------------


UNTRAINED = {
    "loss-0": Wrong(
        GROK,
        replaced(r"reduced_train_loss: [\d.]+", "reduced_train_loss: 0"),
        "loss is 0 in every step",
    ),
    "learning-rate-0": Wrong(
        GROK, replaced(r" lr: [\d.e-]+", " lr: 0"), "learning rate is 0"
    ),
    "loss-and-gradient-stand-still": Wrong(
        GROK,
        replaced(
            r"reduced_train_loss: [\d.]+", "grad_norm: 1.25 | reduced_train_loss: 11.03"
        ),
        "11.03 in every",
    ),
    "nemo-1-loss-0": Wrong(
        NEMO1,
        replaced(r"reduced_train_loss=[\d.]+", "reduced_train_loss=0.000"),
        "loss is 0",
    ),
    "maxtext-negative": Wrong(
        MAXTEXT, replaced(r"loss: \d", "loss: -1"), "never negative"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", UNTRAINED.values(), ids=UNTRAINED)
def test_run_that_did_not_train_is_invalid(
    judged: Judge, generated: Write, case: Wrong
) -> None:
    session = judge_edited(judged, generated, case.name, case.edit)
    assert get_verdict(session, case.name) == ("INVALID", "did-not-train", "failed")
    assert re.search(case.told, session.described[case.name]["text"])
    assert "run it again" in session.messages[case.name]


TRAINED = {
    "synthetic-data-at-four-digits": Wrong(
        GROK,
        replaced(r"reduced_train_loss: [\d.]+", "reduced_train_loss: 11.03"),
        "11.03 in every step",
    ),
    "maxtext-synthetic": Wrong(MAXTEXT, lambda text: text, "0 in every step"),
    "warm-up-from-0": Wrong(
        GROK, replaced(r" lr: [\d.e-]+( .*global_step: \d )", r" lr: 0\1"), ""
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINED.values(), ids=TRAINED)
def test_run_that_may_not_have_trained_gets_only_a_note(
    judged: Judge, generated: Write, case: Wrong
) -> None:
    session = judge_edited(judged, generated, case.name, case.edit)
    assert get_verdict(session, case.name)[2] == "passed"
    texts = [
        note["text"]
        for note in session.described[case.name]["notes"]
        if note["code"] == "loss-stands-still"
    ]
    assert bool(texts) is bool(case.told)
    assert all(case.told in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "status"),
    [("0.5", "passed"), ("0.0", "failed")],
    ids=["learns from preferences", "learns nothing"],
)
def test_dpo_run_with_negative_loss_is_valid_if_its_gradients_are_nonzero(
    judged: Judge, generated: Write, norm: str, status: str
) -> None:
    negative = replaced(
        "reduced_train_loss: ", f"grad_norm: {norm} | reduced_train_loss: -"
    )
    session = judge_edited(
        judged, generated, GROK, lambda text: f"Using DPOTrainer\n{negative(text)}"
    )
    assert session.statuses == {GROK: status}


# --- MaxText's own lines --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ramped", "expected"),
    [
        ("[0-9]", ("PASS", "within-tolerance", "passed")),
        (r"\d|[12]\d", ("INVALID", "window-incomplete", "failed")),
    ],
    ids=["before the window", "in the window"],
)
def test_batch_size_ramp_up_inside_the_window_makes_a_run_invalid(
    judged: Judge, generated: Write, ramped: str, expected: tuple[str, str, str]
) -> None:
    """They are faster: a smaller batch takes less time."""
    edit = replaced(
        rf"completed step: ({ramped}), ",
        r"[Rampup Batch Size Phase], completed step: \1, ",
    )
    session = judge_edited(judged, generated, MAXTEXT, edit, profiling_steps=0)
    assert get_verdict(session, MAXTEXT) == expected
    assert expected[0] == "INVALID" or "ramped-up" in [
        note["code"] for note in session.described[MAXTEXT]["notes"]
    ]


# --- Hugging Face ---------------------------------------------------------------------


def judge_trainer(
    judged: Judge,
    folder: Path,
    records: list[str],
    loss: str,
    *,
    seconds: str = "0.500",
    extra: str = "",
) -> dict[str, Any]:
    """Judge the log of a Trainer's run of 100 steps in 50 s against a baseline of
    `seconds`."""
    values = {
        "recipe": "tuned",
        "dialect": "huggingface",
        "gpu": "h100",
        "peak": "989",
        "size": "8b",
        "gpus": 1,
    }
    shape = "sequence_length: 1024, layers: 32, gbs: 8, mbs: 8"
    text = custom_baseline(
        **values | {"first": 1, "last": 100, "steps": 100},
        model=LLAMA_8B,
        shape=shape,
        seconds=seconds,
        more=extra,
    )
    (folder / "tuned.yaml").write_text(text)
    rates = "'train_samples_per_second': 16.0, 'train_steps_per_second': 2.0"
    end = f"{{'train_runtime': 50.0, {rates}, 'train_loss': {loss}}}"
    bar = "100%|██████████| 100/100 [00:50<00:00,  2.00it/s]"
    (folder / "log-tuned_8b_bf16_1_7.out").write_text(
        "\n".join([*records, bar, end, bar, ""])
    )
    session = judged(
        f"--llmb-logs={folder}",
        f"--llmb-baselines={folder}",
        "--llmb-gpu=h100",
        "--llmb-no-cache",
    )
    outcomes = session.described.values()
    (outcome,) = [
        outcome
        for outcome in outcomes
        if outcome["kind"] == "configuration" and outcome.get("run")
    ]
    return dict(outcome)


def record(loss: str, norm: str, extra: str = "") -> str:
    return f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 1e-05{extra}, 'epoch': 0.5}}"


SOUND = [record("1.5", "0.4"), record("1.4", "0.3")]
TRAINER = {
    "sound": (SOUND, "1.45", "PASS"),
    "nan-in-every-record": ([record("0.0", "nan")] * 4, "0.0", "diverged"),
    "gradient-0": ([record("1.5", "0.0")] * 3, "1.5", "did-not-train"),
    "rewards-0": (
        [record("0.0", "0.4", extra=", 'reward': 0.5, 'reward_std': 0.1")] * 3,
        "0.0",
        "PASS",
    ),
    "rewards-and-no-gradient": (
        [record("0.0", "0.0", extra=", 'reward': 0.5")] * 3,
        "0.0",
        "did-not-train",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("records", "loss", "expected"), TRAINER.values(), ids=TRAINER)
def test_trainer_run_is_invalid_if_its_step_losses_show_no_training(
    judged: Judge, tmp_path: Path, records: list[str], loss: str, expected: str
) -> None:
    session = judge_trainer(judged, tmp_path, records, loss)
    if expected == "PASS":
        assert session["status"] == "passed", session["text"]
    else:
        assert (session["verdict"], session["reason"], session["status"]) == (
            "INVALID",
            expected,
            "failed",
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "status"), [("local", "passed"), ("sbatch", "failed")]
)
def test_implausibly_fast_run_passes_if_its_launcher_is_local(
    judged: Judge, tmp_path: Path, kind: str, status: str
) -> None:
    """A CPU that others use is twice as fast once they have gone."""
    launch = f"launch: {{kind: {kind}, commands: {{{kind}: {{command: ./launch.sh}}}}, gpus_per_node: {{h100: 8}}}}"
    session = judge_trainer(
        judged, tmp_path, SOUND, "1.45", seconds="0.700", extra=launch
    )
    assert session["status"] == status
    assert (session["reason"] == "implausibly-fast") is (kind == "sbatch")
