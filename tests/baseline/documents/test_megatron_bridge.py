"""The tables of NVIDIA Megatron-Bridge, which name release, task, model and system in headings, cell by cell."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.shared_data import shared

from pytest_llmbench.baseline.documents import import_document, select_release, write_drafts
from pytest_llmbench.baseline.documents.document_configurations import (
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.markdown import read_tables
from pytest_llmbench.baseline.read import read_file
from pytest_llmbench.core.errors import BaselineError

RELEASES = ("25.11", "26.02", "26.02.01", "26.04", "26.04.01", "26.06", "26.06.01", "26.08")
FOLDER = "documents/megatron_bridge"
COLUMNS = ("gbs", "mbs", "fsdp", "tp", "pp", "cp", "vp", "ep", "ga")

NOT_STATED = ("", "n/a")
PAIR = re.compile(r"(.+) \((.+)\)")

Row = Mapping[str, str]


def text_of(release: str) -> str:
    # The newest release stands on a page of its own.
    name = "performance-summary.md" if release == RELEASES[-1] else "performance-summary-archive.md"
    return shared(f"{FOLDER}/{name}").read_text()


def collected(release: str, **defaults: str) -> DocumentConfigurations:
    tables = select_release(read_tables(text_of(release)), "document", release)
    return collect_configurations(tables, ImportDefaults(**defaults))


def rows(release: str) -> Iterator[Row]:
    """Yield the rows of a release, each of a row with two values by itself."""
    with shared(f"{FOLDER}/rows.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["release"] == release and PAIR.fullmatch(row["precision"]):
                for part in (1, 2):
                    paired = {name: PAIR.fullmatch(text) for name, text in row.items()}
                    second = {name: match[part] for name, match in paired.items() if match and name != "model"}
                    yield {**row, **second}
            elif row["release"] == release:
                yield row


def expected(row: Row) -> dict[str, str]:
    """Return a row of the independent table as a configuration states it."""
    stated = {name: row[name] for name in COLUMNS if row[name] not in NOT_STATED}
    if stated.get("fsdp") == "0":  # it is not sharded
        del stated["fsdp"]
    return (
        stated
        | {
            "gpu": row["system"].removeprefix("DGX-").lower(),
            "gpus": row["gpus"],
            "dtype": row["precision"].lower().replace("-", "_"),
            "sequence_length": row["seq"],
            "tokens_per_second_per_gpu": row["tokens_per_s_per_gpu"],
            "tflops_per_gpu": row["tflops_per_gpu"],
        }
        | ({} if row["task"] == "pretrain" else {"task": row["task"]})
    )


def name_of(model: str) -> str:
    without = model.replace("w/o", "without").replace("w/", "with")
    return re.sub(r"[^a-z0-9.]+", "_", without.lower()).strip("_")


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_every_cell_of_every_row(release: str) -> None:
    found = collected(release)
    assert found.unread == ()
    read = []
    for entry in found.configurations:
        facts = {name: str(value) for name, value in entry.facts.items() if name not in ("size", "variant")}
        read.append((entry.model, facts | entry.cells))
    assert read == [(name_of(row["model"]), expected(row)) for row in rows(release)]


@pytest.mark.slow
def test_a_release_that_a_document_does_not_hold() -> None:
    with pytest.raises(BaselineError, match=r"found tables of 26\.06\.01, 26\.06, .* expected 26\.05"):
        import_document(text_of("26.06"), "archive.md", "26.05", ImportDefaults())


PAIRS = """\
## 26.04 Container
### LoRA Performance
#### System: DGX-H100

| Model | #-GPUs | Precision | GBS | Sequence Length | FSDP | Tokens / sec / GPU | Model TFLOP / sec / GPU |
|---|---|---|---|---|---|---|---|
| LLAMA3_8B | 8 | {precision} | 128 | 8192 | 0 | 37556 (36108) | 1933 (1858) |
"""


def collect_pairs(precision: str) -> DocumentConfigurations:
    return collect_configurations(read_tables(PAIRS.format(precision=precision)), ImportDefaults())


def test_two_values_of_one_precision_are_not_read() -> None:
    found = collect_pairs("FP8-CS")
    assert found.configurations == ()
    assert {"37556 (36108)", "1933 (1858)"} <= {cell.text for cell in found.unread if cell.decisive}


@pytest.mark.slow
def test_cells_from_which_no_step_time_follows(tmp_path: Path) -> None:
    imported = import_document(text_of("26.08"), "document.md", "26.08", ImportDefaults())
    path = write_drafts(imported, tmp_path, force=False)[0].path
    path.write_text(path.read_text().replace("gbs: 4096,", ""))
    with pytest.raises(BaselineError, match="found cells from which no step time follows, expected step_time, tokens_"):
        read_file(path)
