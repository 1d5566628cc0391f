"""Valid files become records; invalid ones are reported with line, found and
expected."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.baseline import schema
from pytest_llmbench.baseline.read import (
    find_baseline_files,
    read_file,
    read_recipe,
    read_recipes,
)
from pytest_llmbench.baseline.schema import FORMULA_NEEDS
from pytest_llmbench.core.baseline_records import Tolerance, Window
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.core.flops import FORMULAS


def read_error(path: Path, text: str | bytes) -> str:
    """Write a file and return the message of its refusal, with `FILE` as its path."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(BaselineError) as caught:
        read_recipe(path)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    return message.replace(str(path), "FILE")


def test_valid_file_is_read_into_records(valid_file: Path) -> None:
    recipe = read_recipe(valid_file)
    first, second = recipe.baselines
    assert (recipe.name, recipe.release, recipe.kind, recipe.names) == (
        "mine",
        "25.05",
        "published",
        ("mine",),
    )
    assert first.key.id == "mine_8b-25.05-h100-bf16-8"
    assert first.cells == (
        ("step_time", "12.27"),
        ("tokens_per_second", "85459"),
        ("mfu", "62.55%"),
    )
    assert second.cells == (("step_time", "12.30"),), (
        "the digits are kept as they are printed"
    )
    assert second.step_seconds == 12.3
    assert first.window == Window(11, 44, "mean")
    assert first.peak_tflops == 989
    assert (first.source.file, first.source.line) == (str(valid_file), 19)
    assert first.configuration.architecture.formula == "llama"
    assert not first.configuration.proxy


FILE = "baseline file"


@pytest.mark.parametrize(
    ("text", "tolerances"),
    [
        ("5%", (Tolerance(0.05, source=FILE),)),
        ("0.025", (Tolerance(0.025, source=FILE),)),
        (
            '"perf:5%"',
            (Tolerance(0.05, "performance", larger_is_better=True, source=FILE),),
        ),
        (
            "5%, mfu:3%",
            (
                Tolerance(0.05, source=FILE),
                Tolerance(0.03, "mfu", larger_is_better=True, source=FILE),
            ),
        ),
    ],
)
def test_tolerance_in_a_baseline_file_has_the_syntax_of_the_tolerance_option(
    valid_file: Path, valid: str, text: str, tolerances: tuple[Tolerance, ...]
) -> None:
    valid_file.write_text(valid.replace("steps: 50", f"steps: 50\ntolerance: {text}"))
    assert [baseline.tolerances for baseline in read_recipe(valid_file).baselines] == [
        tolerances,
        tolerances,
    ]
    assert read_file(valid_file).tolerances == tolerances


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("3%", ["3 %", "2 % of mfu (+2.04 % time)"]),
        ("perf:8%", ["8 % of performance (+8.7 % time)", "2 % of mfu (+2.04 % time)"]),
        ("mfu:4%", ["5 %", "4 % of mfu (+4.17 % time)"]),
        (
            "days_to_1t_tokens:4%",
            ["5 %", "4 % of days_to_1t_tokens", "2 % of mfu (+2.04 % time)"],
        ),
    ],
)
def test_configuration_tolerance_overrides_the_file_per_metric(
    valid_file: Path, valid: str, row: str, expected: list[str]
) -> None:
    text = valid.replace("steps: 50", "steps: 50\ntolerance: 5%, mfu:2%")
    valid_file.write_text(text.replace("gpus: 8, ", f'gpus: 8, tolerance: "{row}", '))
    first, second = read_recipe(valid_file).baselines
    assert list(map(str, first.tolerances)) == expected
    assert list(map(str, second.tolerances)) == ["5 %", "2 % of mfu (+2.04 % time)"]


def test_configuration_budget_overrides_the_file_per_metric(
    valid_file: Path, valid: str
) -> None:
    """`place` contains the line of the deciding key: grep -n checkpoint_ mine.yaml."""
    budgets = (
        "budgets:\n  checkpoint_save_seconds: 60\n  checkpoint_load_seconds: 120\n"
    )
    text = valid.replace("steps: 50\n", f"steps: 50\n{budgets}")
    valid_file.write_text(
        text.replace("gpus: 8, ", "gpus: 8, budgets: {checkpoint_save_seconds: 7.5}, ")
    )
    first, second = read_recipe(valid_file).baselines
    assert [
        (budget.metric, budget.largest, budget.place) for budget in first.budgets
    ] == [
        ("checkpoint_load_seconds", 120, "mine.yaml:15"),
        ("checkpoint_save_seconds", 7.5, "mine.yaml:22"),
    ]
    assert [(budget.largest, budget.place) for budget in second.budgets] == [
        (120, "mine.yaml:15"),
        (60, "mine.yaml:14"),
    ]
    assert read_file(valid_file).budgets == second.budgets


def test_baseline_has_no_budgets_by_default(valid_file: Path) -> None:
    assert [baseline.budgets for baseline in read_recipe(valid_file).baselines] == [
        (),
        (),
    ]


def test_baseline_has_no_tolerance_by_default(valid_file: Path) -> None:
    assert read_recipe(valid_file).baselines[0].tolerances == ()


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        ("12.27", "12.30", 0.01),
        ("12.3", "12.275", 0.001),
        ("12", "13", 1.0),
        ("12", "12.3", 0.1),
    ],
)
def test_step_time_resolution_of_a_table_follows_its_cell_with_most_decimals(
    valid_file: Path, valid: str, first: str, second: str, unit: float
) -> None:
    valid_file.write_text(
        valid.replace('"12.27"', f'"{first}"').replace('"12.30"', f'"{second}"')
    )
    assert [
        baseline.resolution_seconds for baseline in read_recipe(valid_file).baselines
    ] == [unit, unit]


def test_step_time_resolution_is_determined_per_table(
    valid_file: Path, valid: str
) -> None:
    valid_file.write_text(
        valid.replace("gpus: 16, ", "gpus: 16, table: Other, ").replace(
            '"12.30"', '"12.3"'
        )
    )
    assert [
        baseline.resolution_seconds for baseline in read_recipe(valid_file).baselines
    ] == [0.01, 0.1]


def test_proxy_model_flops_are_computed_by_formula_without_rounding(
    valid_file: Path, valid: str
) -> None:
    text = valid.replace("formula: llama", "formula: llama:3").replace(
        "gpus: 8, ", "gpus: 8, proxy: true, "
    )
    valid_file.write_text(text)
    proxy, full = read_recipe(valid_file).baselines
    assert (
        proxy.configuration.architecture.formula,
        full.configuration.architecture.formula,
    ) == ("llama", "llama:3")


FIRST_ROW = "gpu: h100, dtype: bf16, gpus: 8, "

BAD_VALUES = {
    "unknown key": (
        "steps: 50",
        "steps: 50\ntolerence: 5%",
        "13: found the unknown key 'tolerence'",
        "did you mean 'tolerance'?",
    ),
    "unknown key of a configuration": (
        "gpus: 8, ",
        "gpus: 8, gsb: 128, ",
        "19: found the unknown key 'gsb'",
        "'gbs'",
    ),
    "unknown key of a cell": (
        "mfu:",
        "mfuu:",
        "20: found the unknown key 'mfuu'",
        "'mfu'",
    ),
    "merge key": (
        "steps: 50",
        "steps: 50\n<<: {steps: 5}",
        "13: found the unknown key",
        "",
    ),
    "key twice": (
        "steps: 50",
        "steps: 50\nsteps: 500",
        "13: found the key 'steps' again (first in line 12)",
        "expected it once",
    ),
    "missing key": ("steps: 50\n", "", "1: found no 'steps'", "expected that key"),
    "missing cell": (
        'step_time: "12.27", ',
        "",
        "20: found cells that determine no step time",
        "expected step_time, ",
    ),
    "step time without quotes": (
        '"12.27"',
        "12.27",
        "20: found 12.27 without quotes",
        'write "12.27" in quotes to keep its digits',
    ),
    "release without quotes": (
        '"25.05"',
        "25.10",
        "4: found 25.10 without quotes",
        'write "25.10" in quotes',
    ),
    "a truth value for a name": (
        "title: My model",
        "title: no",
        "5: found no without quotes",
        'write "no" in quotes',
    ),
    "step time that is no number": (
        '"12.27"',
        '"12.27 s"',
        "20: found '12.27 s'",
        "expected a printed step time",
    ),
    "step time of zero": ('"12.27"', '"0.00"', "20: found '0.00'", "printed step time"),
    "negative step time": (
        '"12.27"',
        '"-12.27"',
        "20: found '-12.27'",
        "printed step time",
    ),
    "step time NA": ('"12.27"', "NA", "20: found 'NA'", "printed step time"),
    "step time of years": (
        '"12.27"',
        '"99999999"',
        "20: found '99999999'",
        "at most a day",
    ),
    "step time NaN": ('"12.27"', ".nan", "20: found .nan without quotes", ""),
    "step time in Arabic digits": ('"12.27"', '"١٢"', "20: found", "printed step time"),
    "MFU above 100 %": ('"62.55%"', '"162.55%"', "20: found '162.55%'", "at most 100%"),
    "MFU without percent": ('"62.55%"', '"62.55"', "20: found '62.55'", "47.59%"),
    "text for a number": (
        "gpus: 8, ",
        'gpus: "8", ',
        "19: found '8'",
        "expected a whole number from 0 to 10000000",
    ),
    "zero GPUs": (
        "gpus: 8, ",
        "gpus: 0, ",
        "19: found 0 GPUs",
        "expected their number",
    ),
    "negative GPUs": ("gpus: 8, ", "gpus: -8, ", "19: found -8", "from 0"),
    "half a GPU": ("gpus: 8, ", "gpus: 8.5, ", "19: found 8.5", "a whole number"),
    "absurdly many GPUs": (
        "gpus: 8, ",
        f"gpus: {'9' * 400}, ",
        "19: found 999",
        "to 10000000",
    ),
    "octal": ("gpus: 8, ", "gpus: 010, ", "19: found 010", "a whole number"),
    "a list for a number": (
        "gpus: 8, ",
        "gpus: [8], ",
        "19: found a list",
        "a whole number",
    ),
    "a number for a list": (
        "names: [mine]",
        "names: mine",
        "8: found 'mine'",
        "expected a list",
    ),
    "an empty list": (
        "names: [mine]",
        "names: []",
        "8: found a list",
        "expected a list with at least one entry",
    ),
    "nothing": ("title: My model", "title:", "5: found nothing", "expected text"),
    "a text for a mapping": (
        '{bf16: "989"}',
        "bf16",
        "14: found 'bf16'",
        "expected a mapping",
    ),
    "infinite peak": ('"989"', '"inf"', "14: found 'inf'", "a peak in TFLOP/s"),
    "zero peak": ('"989"', '"0"', "14: found '0'", "a peak in TFLOP/s"),
    "the peak of PCIe cards": (
        '"989"',
        '"756"',
        "14: found a peak of 756 of h100",
        "expected 989: 756 is the peak of h100pcie",
    ),
    "negative factor": (
        "steps: 50",
        "steps: 50\nlogged_tflops_factor: -1",
        "13: found -1",
        "a number from 0.5 to 2",
    ),
    "infinite factor": (
        "steps: 50",
        "steps: 50\nlogged_tflops_factor: .inf",
        "13: found .inf",
        "a number from 0.5 to 2",
    ),
    "another truth value": (
        "gpus: 8, ",
        "gpus: 8, proxy: yes, ",
        "19: found yes",
        "expected true or false",
    ),
    "tolerance of 500 %": (
        "steps: 50",
        "steps: 50\ntolerance: 5",
        "13: found '5', that is 500 %",
        "write 5% for 5 percent",
    ),
    "budget of an unknown metric": (
        "steps: 50",
        "steps: 50\nbudgets: {checkpoint_save_second: 60}",
        "13: found the unknown key 'checkpoint_save_second'",
        "did you mean 'checkpoint_save_seconds'?",
    ),
    "budget of a metric that the step time decides": (
        "steps: 50",
        "steps: 50\nbudgets: {step_time_seconds: 60}",
        "13: found the unknown key 'step_time_seconds'",
        "expected checkpoint_load_seconds, checkpoint_save_dispatch_seconds, checkpoint_save_seconds",
    ),
    "budget of zero": (
        "steps: 50",
        "steps: 50\nbudgets: {checkpoint_save_seconds: 0}",
        "13: found 0",
        "expected a number from 0.001 to 1000000",
    ),
    "budget below zero": (
        "gpus: 8, ",
        "gpus: 8, budgets: {checkpoint_save_seconds: -60}, ",
        "19: found -60",
        "expected a number from 0.001",
    ),
    "budget without a number": (
        "steps: 50",
        "steps: 50\nbudgets: {checkpoint_save_seconds: 60 s}",
        "13: found '60 s'",
        "expected a number from 0.001",
    ),
    "budgets without metrics": (
        "steps: 50",
        "steps: 50\nbudgets: 60",
        "13: found 60",
        "expected a mapping of keys",
    ),
    "tolerance of 51 %": (
        "steps: 50",
        "steps: 50\ntolerance: 51%",
        "13: found '51%'",
        "at most 50 %",
    ),
    "tolerance below zero": (
        "steps: 50",
        "steps: 50\ntolerance: -5%",
        "13: found '-5%'",
        "expected a tolerance",
    ),
    "tolerance as a list": (
        "steps: 50",
        "steps: 50\ntolerance: [5%]",
        "13: found a list",
        "expected a single value",
    ),
    "tolerance of an unknown metric": (
        "steps: 50",
        "steps: 50\ntolerance: mfuu:5%",
        "13: found 'mfuu' before the colon",
        "did you mean 'mfu'?",
    ),
    "tolerance of a metric that a baseline does not expect": (
        "gpus: 8, ",
        "gpus: 8, tolerance: peak_memory_bytes:5%, ",
        "19: found peak_memory_bytes before the colon",
        "expected one of time, perf",
    ),
    "tolerance of a configuration without quotes": (
        "gpus: 8, ",
        "gpus: 8, tolerance: 5%, mfu:3%, ",
        "19: found the unknown key 'mfu:3%'",
        "",
    ),
    "tolerance twice": (
        "steps: 50",
        "steps: 50\ntolerance: 5%, perf:8%",
        "13: found 5 % and 8 % of performance",
        "expected each metric once",
    ),
    "unknown dialect": ("nemo2", "nemo3", "7: found 'nemo3'", "did you mean 'nemo2'?"),
    "unknown kind": (
        "kind: published",
        "kind: publshed",
        "2: found 'publshed'",
        "did you mean 'published'?",
    ),
    "unknown statistic": (
        "statistic: mean",
        "statistic: median",
        "11: found 'median'",
        "expected mean",
    ),
    "unknown formula": (
        "formula: llama",
        "formula: lama",
        "16: found 'lama'",
        "grok or llama or nemotron",
    ),
    "window backwards": (
        "first: 11, last: 44",
        "first: 44, last: 11",
        "11: found a window from step 44 to 11",
        "first <= last",
    ),
    "window beyond the run": (
        "last: 44",
        "last: 50",
        "11: found a window from step 11 to 50",
        "within 0 to 49",
    ),
    "negative window": (
        "first: 11",
        "first: -1",
        "11: found -1",
        "a whole number from 0",
    ),
    "size without model": (
        f"size: 8b, {FIRST_ROW}",
        f"size: 80b, {FIRST_ROW}",
        "19: found size '80b'",
        "did you mean '8b'?",
    ),
    "model without configuration": (
        "models:\n",
        "models:\n  9b: {formula: nemotron, hidden_size: 1, vocabulary_size: 1}\n",
        "16: found model '9b' that no configuration uses",
        "",
    ),
    "GPU without peak": (
        "h100, dtype: bf16, gpus: 8,",
        "h200, dtype: bf16, gpus: 8,",
        "19: found gpu 'h200'",
        "did you mean 'h100'?",
    ),
    "precision without peak": (
        "dtype: bf16, gpus: 8,",
        "dtype: fp8, gpus: 8,",
        "19: found dtype 'fp8'",
        "peak_tflops of h100: bf16",
    ),
    "GPU in capitals": (
        "gpu: h100, dtype: bf16, gpus: 8,",
        "gpu: H100, dtype: bf16, gpus: 8,",
        "19: found 'H100'",
        "lower-case",
    ),
    "a path for a name": (
        "recipe: mine",
        "recipe: ../mine",
        "3: found '../mine'",
        "a name of lower-case letters",
    ),
    "formula without its size": (
        ", ffn_size: 14336",
        "",
        "16: found no 'ffn_size' of 8b",
        "formula llama",
    ),
    "configuration twice": (
        "gpus: 16, ",
        "gpus: 8, ",
        "21: found mine_8b-25.05-h100-bf16-8 again (first in line 19)",
        "expected it once",
    ),
    "tab": ("\n  h100:", "\n\th100:", "14: found a tab", "expected spaces"),
    "syntax error": (
        "{statistic: mean,",
        "{statistic: mean",
        "11: found a syntax error",
        "expected YAML",
    ),
    "unclosed": (
        'cells: {step_time: "12.30"}}',
        'cells: {step_time: "12.30"',
        "found a syntax error",
        "expected YAML",
    ),
    "anchor": (
        "steps: 50",
        "steps: &n 50",
        "12: found the anchor &n",
        "expected no anchors or aliases",
    ),
    "alias": (
        "steps: 50",
        "steps: *n",
        "12: found the alias *n",
        "expected no anchors or aliases",
    ),
    "tag": (
        "steps: 50",
        "steps: !!python/name:os.system 50",
        "12: found the tag",
        "expected no tags",
    ),
    "two documents": (
        "schema: 1",
        "---\nschema: 1\n---\nschema: 1",
        "3: found a second document",
        "expected one document",
    ),
    "wrong schema": (
        "schema: 1",
        "schema: 2",
        "1: found schema '2'",
        "expected schema: 1, the only version that this release reads",
    ),
    "no schema": ("schema: 1\n", "", "1: found no 'schema'", "expected schema: 1"),
    "a list in place of a key": (
        "steps: 50",
        "? [steps]\n: 50",
        "12: found the unknown key a list",
        "",
    ),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_invalid_baseline_value_is_reported_with_its_line(
    valid_file: Path, valid: str, name: str
) -> None:
    old, new, *expected = BAD_VALUES[name]
    assert old in valid
    message = read_error(valid_file, valid.replace(old, new, 1))
    assert f"FILE:{expected[0]}" in message or expected[0] in message, message
    assert expected[1] in message, message


def test_step_time_is_not_computed_from_throughput_at_an_unknown_gpu_count(
    valid_file: Path, valid: str
) -> None:
    text = valid.replace("gpus: 8", "gpus: 0", 1).replace(
        'step_time: "12.27", tokens_per_second:',
        'tokens_per_second_per_gpu: "100", tokens_per_second:',
    )
    message = read_error(valid_file, text)
    assert "20: found cells that determine no step time" in message


CORRECTION = "{printed: a, corrected: b}"
OF_FIRST = f"{{where: x, reason: y, cell: mfu, cells: {{mine_8b-25.05-h100-bf16-8: {CORRECTION}}}}}"


@pytest.mark.parametrize(
    ("errata", "message"),
    [
        (
            "- {where: x, reason: y}",
            "found neither of these pairs, expected either cell and cells, or printed and corrected",
        ),
        ("- {where: x, reason: y, printed: a}", "found printed, expected either"),
        (
            "- {where: x, reason: y, printed: a, corrected: b, cell: mfu}",
            "found cell and corrected and printed",
        ),
        (
            f"- {OF_FIRST.replace('16-8', '16-9')}",
            "did you mean 'mine_8b-25.05-h100-bf16-",
        ),
        (
            "- {where: x, reason: y, cell: muf, cells: {}}",
            "found 'muf', expected tokens_per_second or mfu",
        ),
        (
            f"- {OF_FIRST}\n  - {OF_FIRST}",
            "found mfu of mine_8b-25.05-h100-bf16-8 again, expected one erratum",
        ),
    ],
)
def test_invalid_erratum_is_reported(
    valid_file: Path, valid: str, errata: str, message: str
) -> None:
    assert message in read_error(valid_file, f"{valid}errata:\n  {errata}\n")


@pytest.mark.parametrize(
    ("kind", "command", "message"),
    [
        (
            "script",
            "{command: x}",
            "found kind 'script', expected a name under commands: sbatch",
        ),
        (
            "sbach",
            "{command: x}",
            "found kind 'sbach', expected a name under commands: sbatch (did you mean",
        ),
        (
            "sbatch",
            "{command: x, via: slurm}",
            "found 'slurm', expected sbatch or script or llmb-run or local",
        ),
        (
            "sbatch",
            "{command: x, job_id: 'job ([0-9]+)'}",
            "expected a regular expression with the group job",
        ),
        (
            "sbatch",
            "{command: x, job_id: '(?P<job>'}",
            "expected a regular expression with the group job",
        ),
        ("sbatch", '{command: "sbatch -N {node}"}', "placeholders are among {account}"),
        ("sbatch", '{command: "sbatch {"}', "placeholders are among {account}"),
        ("sbatch", "{comand: x}", "did you mean 'command'?"),
        (
            "sbatch",
            "{command: x, fixed: {1A: x}}",
            "expected the name of an environment variable",
        ),
    ],
)
def test_invalid_launch_mapping_is_reported(
    valid_file: Path, valid: str, kind: str, command: str, message: str
) -> None:
    launch = (
        f"{{kind: {kind}, commands: {{sbatch: {command}}}, gpus_per_node: {{h100: 8}}}}"
    )
    assert message in read_error(valid_file, f"{valid}launch: {launch}\n")


LAUNCH = "kind: sbatch, commands: {sbatch: {command: x}}, gpus_per_node: {h100: 8}"


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        (
            "kind: mine, commands: {mine: {command: x}}, gpus_per_node: {}",
            "found no 'via' in the command 'mine'",
        ),
        (
            f"{LAUNCH}, profiling: {{ENABLE_PROFILE: 'true'}}",
            "the unknown key 'ENABLE_PROFILE', expected",
        ),
        (
            f"{LAUNCH}, profiling: {{enable: {{A: b}}, strat: X}}",
            "did you mean 'start'?",
        ),
        (
            f"{LAUNCH}, profiling: {{enable: {{A: b}}, start: a-b}}",
            "expected the name of an environment variable",
        ),
        (
            f"{LAUNCH}, profiling: {{enable: {{A: b}}, default_start: 25, default_stop: 20}}",
            "found default steps 25 to 20, expected start < stop",
        ),
        (
            f"{LAUNCH}, checkpoint: {{save: {{}}, load: {{}}, disk_gb: {{8b: ~105 GB}}}}",
            "expected a whole number",
        ),
        (
            f"{LAUNCH}, checkpoint: {{save: {{}}, load: {{}}, disk_gb: {{80b: 105}}}}",
            "(did you mean '8b'?)",
        ),
        (
            f"{LAUNCH}, checkpoint: {{save: {{}}, load: {{}}, save_gpus: {{8b: [8, 4]}}}}",
            "the smallest number first",
        ),
        (
            f"{LAUNCH}, checkpoint: {{save: {{}}, load: {{}}, save_gpus: {{8b: [1, 2, 3]}}}}",
            "at most 2 entries",
        ),
    ],
)
def test_inconsistent_launch_facts_are_reported(
    valid_file: Path, valid: str, launch: str, message: str
) -> None:
    assert message in read_error(valid_file, f"{valid}launch: {{{launch}}}\n")


def test_launch_command_of_unknown_name_is_valid_if_its_launcher_is_stated(
    valid_file: Path, valid: str
) -> None:
    launch = r"{kind: mine, commands: {mine: {command: x, via: script, job_id: 'id=(?P<job>\d+)'}}, gpus_per_node: {}}"
    valid_file.write_text(f"{valid}launch: {launch}\n")
    commands: Any = dict(read_recipe(valid_file).launch)["commands"]
    assert dict(dict(commands)["mine"])["via"] == "script"


UNTIMED = [
    ("kind: published", "kind: recipe"),
    ("timed: last_step", "timed: mean"),
    (
        ',\n     cells: {step_time: "12.27", tokens_per_second: "85459", mfu: "62.55%"}',
        "",
    ),
    (',\n     cells: {step_time: "12.30"}', ""),
]


@pytest.fixture
def untimed(valid: str) -> str:
    """Text of the valid file as a recipe without any time."""
    for old, new in UNTIMED:
        valid = valid.replace(old, new)
    return valid


def test_untimed_recipe_has_no_step_time(valid_file: Path, untimed: str) -> None:
    valid_file.write_text(untimed)
    first = read_recipe(valid_file).baselines[0]
    assert (first.kind, first.cells, first.resolution_seconds) == ("recipe", (), 0.0)
    assert math.isnan(first.step_seconds)


def test_untimed_recipe_has_a_default_window(valid_file: Path, untimed: str) -> None:
    for line in (
        "timed: mean\n",
        "window: {statistic: mean, first: 11, last: 44}\n",
        "steps: 50\n",
    ):
        untimed = untimed.replace(line, "")
    valid_file.write_text(untimed)
    default = read_recipe(valid_file).baselines[0]
    assert (default.window, default.steps, default.timed) == (
        Window(11, 44),
        50,
        "mean",
    )
    assert (
        "found a window from step 11 to 44, expected it within 0 to 19"
        in read_error(valid_file, f"{untimed}steps: 20")
    )
    valid_file.write_text(
        f"{untimed}steps: 20\nwindow: {{statistic: mean, first: 5, last: 18}}\n"
    )
    assert read_recipe(valid_file).baselines[0].window == Window(5, 18)


def test_cells_in_an_untimed_recipe_are_refused(valid_file: Path, valid: str) -> None:
    text = valid.replace("kind: published", "kind: recipe")
    assert "found the unknown key 'cells', expected" in read_error(valid_file, text)


def test_unknown_peak_is_nan(valid_file: Path, valid: str) -> None:
    valid_file.write_text(valid.replace('bf16: "989"', 'bf16: "NA"'))
    assert math.isnan(read_recipe(valid_file).baselines[0].peak_tflops)
    assert 'expected a peak in TFLOP/s, or "NA"' in read_error(
        valid_file, valid.replace('"989"', '"none"')
    )


def test_all_problems_are_listed_by_line(valid_file: Path, valid: str) -> None:
    text = (
        valid.replace("steps: 50", "steps: no")
        .replace("nemo2", "nemo9")
        .replace("gpus: 16", "gpus: x")
    )
    lines = read_error(valid_file, text).splitlines()
    assert [line.split(":")[1] for line in lines] == ["7", "12", "21"]


def test_more_than_ten_problems_are_counted(valid_file: Path, valid: str) -> None:
    unknown = "".join(f"key{number}: 1\n" for number in range(14))
    assert read_error(valid_file, valid + unknown).splitlines()[10:] == [
        "and 4 more problems in this file"
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "FILE:1: found an empty file, expected a mapping of keys to values"),
        (b"# nothing\n", "FILE:1: found an empty file"),
        (b"- schema: 1\n", "FILE:1: found a sequence, expected a mapping"),
        (b"schema: 1\n\xff\xfe\n", "FILE:2: found byte 0xff, expected UTF-8 text"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "FILE: found"),
        (b"schema: 1\nkind: \x00\n", "FILE: found"),
        (b"a: " * 50_000, "found a syntax error"),
        (b"schema: " + b"[" * 100, "FILE:1: found more than 8 levels of nesting"),
        (
            b"schema: " + b"[" * 100_000,
            "nesting",
        ),  # by PyYAML 6.0.4 itself, which counts a thousand before we see one
        (
            b"".join(b" " * n + b"a:\n" for n in range(300)),
            "FILE:9: found more than 8 levels",
        ),
        (b"x" * (5 << 20), "FILE: found more than 4 MiB"),
    ],
    ids=[
        "empty",
        "comment",
        "list",
        "latin",
        "binary",
        "nul",
        "torn",
        "brackets",
        "a thousand brackets",
        "nested",
        "huge",
    ],
)
def test_non_baseline_content_is_refused(
    valid_file: Path, content: bytes, message: str
) -> None:
    assert message in read_error(valid_file, content)


def test_billion_laughs_are_refused_before_expansion(valid_file: Path) -> None:
    lines = ["schema: 1", "a0: &a0 [lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 40)]
    message = read_error(valid_file, "\n".join(lines))
    assert "FILE:2: found the anchor &a0" in message


@pytest.mark.slow
def test_file_reads_the_same_without_libyaml(
    valid_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = read_recipe(valid_file)
    monkeypatch.delattr("yaml.CSafeLoader")
    assert read_recipe(valid_file) == expected
    assert "found more than 8 levels" in read_error(valid_file, "schema: " + "[" * 3000)


def test_byte_order_mark_and_windows_line_ends_are_read(
    valid_file: Path, valid: str
) -> None:
    valid_file.write_bytes(b"\xef\xbb\xbf" + valid.replace("\n", "\r\n").encode())
    assert len(read_recipe(valid_file).baselines) == 2


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BaselineError,
        match=r"none\.yaml: No such file or directory, expected a readable baseline file",
    ):
        read_recipe(tmp_path / "none.yaml")


def test_named_pipe_is_refused_without_waiting(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(BaselineError, match="not a regular file"):
        read_recipes([tmp_path])


def test_folder_named_like_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(
        BaselineError,
        match="not a regular file, expected a baseline file",
    ):
        read_recipe(tmp_path / "folder.yaml")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file_is_refused(valid_file: Path) -> None:
    valid_file.chmod(0)
    with pytest.raises(BaselineError, match="Permission denied"):
        read_recipe(valid_file)


# --- folders --------------------------------------------------------------------------


def test_all_yaml_files_in_a_folder_are_read(tmp_path: Path, valid: str) -> None:
    for name in ("b/c.yml", "a.yaml", "b/.hidden.yaml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            valid.replace("recipe: mine", f"recipe: {path.stem.strip('.')}")
        )
    (tmp_path / "notes.txt").write_text("no baseline")
    assert [recipe.name for recipe in read_recipes([tmp_path])] == ["a", "hidden", "c"]


def test_folder_given_twice_or_linked_is_read_once(valid_file: Path) -> None:
    (valid_file.parent / "again").symlink_to(
        valid_file.parent, target_is_directory=True
    )
    assert len(read_recipes([valid_file.parent, valid_file.parent])) == 1


def test_link_to_a_parent_folder_is_not_followed(valid_file: Path) -> None:
    inner = valid_file.parent / "inner"
    inner.mkdir()
    (inner / "own.yaml").write_bytes(valid_file.read_bytes())
    (inner / "up").symlink_to("..")
    assert find_baseline_files([inner]) == (inner / "own.yaml",)


def test_linked_folder_is_read(tmp_path: Path, valid_file: Path) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "link").symlink_to(
        valid_file.parent, target_is_directory=True
    )
    assert len(read_recipes([tmp_path / "entry"])) == 1


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_folder_without_baselines_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BaselineError, match=f"{name}: .*expected"):
        read_recipes([tmp_path / name])


def test_duplicate_key_names_both_files(valid_file: Path) -> None:
    other = valid_file.with_name("other.yaml")
    other.write_text(valid_file.read_text())
    with pytest.raises(BaselineError) as caught:
        read_recipes([valid_file.parent])
    assert (
        f"{other}:19: found a second published baseline of mine_8b-25.05-h100-bf16-8"
        in str(caught.value)
    )
    assert f"first at {valid_file}:19" in str(caught.value)


def test_schema_formulas_are_all_implemented() -> None:
    assert set(FORMULA_NEEDS) == set(FORMULAS)


def test_command_placeholders_are_unique() -> None:
    assert len(set(schema.PLACEHOLDERS)) == len(schema.PLACEHOLDERS)
