"""The shipped files contain every cell of the five documents.

They are found in a wheel as well as in a checkout.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict
from support.shipped_documents import DOCUMENTS, recipe, text_of

from pytest_llmbench.baseline import read
from pytest_llmbench.baseline.read import (
    find_shipped_baselines,
    find_shipped_tables,
    list_shipped_baselines,
    read_file,
    read_recipes,
)
from pytest_llmbench.core.baseline_records import Baseline, Window
from pytest_llmbench.core.errors import BaselineError

ROWS = {
    "Training step time": "step_time",
    "Throughput in tokens": "tokens_per_second",
    "Model flops utilization": "mfu",
    "Time to train 1T": "days_to_1t",
}
COLUMNS = {
    "SeqLen": "sequence_length",
    "Layers": "layers",
    "MBS": "mbs",
    "GBS": "gbs",
    "GA": "ga",
}


def split_row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def read_tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield every table of a document as (heading, rows)."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.fullmatch(r"\|?(:?-+:?\|)+(:?-+:?)?", line.strip()):
            rows = []
            for row in lines[number + 1 :]:
                if "|" not in row:
                    break
                rows.append(split_row(row))
            titles = [
                index for index, row in enumerate(rows) if set(row[0]) <= {"-", ":"}
            ]
            yield (
                split_row(lines[number - 1]),
                rows[: titles[0] - 1] if titles else rows,
            )


def read_cells(
    text: str,
) -> Iterator[tuple[tuple[str, str, str, int], tuple[tuple[str, str], ...]]]:
    """Yield (size, GPU, precision, GPUs) and the cells of each performance column."""
    for heading, rows in read_tables(text):
        if rows and rows[0][0].startswith("Training step time"):
            size = re.search(r"\b(\d+b)\b", heading[0])
            precision = re.search(r"BF16|FP8", heading[0])
            for get_column, title in enumerate(heading[1:], 1):
                gpus = re.search(r"(\d+)x? (H100|GB200) GPUs", title)
                assert size, heading
                assert precision, heading
                assert gpus, title
                cells = [
                    (key, row[get_column])
                    for row in rows
                    for start, key in ROWS.items()
                    if row[0].startswith(start)
                ]
                yield (
                    (size[1], gpus[2].lower(), precision[0].lower(), int(gpus[1])),
                    tuple(cells),
                )


@pytest.mark.parametrize(
    ("name", "configurations", "cells"),
    [
        ("grok1/24.11", 18, 63),
        ("maxtext_llama2/24.11", 12, 42),
        ("grok1/25.05", 8, 32),
        ("nemotron4/25.01", 10, 40),
        ("llama3.1/25.04", 34, 136),
    ],
)
def test_every_shipped_cell_equals_the_document_verbatim(
    name: str, configurations: int, cells: int
) -> None:
    """The cells of every performance table, read from the document again."""
    expected = dict(read_cells(text_of(name)))
    shipped_cells = {
        (key.size, key.gpu, key.dtype, key.gpus): baseline.cells
        for baseline in recipe(name).baselines
        for key in [baseline.key]
    }
    assert shipped_cells == expected
    assert (len(shipped_cells), sum(map(len, shipped_cells.values()))) == (
        configurations,
        cells,
    )


@pytest.mark.slow
def test_files_contain_82_configurations_with_313_cells() -> None:
    baselines = [
        baseline
        for recipe in read_recipes(list_shipped_baselines())
        for baseline in recipe.baselines
    ]
    assert (len(baselines), sum(len(baseline.cells) for baseline in baselines)) == (
        82,
        313,
    )
    assert len({baseline.key.id for baseline in baselines}) == 82


def get_column(baseline: Baseline, name: str) -> int | None:
    configuration = baseline.configuration
    values: dict[str, int | None] = {
        **asdict(configuration.parallelism),
        "sequence_length": configuration.architecture.sequence_length,
        "layers": configuration.architecture.layers,
        "mbs": configuration.micro_batch_size,
        "gbs": configuration.global_batch_size,
        "ga": configuration.gradient_accumulation,
    }
    return values[name]


def read_configuration_rows(text: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the rows of the configuration tables, with their GPU (Grok 1, 25.05)."""
    gpu = "h100"
    for heading, rows in read_tables(text):
        if "SeqLen" in heading:
            gpu = "gb200" if "ETP" in heading and rows[0][0] == "128" else "h100"
            for row in rows:
                yield dict(zip(heading, row, strict=True)), gpu


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rows"), [("grok1/24.11", 9), ("grok1/25.05", 4), ("llama3.1/25.04", 23)]
)
def test_configuration_tables_are_verbatim(name: str, rows: int) -> None:
    """Sequence length, layers, all groups, MBS, GBS and GA. NA is None, and rows apply
    to both precisions."""
    compared = 0
    for row, gpu in read_configuration_rows(text_of(name)):
        precisions = row.get("Precision", "BF16/FP8").lower().split("/")
        size, proxy = re.match(r"(\d+b)?(-Proxy)?", row.get("Size", "314b")).groups()  # type: ignore[union-attr]
        matching = [
            baseline
            for baseline in recipe(name).baselines
            if (baseline.key.size, baseline.key.gpu, baseline.key.gpus)
            == (size, gpu, int(row["GPUs"]))
            and baseline.key.dtype in precisions
        ]
        assert len(matching) == len(precisions)
        for baseline in matching:
            names = [
                title for title in row if title not in ("Size", "Precision", "GPUs")
            ]
            expected = {
                title: None if row[title] == "NA" else int(row[title])
                for title in names
            }
            assert {
                title: get_column(baseline, COLUMNS.get(title, title.lower()))
                for title in names
            } == expected
            assert baseline.configuration.proxy == (
                bool(proxy) or (name == "grok1/24.11" and baseline.key.gpus < 512)
            )
        compared += 1
    assert compared == rows


@pytest.mark.slow
def test_maxtext_table_titles_are_verbatim() -> None:
    for heading, rows in read_tables(text_of("maxtext_llama2/24.11")):
        if not rows[0][0].startswith("Training"):
            continue
        for title in heading[1:]:
            gpus, fsdp, batch = (
                int(number) for number in re.findall(r"(\d+)(?:x H100| |\))", title)
            )
            matching = [
                base
                for base in recipe("maxtext_llama2/24.11").baselines
                if base.key.gpus == gpus
            ]
            assert [get_column(base, "fsdp") for base in matching] == [fsdp, fsdp]
            assert [get_column(base, "gbs") for base in matching] == [batch, batch]
            assert [get_column(base, "mbs") for base in matching] == [2, 2]


def test_nemotron_table_titles_are_verbatim() -> None:
    for baseline in recipe("nemotron4/25.01").baselines:
        title = "TP=8, PP=8, MBS=1, GA=16, VP=12"
        assert title in baseline.source.table
        assert [
            get_column(baseline, name) for name in ("tp", "pp", "mbs", "ga", "vp")
        ] == [
            8,
            8,
            1,
            16,
            12,
        ]
        assert (
            f"{baseline.key.gpus}x H100 GPUs (GBS={get_column(baseline, 'gbs')})"
            in text_of("nemotron4/25.01")
        )


@pytest.mark.parametrize(
    ("name", "dialect", "layout", "timed"),
    [
        ("grok1/24.11", "nemo1", "results", "last_step"),
        ("maxtext_llama2/24.11", "maxtext", "results", "last_step"),
        ("grok1/25.05", "nemo2", "workloads", "mean"),
        ("nemotron4/25.01", "nemo1", "results", "last_step"),
        ("llama3.1/25.04", "nemo2", "experiments", "last_step"),
    ],
)
def test_shipped_recipe_has_the_expected_log_dialect_layout_and_statistic(
    name: str, dialect: str, layout: str, timed: str
) -> None:
    shipped = recipe(name)
    assert (shipped.dialect, shipped.layout, f"{shipped.name}/{shipped.release}") == (
        dialect,
        layout,
        name,
    )
    for baseline in shipped.baselines:
        assert (baseline.timed, baseline.window, baseline.steps) == (
            timed,
            Window(11, 44, "mean"),
            50,
        )
        assert baseline.peak_tflops == PEAKS[baseline.key.gpu, baseline.key.dtype]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *[
            (
                name,
                "we are using the last training step timing to obtain throughput value",
            )
            for name in DOCUMENTS
        ],
        (
            "grok1/25.05",
            "to analyze iterations 11-44 and calculate mean and standard deviation",
        ),
    ],
)
def test_timing_by_last_step_or_mean_matches_the_document(
    name: str, words: str
) -> None:
    timed = {baseline.timed for baseline in recipe(name).baselines}
    assert (words in text_of(name)) is (
        timed == {"last_step" if "last" in words else "mean"}
    )


PEAKS = {
    ("h100", "bf16"): 989,
    ("h100", "fp8"): 1979,
    ("gb200", "bf16"): 2450,
    ("gb200", "fp8"): 4900,
}


@pytest.mark.parametrize(
    ("name", "logged", "seconds", "sequences", "flops"),
    [
        ("grok1/25.05", 1192.94, 7.382, 512 / 256, 4.27e15),
        ("maxtext_llama2/24.11", 460.480, 7.908, 128 / 64, 1.82e15),
    ],
)
def test_logged_tflops_factor_matches_the_document(
    name: str, logged: float, seconds: float, sequences: float, flops: float
) -> None:
    factors = {baseline.logged_tflops_factor for baseline in recipe(name).baselines}
    assert factors == {round(logged * 1e12 * seconds / sequences / flops, 4)}
    assert f"{logged}" in text_of(name)
    assert f"{seconds}" in text_of(name)


@pytest.mark.parametrize("name", ["grok1/24.11", "nemotron4/25.01", "llama3.1/25.04"])
def test_recipe_without_logged_tflops_has_no_factor(name: str) -> None:
    assert {baseline.logged_tflops_factor for baseline in recipe(name).baselines} == {
        None
    }


@pytest.mark.parametrize("name", DOCUMENTS)
def test_stated_constants_and_worked_examples_are_verbatim(name: str) -> None:
    text = text_of(name)
    for size, model in read_file(find_shipped_baselines() / f"{name}.yaml").models:
        if size == "70b" and name == "llama3.1/25.04":
            assert model.printed_flops not in text, (
                "it is stated in the documents of earlier releases only"
            )
        else:
            assert model.printed_flops in text
        for name_of_sum, printed in model.worked:
            assert str(printed) in text, name_of_sum


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_wrong_value_quoted_by_an_erratum_occurs_in_the_document(name: str) -> None:
    text = text_of(name)
    for erratum in recipe(name).errata:
        words = re.findall(r"[\w.$%{}+-]+", erratum.printed)
        assert [
            word for word in words if word.rstrip(".").lower() not in text.lower()
        ] == []


@pytest.mark.parametrize(
    ("name", "kind", "command"),
    [
        (
            "grok1/24.11",
            "sbatch",
            "DTYPE=fp8 sbatch -A {account} -p {partition} -N 32 ./launch.sh",
        ),
        (
            "maxtext_llama2/24.11",
            "sbatch",
            "DTYPE=fp8 sbatch -A {account} -p {partition} -N 32 $STAGE_PATH/launch.sh",
        ),
        (
            "nemotron4/25.01",
            "sbatch",
            "DTYPE=fp8 MODEL_SIZE=340b sbatch -A {account} -p {partition} -N 32 $STAGE_PATH/launch.sh",
        ),
        (
            "grok1/25.05",
            "llmb-run",
            "llmb-run single -w pretrain_grok1 -s 314b --dtype fp8 --scale 256",
        ),
        (
            "grok1/25.05",
            "script",
            "JOB_TOTAL_GPUS=256 DTYPE=fp8 MODEL_SIZE=314b GPU_TYPE=gb200 ./launch.sh",
        ),
        (
            "llama3.1/25.04",
            "script",
            "DTYPE=fp8 MODEL_SIZE=70b JOB_TOTAL_GPUS=256 GPUS_PER_NODE=8 ./launch.sh",
        ),
    ],
)
def test_launch_commands_match_the_documents(
    name: str, kind: str, command: str
) -> None:
    shipped = recipe(name)
    launch: dict[str, Any] = dict(shipped.launch)
    expected: dict[str, Any] = dict(dict(launch["commands"])[kind])
    template = (
        "".join(f"{key}={value} " for key, value in expected.get("fixed", ()))
        + expected["command"]
    )
    size, gpu = (
        shipped.baselines[-1].key.size if shipped.name != "llama3.1" else "70b",
        shipped.baselines[0].key.gpu,
    )
    values = {"size": size, "gpu": gpu, "dtype": "fp8", "gpus": 256, "nodes": 32}
    per_node = dict(launch["gpus_per_node"])[gpu]
    placeholders = {"account": "{account}", "partition": "{partition}"}
    assert template.format(**values, **placeholders, gpus_per_node=per_node) == command


def test_files_are_named_after_recipe_and_release() -> None:
    root = find_shipped_baselines()
    paths = {
        path.relative_to(root).with_suffix("") for path in list_shipped_baselines()
    }
    assert paths == {Path(name) for name in DOCUMENTS}


@pytest.mark.parametrize(
    ("name", "printed", "unit"),
    [
        ("grok1/24.11", {"21", "20.7", "8.3", "24.03"}, 0.01),
        ("grok1/25.05", {"7.39", "7.325", "15.933"}, 0.001),
        ("llama3.1/25.04", {"10", "5.4", "10.1", "12.3", "12.27"}, 0.01),
        ("maxtext_llama2/24.11", {"4.93", "6.999"}, 0.001),
        ("nemotron4/25.01", {"4.7", "4.61"}, 0.01),
    ],
)
def test_shipped_step_time_resolution_is_the_last_decimal_place_of_its_table(
    name: str, printed: set[str], unit: float
) -> None:
    """The tables drop trailing zeros: 10 s and 21 s are as exact as their
    neighbours."""
    baselines = recipe(name).baselines
    assert printed <= {dict(baseline.cells)["step_time"] for baseline in baselines}
    assert {baseline.resolution_seconds for baseline in baselines} == {unit}


def make_package(root: Path) -> Path:
    path = root / "pytest_llmbench"
    path.mkdir(parents=True)
    return path


def test_installed_package_contains_the_baseline_files() -> None:
    assert (find_shipped_baselines() / "grok1" / "24.11.yaml").is_file()


def test_wheel_contains_the_baseline_files(tmp_path: Path) -> None:
    inside = make_package(tmp_path) / "baselines"
    inside.mkdir()
    (tmp_path / "baselines").mkdir()
    assert find_shipped_baselines(tmp_path / "pytest_llmbench") == inside


def test_checkout_contains_baselines_next_to_the_package(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert find_shipped_baselines(make_package(tmp_path)) == tmp_path / "baselines"


def test_installation_with_only_tables_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(find_shipped_tables(), tmp_path / "megatron_bridge")
    monkeypatch.setattr(read, "find_shipped_baselines", lambda: tmp_path)
    with pytest.raises(BaselineError, match="expected the shipped baseline files"):
        list_shipped_baselines()


def test_baselines_folder_in_site_packages_is_ignored(
    tmp_path: Path,
) -> None:
    (tmp_path / "baselines").mkdir()
    with pytest.raises(BaselineError, match="expected the shipped baseline files"):
        find_shipped_baselines(make_package(tmp_path))
