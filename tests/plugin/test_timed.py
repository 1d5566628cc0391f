"""`--llmb-timed=document`: labelled in every report and never stored."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.custom_baseline import LLAMA_8B, custom_baseline
from support.outcomes import list_schema_errors
from support.sessions import Judge, Write

from pytest_llmbench.cli.main import main

LLAMA = "llama3.1_8b-25.04-h100-bf16-8"
MEAN = "grok1_314b-25.05-gb200-bf16-128"

LAST_STEP = (
    "grok1_314b-24.11-h100-bf16-512",
    "maxtext_llama2_70b-24.11-h100-bf16-64",
    "nemotron4_340b-25.01-h100-bf16-128",
    LLAMA,
)
"""One of each document that timed the last step."""

DOCUMENT = "--llmb-timed=document"


def logs(path: Path) -> str:
    return f"--llmb-logs={path}"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST_STEP)
def test_verdict_uses_the_last_step_if_the_document_timed_it(
    judged: Judge, generated: Write, name: str
) -> None:
    """The window passes and the last step stalls."""
    folder = generated(name, noise=0.0, last_step_factor=1.3)
    plain = judged(logs(folder), "-k", name)
    assert (plain.verdicts, plain.properties[name]["timed"]) == (
        {name: "PASS"},
        "window",
    )
    session = judged(logs(folder), "-k", name, DOCUMENT)
    assert (session.verdicts, session.properties[name]["timed"]) == (
        {name: "REGRESSION"},
        "document",
    )
    outcome = session.described[name]
    assert (
        outcome["window"]["first"],
        outcome["window"]["last"],
        outcome["window"]["text"],
    ) == (49, 49, "step 49")
    measured = outcome["metrics"]["step_time_seconds"]["value"]
    assert measured == pytest.approx(outcome["last_step_seconds"])
    assert measured == pytest.approx(outcome["expected_seconds"] * 1.3, rel=0.02)
    for properties in (plain.properties[name], session.properties[name]):
        assert float(properties["last_step_seconds"]) == outcome["last_step_seconds"]


@pytest.mark.slow
def test_slow_run_passes_if_document_timing_uses_its_fast_last_step(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    """The ini file asks for it, and a typed option replaces the ini file."""
    pytester.makeini("[pytest]\nllmb_timed = document\n")
    folder = generated(LLAMA, noise=0.0, factor=1.09, last_step_factor=1 / 1.09)
    assert judged(logs(folder), "-k", LLAMA, "--llmb-timed=window").verdicts == {
        LLAMA: "REGRESSION"
    }
    session = judged(logs(folder), "-k", LLAMA)
    assert session.verdicts == {LLAMA: "PASS"}
    assert [note["code"] for note in session.described[LLAMA]["notes"]].count(
        "threshold-only"
    ) == 1


@pytest.mark.slow
def test_document_timing_changes_no_verdict_if_the_document_timed_a_mean(
    judged: Judge, generated: Write
) -> None:
    folder = generated(MEAN, factor=1.02, last_step_factor=2.0)
    plain, other = (
        judged(logs(folder), "-k", MEAN, *options).described[MEAN]
        for options in ((), (DOCUMENT,))
    )
    changed = {name for name in plain if plain[name] != other[name]}
    assert changed == {"timed", "text"}
    assert (plain["timed"], other["timed"], other["window"]["text"]) == (
        "window",
        "document",
        "mean of steps 11 to 44",
    )
    assert (
        other["text"]
        == f"measured as its document does (mean of steps 11 to 44): {plain['text']}"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "damage", "reason"),
    [
        (20, "train_step_timing in s: 0.0", "impossible-sample"),
        (20, "train_step_timing in s: nan", "window-incomplete"),
        (49, "global_step: 4x", "window-incomplete"),
        (0, "reduced_train_loss: nan", "diverged"),
    ],
)
def test_damage_before_the_last_step_makes_a_run_invalid_with_document_timing(
    judged: Judge, generated: Write, step: int, damage: str, reason: str
) -> None:
    """The whole window counts although only the last step is timed."""
    folder = generated(LLAMA, noise=0.0)
    (log,) = folder.rglob("log-*.out")
    before, mark, after = log.read_text().partition(f"| global_step: {step} ")
    field = damage.rpartition(" ")[0]
    log.write_text(before + (mark + after).replace(field, f"{damage} | was:", 1))
    outcome = judged(logs(folder), "-k", LLAMA, DOCUMENT).described[LLAMA]
    assert (outcome["verdict"], outcome["reason"]) == ("INVALID", reason)
    assert outcome["text"].startswith("measured as its document does (step 49): ")


@pytest.mark.slow
def test_every_report_says_that_only_the_last_step_was_compared(
    generated: Write,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Terminal, message, chat, GitHub, HTML, JSON, both JUnit reports and the head of
    the session."""
    folder = generated(LLAMA, noise=0.0, last_step_factor=1.3)
    generated(MEAN, noise=0.0)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    outputs = (
        "--llmb-json=s.json",
        "--llmb-html=s.html",
        "--llmb-junit=own.xml",
        "--junitxml=junit.xml",
    )
    text = pytester.runpytest(
        "-p", "no:cacheprovider", logs(folder), DOCUMENT, *outputs
    ).stdout.str()
    written = {
        path.name: path.read_text() for path in pytester.path.iterdir() if path.suffix
    }
    label = "timed like the documents, to compare with their tables"
    for line in (
        f"llmbench: {label}: nothing is recorded, stored or",
        f"REGRESSION  {LLAMA} [last step] (slower-than-bound)",
        "\nmeasured as its document does (step 49): ",
        f"REGRESSION     {LLAMA} [last step]",
        f"PASS           {MEAN} [as documented]",
        f"::error title=REGRESSION {LLAMA} [last step] (slower-than-bound)::measured as its document does",
    ):
        assert line in text
    assert " ".join(text.split()).count(f"{label}: not a gate verdict") == 1
    assert f"{LLAMA} &#91;last step&#93;".replace("_", "&#95;") in written["summary.md"]
    assert written["s.html"].count(f"{LLAMA} [last step]") >= 3
    assert written["s.html"].count(f"{MEAN} [as documented]") >= 2
    assert label in written["summary.md"]
    assert label in written["s.html"]
    document = json.loads(written["s.json"])
    assert list_schema_errors(document) == []
    timed = {
        outcome["timed"]
        for outcome in document["outcomes"]
        if outcome["kind"] != "stray"
    }
    assert {document["timed"], *timed} == {"document"}
    assert set(re.findall('name="timed" value="(.*?)"', written["junit.xml"])) == {
        "document"
    }
    assert "timed" in written["own.xml"]
    capsys.readouterr()
    assert main(["chat", str(pytester.path / "s.json")]) == 0
    chat = capsys.readouterr().out
    assert "not a gate verdict" in chat.splitlines()[0]
    assert f"REGRESSION {LLAMA} [last step]: +30" in chat


REFUSED = {
    "--llmb-record=own": "a baseline is a mean of many steps",
    "--llmb-certify": "a certificate cannot be based on a single step",
    "--llmb-history=h.db": "a history does not store times of single steps",
    "--llmb-acknowledged=a.yaml": "published tables contain no",
    "--llmb-against=both": "only published baselines",
}


@pytest.mark.parametrize("option", REFUSED)
@pytest.mark.parametrize("place", ["typed", "ini"])
def test_document_timing_is_refused_with_record_certify_or_history_option(
    pytester: pytest.Pytester, generated: Write, option: str, place: str
) -> None:
    pytester.path.joinpath("a.yaml").write_text("schema: 1\nacknowledged: []\n")
    pytester.makeini(
        f"[pytest]\nllmb_timed = {'document' if place == 'ini' else 'window'}\n"
    )
    timed = [DOCUMENT] if place == "typed" else []
    result = pytester.runpytest(
        "-p", "no:cacheprovider", logs(generated(LLAMA)), *timed, option
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = " ".join(result.stderr.str().split())
    assert "--llmb-timed=document with --llmb-" in message
    assert REFUSED[option] in message
    assert not pytester.path.joinpath("h.db").exists()


@pytest.mark.slow
def test_document_timing_ignores_history_and_record_keys(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    """A repository with a history and acknowledged changes compares with the tables by
    one option."""
    pytester.makeini(
        "[pytest]\nllmb_history = h.db\nllmb_acknowledged = a.yaml\nllmb_against = recorded\n"
    )
    entry = "{configuration: '*', slower: 9%, since: 2020-01-01, expires: 2090-01-01, reason: known, by: me}"
    pytester.path.joinpath("a.yaml").write_text(
        f"schema: 1\nacknowledged:\n  - {entry}\n"
    )
    session = judged(
        logs(generated(LLAMA, noise=0.0, last_step_factor=1.08)), "-k", LLAMA, DOCUMENT
    )
    assert session.verdicts == {LLAMA: "REGRESSION"}
    assert session.described[LLAMA]["expected_seconds"] == 12.27
    assert not pytester.path.joinpath("h.db").exists()


@pytest.mark.slow
def test_document_timing_ignores_recorded_baselines(
    pytester: pytest.Pytester, judged: Judge, generated: Write
) -> None:
    """Where a published one is beside it, that decides; alone it is judged as ever, and
    not labelled."""
    folder = generated(LLAMA, noise=0.0, factor=1.2)
    judged(logs(folder), "-k", LLAMA, "--llmb-record=own")
    own = "--llmb-baselines=own"
    assert judged(logs(folder), "-k", LLAMA, own).verdicts == {LLAMA: "PASS"}
    session = judged(logs(folder), "-k", LLAMA, own, DOCUMENT)
    assert session.verdicts == {LLAMA: "REGRESSION"}
    assert session.described[LLAMA]["baseline"]["kind"] == "published"


MINE = {
    "recipe": "mine",
    "size": "8b",
    "gpu": "h100",
    "gpus": 8,
    "peak": 989,
    "seconds": "15.00",
    "model": LLAMA_8B,
    "shape": "sequence_length: 8192, layers: 32, gbs: 128",
    "dialect": "regex",
}


@pytest.mark.slow
def test_document_timing_uses_step_50_if_steps_are_numbered_from_1(
    pytester: pytest.Pytester, judged: Judge
) -> None:
    log = "log: {find: 'took', pattern: 'step (?P<step>[0-9]+) took (?P<seconds>[0-9.]+)', first_step: 1}"
    pytester.mkdir("mine").joinpath("mine.yaml").write_text(
        custom_baseline(**MINE, more=log).replace("timed: mean", "timed: last_step")
    )
    lines = [
        f"step {number} took {15.0 if number < 50 else 19.5} loss: 2.5\n"
        for number in range(1, 51)
    ]
    pytester.mkdir("runs").joinpath("log-mine_8b_bf16_8_7_0.out").write_text(
        "".join(lines)
    )
    outcome = judged(
        "--llmb-logs=runs", "--llmb-baselines=mine", "-k", "mine", DOCUMENT
    ).described["mine_8b-own-h100-bf16-8"]
    assert (outcome["window"]["text"], outcome["verdict"]) == ("step 50", "REGRESSION")
    assert outcome["metrics"]["step_time_seconds"]["value"] == 19.5


@pytest.mark.slow
def test_document_timing_estimates_the_noise_from_last_steps_of_earlier_runs(
    judged: Judge, generated: Write
) -> None:
    """Not how much a mean over a window does: the interval is as wide as single steps
    are apart."""
    for day in range(12):
        options = {
            "started": datetime(2025, 6, 1 + day, 3, tzinfo=UTC),
            "job_id": str(1000 + day),
        }
        folder = generated(
            LLAMA, noise=0.01, last_step_factor=1 + 0.01 * (day % 3 - 1), **options
        )
    plain, other = (
        judged(logs(folder), "-k", LLAMA, *options).described[LLAMA]
        for options in ((), (DOCUMENT,))
    )
    assert other["estimate"]["threshold_only"] is False
    sigmas = [session["estimate"]["run_to_run"]["sigma"] for session in (plain, other)]
    assert sigmas[1] > 3 * sigmas[0]
