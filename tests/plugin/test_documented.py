"""All documented configurations: the published time passes, 8 % slower fails."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from xml.etree import ElementTree

import pytest
from generator import write_run
from support.sessions import Judge

from pytest_llmbench.baseline.read import list_shipped_baselines, read_recipes
from pytest_llmbench.core.baseline_records import Baseline

pytestmark = pytest.mark.wheel

CELLS = {
    "tokens_per_second": "tokens_per_second",
    "mfu": "mfu",
    "days_to_1t": "days_to_1t_tokens",
}


def write_all(folder: Path, baselines: dict[str, Baseline], factor: float) -> Path:
    """Write a run of each configuration whose last step is a straggler; constant but
    for what the format rounds."""
    folder.mkdir()
    for baseline in baselines.values():
        write_run(folder, baseline, factor=factor, last_step_factor=1.3, noise=0.0)
    return folder


def corrected_cells() -> dict[tuple[str, str], str]:
    recipes = read_recipes(list_shipped_baselines())
    return {
        (erratum.configuration, erratum.cell): erratum.corrected
        for recipe in recipes
        for erratum in recipe.errata
        if erratum.configuration and erratum.cell
    }


def written(report: Path) -> dict[str, dict[str, str]]:
    """Return the properties of each test case in a JUnit file, by configuration."""
    cases = ElementTree.parse(report).getroot().iter("testcase")  # noqa: S314 (our own file)
    return {
        case.attrib["name"].partition("[")[2].rstrip("]"): {
            entry.attrib["name"]: entry.attrib["value"]
            for entry in case.iter("property")
        }
        for case in cases
    }


def number(text: str) -> tuple[Decimal, Decimal]:
    """Return the value of a printed cell and half a unit of its last place; a
    percentage becomes a fraction."""
    digits = Decimal(text.strip().rstrip("%").strip())
    unit = Decimal(1).scaleb(int(digits.as_tuple().exponent)) / 2
    return (digits / 100, unit / 100) if "%" in text else (digits, unit)


@pytest.mark.slow
def test_run_at_published_step_time_passes_and_reports_the_published_values(
    judged: Judge, tmp_path: Path, baselines: dict[str, Baseline]
) -> None:
    report = tmp_path / "junit.xml"
    session = judged(
        f"--llmb-logs={write_all(tmp_path / 'runs', baselines, 1.0)}",
        f"--junitxml={report}",
    )
    assert session.ret == pytest.ExitCode.OK
    published = written(report)
    assert session.verdicts == dict.fromkeys(baselines, "PASS")
    corrections, compared, wrong = corrected_cells(), 0, []
    for identifier, baseline in baselines.items():
        properties = published[identifier]
        assert session.described[identifier]["last_step_seconds"] == pytest.approx(
            1.3 * baseline.step_seconds, rel=0.02
        )
        measured = float(properties["step_time_seconds"])
        assert measured == pytest.approx(baseline.step_seconds, rel=3e-4)
        for cell, text in baseline.cells:
            if cell not in CELLS or text.strip().lower() in ("na", "n/a"):
                continue
            printed, unit = number(corrections.get((identifier, cell), text))
            # the format rounds the step time: the cell may move by the same ratio
            slack = (
                float(unit) * 1.0001
                + abs(measured / baseline.step_seconds - 1) * float(printed) * 1.01
            )
            if abs(float(properties[CELLS[cell]]) - float(printed)) > slack:
                wrong.append((identifier, cell, text, properties[CELLS[cell]]))
            compared += 1
    assert wrong == []
    assert compared == 213


@pytest.mark.slow
def test_run_eight_percent_slower_fails(
    judged: Judge, tmp_path: Path, baselines: dict[str, Baseline]
) -> None:
    session = judged(f"--llmb-logs={write_all(tmp_path / 'runs', baselines, 1.08)}")
    assert session.verdicts == dict.fromkeys(baselines, "REGRESSION")
    assert session.statuses == dict.fromkeys(baselines, "failed")
