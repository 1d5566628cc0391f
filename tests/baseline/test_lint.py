"""Lint passes the shipped files, and reports every kind of contradiction."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_llmbench.baseline.lint import (
    LintReport,
    find_contradiction,
    lint_file,
    recompute_cell,
    round_as_printed,
)
from pytest_llmbench.baseline.read import (
    find_baseline_files,
    find_shipped_baselines,
    find_shipped_tables,
    list_shipped_baselines,
    read_file,
    read_recipe,
    read_recipes,
)
from pytest_llmbench.baseline.write import write_recorded
from pytest_llmbench.core.baseline_records import (
    AcceptedValue,
    Baseline,
    Contradiction,
    Erratum,
    Recording,
)

Edit = Callable[[str, str, str], LintReport]


@pytest.fixture
def lint_edited(tmp_path: Path) -> Edit:
    """Lint a shipped file in which one text was replaced."""

    def lint(name: str, old: str, new: str) -> LintReport:
        text = (find_shipped_baselines() / f"{name}.yaml").read_text()
        assert text.count(old) == 1, old
        path = tmp_path / "copy.yaml"
        path.write_text(text.replace(old, new))
        return lint_file(read_file(path))

    return lint


def test_shipped_baselines_pass_lint_with_expected_counts_of_cells_and_errata() -> None:
    reports = [
        lint_file(read_file(path))
        for path in find_baseline_files(list_shipped_baselines())
    ]
    assert [finding for report in reports for finding in report.findings] == []
    assert sum(report.configurations for report in reports) == 82
    assert sum(report.cells for report in reports) == 313
    assert sum(report.numbers for report in reports) == 295
    assert sum(report.derived for report in reports) == 213
    assert sum(report.reproduced for report in reports) == 183
    assert (
        sum(
            erratum.cell in ("tokens_per_second", "mfu", "days_to_1t")
            for r in reports
            for erratum in r.errata
        )
        == 30
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "finding"),
    [
        pytest.param(
            "grok1/25.05",
            'mfu: "47.59%"',
            'mfu: "47.95%"',
            "grok1_314b-25.05-gb200-bf16-128: found mfu 47.95%, expected 47.59%; correct it, or list it",
            id="a flipped cell",
        ),
        pytest.param(
            "grok1/25.05",
            'step_time: "7.325"',
            'step_time: "7.235"',
            "found tokens_per_second 286300.61, expected 289862.06",
            id="a flipped step time",
        ),
        pytest.param(
            "grok1/25.05",
            '      grok1_314b-25.05-gb200-bf16-512: {printed: "572679", corrected: "1145359"}\n',
            "",
            "grok1_314b-25.05-gb200-bf16-512: found tokens_per_second 572679, expected 1145359",
            id="a removed erratum",
        ),
        pytest.param(
            "grok1/25.05",
            '      grok1_314b-25.05-h100-fp8-512: {printed: "32.2%", corrected: "32.1%"}\n',
            '      grok1_314b-25.05-h100-fp8-512: {printed: "32.2%", corrected: "32.1%"}\n'
            '      grok1_314b-25.05-h100-bf16-512: {printed: "54.2%", corrected: "54.1%"}\n',
            "erratum: mfu of grok1_314b-25.05-h100-bf16-512: the cell reproduces, so remove the erratum",
            id="a bogus erratum",
        ),
        pytest.param(
            "grok1/25.05",
            'corrected: "1145359"',
            'corrected: "1145358"',
            "found corrected 1145358, expected 1145359",
            id="a wrong correction",
        ),
        pytest.param(
            "grok1/25.05",
            'printed: "572679"',
            'printed: "572678"',
            "found printed 572678, expected 572679 as in the configuration",
            id="a misquoted erratum",
        ),
        pytest.param(
            "grok1/25.05",
            'attention: "53,150,220,288"',
            'attention: "53,150,220,289"',
            "model 314b: found attention FLOPs 53,150,220,289, expected 53,150,220,288",
            id="a wrong intermediate sum",
        ),
        pytest.param(
            "grok1/25.05",
            'printed_flops: "4.27E+15"',
            'printed_flops: "4.28E+15"',
            "model 314b: found FLOPs 4.28E+15, expected 4.27e+15",
            id="a wrong constant",
        ),
        pytest.param(
            "grok1/25.05",
            'flops: "4.27E15"',
            'flops: "4.72E15"',
            "model 314b: found worked FLOPs 4.72E15, expected 4.27405e+15",
            id="a wrong worked result",
        ),
        pytest.param(
            "grok1/25.05",
            "ffn_size: 32768",
            "ffn_size: 23768",
            "model 314b: found mlp FLOPs 463,856,467,968, expected 33",
            id="a wrong size of the model",
        ),
        pytest.param(
            "grok1/24.11",
            '      grok1_314b-24.11-h100-fp8-8: {printed: "128", corrected: "512"}\n',
            "",
            "grok1_314b-24.11-h100-fp8-8: found ga 128, expected 512",
            id="a batch size that GA cannot give",
        ),
        pytest.param(
            "grok1/24.11",
            "dp_excludes_ep: true",
            "dp_excludes_ep: false",
            "grok1_314b-24.11-h100-bf16-8: found dp 1, expected 2",
            id="data parallel copies that do not fill the GPUs",
        ),
        pytest.param(
            "llama3.1/25.04",
            'tp: 8, pp: 8, cp: 2, dp: 4, vp: 8, mbs: 1, gbs: 256, ga: 64,\n     cells: {step_time: "19.78"',
            'tp: 3, pp: 8, cp: 2, dp: 4, vp: 8, mbs: 1, gbs: 256, ga: 64,\n     cells: {step_time: "19.78"',
            "llama3.1_405b-25.04-h100-bf16-512: found tp 3, expected none",
            id="groups that do not divide the GPUs",
        ),
        pytest.param(
            "maxtext_llama2/24.11",
            'fsdp: 64, mbs: 2, gbs: 128,\n     cells: {step_time: "6.999"',
            'fsdp: 48, mbs: 2, gbs: 128,\n     cells: {step_time: "6.999"',
            "maxtext_llama2_70b-24.11-h100-bf16-64: found fsdp 48, expected none",
            id="FSDP that does not divide the GPUs",
        ),
        pytest.param(
            "maxtext_llama2/24.11",
            'fsdp: 64, mbs: 2, gbs: 128,\n     cells: {step_time: "6.999"',
            'fsdp: 64, mbs: 2, gbs: 64,\n     cells: {step_time: "6.999"',
            "maxtext_llama2_70b-24.11-h100-bf16-64: found gbs 64, expected 128",
            id="a batch that is not one micro-batch for each GPU",
        ),
        pytest.param(
            "grok1/24.11",
            'cells: {step_time: "24.03", tokens_per_second: "174544", mfu: "45.4%", days_to_1t: "NA"}',
            'cells: {step_time: "24.03", tokens_per_second: "174544", mfu: "45.4%", days_to_1t: "66.31"}',
            "found days_to_1t 66.31, expected none",
            id="days to train of a proxy",
        ),
    ],
)
def test_lint_finds_an_edited_value_in_a_shipped_file(
    lint_edited: Edit, name: str, old: str, new: str, finding: str
) -> None:
    findings = lint_edited(name, old, new).findings
    assert any(finding in text for text in findings), findings


def test_lint_finds_a_step_time_drifted_above_its_budget_without_a_reason(
    tmp_path: Path,
) -> None:
    """Recording refuses such a value, so the file was edited."""
    (baseline, *_) = read_file(
        find_shipped_baselines() / "grok1/25.05.yaml"
    ).recipe.baselines
    crept = Recording(
        "2025-11-20",
        1,
        7.8,
        7.8,
        0.0,
        (7.8,),
        (),
        earlier=(AcceptedValue("2025-01-20", 7.3),),
    )
    findings = []
    for reason in ("", "driver 570"):
        ((path, _),) = write_recorded(
            tmp_path, [(baseline, replace(crept, reason=reason))]
        )
        findings.append(lint_file(read_file(path)).findings)
    assert findings[1] == ()
    assert (
        "7.800 s is +6.8 % from 7.300 s, accepted on 2025-01-20, expected at most 5 %, or a reason"
        in findings[0][0]
    )


def test_lint_finds_a_drift_reason_without_an_earlier_accepted_step_time(
    tmp_path: Path,
) -> None:
    (baseline, *_) = read_file(
        find_shipped_baselines() / "grok1/25.05.yaml"
    ).recipe.baselines
    moved = Recording("2025-11-20", 1, 7.8, 7.8, 0.0, (7.8,), (), reason="driver 570")
    ((path, _),) = write_recorded(tmp_path, [(baseline, moved)])
    (finding,) = lint_file(read_file(path)).findings
    assert "found the reason 'driver 570' and no earlier value" in finding


def test_lint_finding_names_file_and_line(lint_edited: Edit) -> None:
    report = lint_edited("grok1/25.05", 'mfu: "47.59%"', 'mfu: "47.95%"')
    text = report.path.read_text()
    line = text[: text.index('mfu: "47.95%"')].count("\n") + 1 - 2
    assert [finding.partition(": ")[0] for finding in report.findings] == [
        f"{report.path}:{line}"
    ]


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [
        (0.624967552, "62.47%", "62.50%"),
        (14.4155, "14.41", "14.42"),
        (34.0001, "34", "34"),
        (34.5, "34", "35"),
        (3.5, "3.40", "3.50"),
        (1145358.82, "572679", "1145359"),
    ],
)
def test_computed_cell_is_rounded_half_up_to_the_printed_digits(
    value: float, printed: str, expected: str
) -> None:
    assert round_as_printed(value, printed) == expected


# --- reasons of errata ----------------------------------------------------------------


def halve_batch(baseline: Baseline) -> Baseline:
    configuration = replace(
        baseline.configuration,
        global_batch_size=baseline.configuration.global_batch_size // 2,
    )
    return replace(baseline, configuration=configuration)


def remove_rounding(baseline: Baseline) -> Baseline:
    return change_architecture(
        baseline, formula=baseline.configuration.architecture.formula.partition(":")[0]
    )


def halve_fp8_peak(baseline: Baseline) -> Baseline:
    return (
        replace(baseline, peak_tflops=989.5)
        if baseline.key.dtype == "bf16"
        else baseline
    )


def use_sixteen_groups(baseline: Baseline) -> Baseline:
    return halve_fp8_peak(change_architecture(baseline, query_groups=16))


def change_architecture(baseline: Baseline, **sizes: int | str) -> Baseline:
    changed = replace(baseline.configuration.architecture, **sizes)
    return replace(
        baseline, configuration=replace(baseline.configuration, architecture=changed)
    )


REASONS = {
    "half of the batch": (halve_batch, 4),
    "before they were rounded": (remove_rounding, 2),
    "16 query groups": (use_sixteen_groups, 12),
    "half of the FP8 peak": (halve_fp8_peak, 11),
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REASONS)
def test_mistake_stated_by_an_erratum_reproduces_the_wrong_printed_cell(
    reason: str,
) -> None:
    change, expected = REASONS[reason]
    recipes = read_recipes(list_shipped_baselines())
    baselines = {
        baseline.key.id: baseline for recipe in recipes for baseline in recipe.baselines
    }
    errata = [
        erratum
        for recipe in recipes
        for erratum in recipe.errata
        if reason in erratum.reason and erratum.cell
    ]
    for erratum in errata:
        value = recompute_cell(change(baselines[erratum.configuration]), erratum.cell)
        assert value is not None
        assert round_as_printed(value, erratum.printed) == erratum.printed, erratum
    assert len(errata) == expected


@pytest.mark.slow
def test_cause_of_every_wrong_cell_but_one_is_reproduced_by_a_test() -> None:
    tested = sum(expected for _, expected in REASONS.values())
    errata = [
        erratum
        for name in ("grok1/24.11", "grok1/25.05", "llama3.1/25.04")
        for erratum in read_errata(name)
    ]
    assert tested + 1 == sum(
        erratum.cell in ("tokens_per_second", "mfu", "days_to_1t") for erratum in errata
    )


def read_errata(name: str) -> tuple[Erratum, ...]:
    return read_recipe(find_shipped_baselines() / f"{name}.yaml").errata


@pytest.mark.slow
def test_recordings_of_shipped_configurations_pass(tmp_path: Path) -> None:
    """The wrong cells of a document and their errata stay in its file: a recording
    states what ran."""
    recipes = read_recipes(list_shipped_baselines())
    published = [baseline for recipe in recipes for baseline in recipe.baselines]
    recording = Recording("2025-11-20", 1, 7.8, 7.8, 0.0, (7.8,), ())
    write_recorded(tmp_path, [(baseline, recording) for baseline in published], recipes)
    paths = sorted(tmp_path.rglob("*.yaml"))
    assert len(paths) == 5
    assert [
        finding for path in paths for finding in lint_file(read_file(path)).findings
    ] == []
    (grok,) = (
        base
        for base in read_file(paths[0]).recipe.baselines
        if base.key.id == "grok1_314b-24.11-h100-bf16-8"
    )
    assert grok.configuration.gradient_accumulation == 512


# --- contradictions of the step time --------------------------------------------------


def find_edited_contradiction(
    text: str, edits: dict[str, str], tmp_path: Path
) -> Contradiction | None:
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "own.yaml"
    path.write_text(text)
    (baseline,) = read_file(path).recipe.baselines
    return find_contradiction(baseline, read_file(path).recipe.errata)


CUSTOM = """\
schema: 1
kind: published
recipe: mine
release: "25.05"
title: mine
framework: Megatron-LM
names: [mine]
dialect: megatron
source: {document: our page}
timed: mean
window: {statistic: mean, first: 11, last: 44}
steps: 50
peak_tflops:
  h100: {bf16: "989"}
models:
  8b: {formula: none}
configurations:
  - {size: 8b, gpu: h100, dtype: bf16, gpus: 64, sequence_length: 4096, layers: 32, gbs: 256,
     cells: {step_time: "2.000", tokens_per_second: "524288", days_to_1t: "22.08"}}
"""

ERRATUM = """\
errata:
  - where: the table
    cell: tokens_per_second
    cells: {mine_8b-25.05-h100-bf16-64: {printed: "624288", corrected: "524288"}}
    reason: a typing error
"""


@pytest.mark.parametrize(
    ("edits", "cell", "seconds"),
    [
        pytest.param({}, None, 0, id="unchanged"),
        pytest.param({'"2.000"': '"2.170"'}, "tokens_per_second", 2.0, id="step time"),
        pytest.param({"524288": "624288"}, "tokens_per_second", 1.68, id="tokens"),
        pytest.param({"22.08": "20.28"}, "days_to_1t", 1.837, id="days"),
        pytest.param(
            {"gbs: 256": "gbs: 265", ', days_to_1t: "22.08"': ""},
            "tokens_per_second",
            2.07,
            id="batch of a longer time",
        ),
        pytest.param(
            {"gbs: 256": "gbs: 226", ', days_to_1t: "22.08"': ""},
            "tokens_per_second",
            1.766,
            id="batch",
        ),
        pytest.param(
            {"524288": "424288"}, "tokens_per_second", 2.471, id="longer by tokens"
        ),
        pytest.param(
            {"524288": "424288", "22.08": "20.28"},
            "days_to_1t",
            1.837,
            id="shorter time counts",
        ),
        pytest.param(
            {'"2.000"': '"2"', "524288": "524000", "22.08": "22.1"},
            None,
            0,
            id="digits",
        ),
        pytest.param(
            {"524288": "624288", "models:": f"{ERRATUM}models:"}, None, 0, id="erratum"
        ),
    ],
)
def test_lint_finds_a_cell_that_contradicts_its_step_time(
    edits: dict[str, str], cell: str | None, seconds: float, tmp_path: Path
) -> None:
    contradiction = find_edited_contradiction(CUSTOM, edits, tmp_path)
    assert (contradiction.cell if contradiction else None) == cell
    assert contradiction is None or contradiction.seconds == pytest.approx(
        seconds, rel=1e-3
    )


def test_shipped_files_contradict_themselves_only_in_errata() -> None:
    recipes = read_recipes([*list_shipped_baselines(), find_shipped_tables()])
    baselines = [
        (baseline, recipe.errata) for recipe in recipes for baseline in recipe.baselines
    ]
    assert [
        base.key.id for base, errata in baselines if find_contradiction(base, errata)
    ] == []
    unlisted = [(base, find_contradiction(base, ())) for base, _ in baselines]
    excesses = [
        base.step_seconds / contradiction.seconds - 1
        for base, contradiction in unlisted
        if contradiction is not None
    ]
    assert 0 < max(excesses) < 0.01 < -min(excesses)  # half of the batch
