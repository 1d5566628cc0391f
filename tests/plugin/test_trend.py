"""Level changes over months: found, reported and acknowledged."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generator import write_run
from support.sessions import Judge, JudgedSession, Write

from pytest_llmbench.core.baseline_records import Baseline

NAME = "llama3.1_8b-25.04-h100-fp8-16"
NIGHTS, CHANGED = 34, 26
START = datetime.now(UTC).replace(
    hour=3, minute=0, second=0, microsecond=0
) - timedelta(days=NIGHTS)
DAY = (START + timedelta(days=CHANGED)).date()


def trend(session: JudgedSession) -> dict[str, dict[str, Any]]:
    return {
        report["id"]: report
        for report in session.reports
        if report.get("check") == "trend"
    }


@pytest.fixture(scope="module")
def months(
    tmp_path_factory: pytest.TempPathFactory, baselines: dict[str, Baseline]
) -> Path:
    """26 days with a spread of 0.3 %, then 8 days that are 6 % slower."""
    folder = tmp_path_factory.mktemp("months")
    noise = 0.003 * np.random.default_rng(5).standard_normal(NIGHTS)
    for day, wobble in enumerate(noise.tolist()):
        factor = (1.06 if day >= CHANGED else 1.0) * (1 + wobble)
        started = START + timedelta(days=day)
        write_run(
            folder,
            baselines[NAME],
            factor=factor,
            started=started,
            job_id=str(1000 + day),
        )
    return folder


def write(
    path: Path,
    *,
    slower: str = "6%",
    expires: str = "",
    configuration: str = "llama3.1_8b-*",
) -> Path:
    expires = expires or (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
    path.write_text(
        f"schema: 1\nacknowledged:\n  - configuration: {configuration}\n    slower: {slower}\n    since: {DAY}\n"
        f"    expires: {expires}\n    reason: the security fix\n    by: A. Person\n",
        encoding="utf-8",
    )
    return path


def options(folder: Path, *extra_options: str) -> list[str]:
    return [f"--llmb-logs={folder}", "-k", NAME, *extra_options]


@pytest.mark.slow
def test_slower_trend_has_its_date_and_fails_with_the_trend_option(
    judged: Judge, months: Path
) -> None:
    session = judged(*options(months))
    (check,) = trend(session).values()
    assert (check["id"], check["verdict"], check["status"]) == (
        NAME,
        "SLOWER",
        "passed",
    )
    assert f"since {DAY}" in check["text"]
    (change,) = session.described[NAME]["changes"]
    assert change["night"] == CHANGED
    assert change["started"].startswith(str(DAY))
    assert change["low"] < 0.06 < change["high"]
    assert change["acknowledged"] is None
    assert session.verdicts[NAME] == "REGRESSION"
    assert f"  change    {change['text'][:20]}" in session.messages[NAME]
    second_session = judged(*options(months, "--llmb-trend=fail"))
    assert trend(second_session)[NAME]["status"] == "failed"
    assert second_session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_acknowledgement_printed_by_a_failed_trend_makes_the_trend_pass(
    judged: Judge, months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it is printed, once a person has filled in until when, why and who."""
    (check,) = trend(judged(*options(months, "--llmb-trend=fail"))).values()
    entry = "\n".join(check["lines"][1:])
    day = (datetime.now(UTC) + timedelta(days=30)).date().isoformat()
    for word, said in (("DAY", day), ("WHY", "the security fix"), ("WHO", "A. Person")):
        assert word in entry
        entry = entry.replace(word, said)
    file = tmp_path / "acknowledged.yaml"
    file.write_text(f"schema: 1\nacknowledged:\n{entry}\n", encoding="utf-8")
    capsys.readouterr()
    session = judged(
        *options(months, f"--llmb-acknowledged={file}", "--llmb-trend=fail")
    )
    printed = capsys.readouterr().out
    assert (session.verdicts[NAME], session.statuses[NAME]) == ("PASS", "passed")
    assert (trend(session)[NAME]["verdict"], trend(session)[NAME]["lines"]) == (
        "ACKNOWLEDGED",
        [],
    )
    assert session.described[NAME]["changes"][0]["acknowledged"]["by"] == "A. Person"
    assert session.ret == pytest.ExitCode.OK
    assert "1 acknowledged change: " in printed
    assert re.search(
        r"acknowledged: \+\d\.\d % by A. Person", session.described[NAME]["text"]
    )


@pytest.mark.slow
def test_acknowledged_change_without_a_judged_run_does_not_pass(
    judged: Judge, months: Path, tmp_path: Path
) -> None:
    """The last run is older than allowed: what its nights show says nothing of
    tonight."""
    file = write(tmp_path / "acknowledged.yaml")
    only = (
        "-k",
        f"trend and {NAME}",
        "--llmb-max-age=1h",
        "--llmb-trend=fail",
        f"--llmb-acknowledged={file}",
    )
    session = judged(f"--llmb-logs={months}", *only)
    assert trend(session)[NAME]["verdict"] == "ACKNOWLEDGED"
    assert session.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.slow
def test_trend_does_not_use_the_judged_run_as_an_earlier_day(
    judged: Judge, months: Path
) -> None:
    """It is no earlier night of itself, which would show a change of last night after
    one night."""
    alone = judged(*options(months)).described[NAME]
    session = judged(
        f"--llmb-logs={months}", "--llmb-runs=each", "-k", f"{NAME}-{1000 + NIGHTS - 1}"
    )
    (newest,) = session.described.values()
    assert (newest["history"], newest["changes"]) == (
        alone["history"],
        alone["changes"],
    )


@pytest.mark.slow
def test_acknowledgement_that_fits_no_change_is_reported(
    judged: Judge, months: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "acknowledged.yaml", configuration="grok1*")
    file.write_text(file.read_text().replace("A. Person", '"A. \\e[31mPerson"'))
    capsys.readouterr()
    judged(*options(months, f"--llmb-acknowledged={file}"))
    output = " ".join(capsys.readouterr().out.split())
    assert "acknowledged.yaml:3: not needed by any run (grok1*)" in output
    assert "by A. \\x1b[31mPerson" in output


@pytest.mark.slow
def test_small_slowdowns_fail_if_their_sum_is_large(
    judged: Judge, generated: Write
) -> None:
    """Three changes of 0.9 %, none of which fails alone."""
    noise = 0.0003 * np.random.default_rng(5).standard_normal(48)
    for day, wobble in enumerate(noise.tolist()):
        started, factor = (
            START + timedelta(days=day - 14),
            1.009 ** (day // 12) * (1 + wobble),
        )
        folder = generated(
            NAME, factor=factor, noise=0.0003, started=started, job_id=str(day)
        )
    session = judged(*options(folder, "--llmb-trend=fail"))
    (check,) = trend(session).values()
    assert (check["status"], check["verdict"]) == ("failed", "SLOWER")
    assert re.match(r"\+2\.[678] % in 3 changes, the last: \+0\.[89] %", check["text"])
    assert session.statuses[NAME] == "passed"


@pytest.mark.slow
def test_configuration_that_alternates_around_its_limit_is_reported(
    judged: Judge, generated: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is green on one night and red on the next, with nothing to be found: 5 % and a
    bit, 5 % less a bit."""
    for day in range(14):
        started, factor = (
            START + timedelta(days=day + NIGHTS - 14),
            1.045 if day % 2 else 1.055,
        )
        folder = generated(
            NAME, factor=factor, noise=0.0005, started=started, job_id=str(day)
        )
    session = judged(*options(folder, "--llmb-trend=fail"))
    (check,) = trend(session).values()
    assert (check["verdict"], check["status"], check["lines"]) == (
        "ON_BOUND",
        "passed",
        [],
    )
    assert re.fullmatch(
        r"is on its bound \(\S+ s\): 5 of the last 10 days passed", check["text"]
    )
    assert "is on its bound" in " ".join(capsys.readouterr().out.split())
