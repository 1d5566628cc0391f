"""Importing NVIDIA's real documents, compared cell by cell.

The recipe documents must reproduce the shipped files, and the pages of Megatron-Bridge
an independent table of their rows.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace
from support.imported_tables import draft, list_unread, read
from support.shared_data import shared

from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import find_shipped_baselines, read_file, read_recipe
from pytest_llmbench.core.baseline_records import Baseline, Source
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.document_configurations import (
    DocumentConfigurations,
    collect_configurations,
)
from pytest_llmbench.tools.import_tables.drafts import BaselineDraft
from pytest_llmbench.tools.import_tables.imported_documents import (
    ImportedDocument,
    import_document,
    select_release,
    write_drafts,
)
from pytest_llmbench.tools.import_tables.mappings import (
    KEY_COLUMNS,
    METRICS,
    load_mapping,
)
from pytest_llmbench.tools.import_tables.markdown_tables import (
    DocumentTables,
    read_markdown,
)

DOCUMENTS = {
    "grok1/24.11": "000_e0e04c4c085ed8d6.txt",
    "maxtext_llama2/24.11": "001_74aabd83c4a30565.txt",
    "grok1/25.05": "002_e4d1b25d7aef7166.txt",
    "nemotron4/25.01": "003_6c8318a40332ad32.txt",
    "llama3.1/25.04": "004_a73f50c75f1f041c.txt",
}
NAMES = {*KEY_COLUMNS, *METRICS, "recipe", "model", "unsized", "proxy"}


def text_of(name: str) -> str:
    return shared(f"recipes/{DOCUMENTS[name]}").read_text()


def import_shared(name: str) -> ImportedDocument:
    return draft(text_of(name), name.partition("/")[2], DOCUMENTS[name])


def find_shipped(name: str) -> Mapping[tuple[int | str, ...], Baseline]:
    baselines = read_recipe(find_shipped_baselines() / f"{name}.yaml").baselines
    return {
        tuple(getattr(baseline.key, field) for field in KEY_COLUMNS): baseline
        for baseline in baselines
    }


def columns(baseline: Baseline) -> dict[str, int]:
    configuration = baseline.configuration
    values = {
        **asdict(configuration.parallelism),
        "sequence_length": configuration.architecture.sequence_length,
        "layers": configuration.architecture.layers,
        "mbs": configuration.micro_batch_size,
        "gbs": configuration.global_batch_size,
        "ga": configuration.gradient_accumulation,
    }
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.slow
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
def test_import_reproduces_all_cells_of_the_shipped_baselines(
    name: str, configurations: int, cells: int
) -> None:
    """Covers 82 configurations and 313 cells, with columns, proxies and titles."""
    entries, files = read(text_of(name)).configurations, find_shipped(name)
    assert [
        tuple(entry.facts[field] for field in KEY_COLUMNS) for entry in entries
    ] == list(files)
    assert (len(entries), sum(len(entry.cells) for entry in entries)) == (
        configurations,
        cells,
    )
    for entry, baseline in zip(entries, files.values(), strict=True):
        assert (entry.recipe, entry.table) == (
            baseline.key.recipe,
            baseline.source.table,
        )
        assert entry.cells == dict(baseline.cells)
        assert ("proxy" in entry.facts) == baseline.configuration.proxy
        printed = {
            field: value for field, value in entry.facts.items() if field not in NAMES
        }
        assert printed.items() <= columns(baseline).items()
        prose = (
            {"sequence_length", "layers"}
            if name in ("maxtext_llama2/24.11", "nemotron4/25.01")
            else set()
        )
        assert (
            set(columns(baseline)) - set(printed) == prose
        )  # in worked examples, not in tables


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_the_checkpoint_tables_of_the_documents_are_listed_as_unread(
    name: str,
) -> None:
    """Two tables of the Llama document are about checkpoints."""
    unread = read(text_of(name)).unread
    assert not any(cell.decisive for cell in unread)
    lines = {cell.line for cell in unread}
    assert lines == (
        {176, 178, 179, 180, 193, 195, 196, 197} if name == "llama3.1/25.04" else set()
    )


def fill_draft(made: BaselineDraft, name: str) -> str:
    """Complete a draft with the formulas and sizes that its document does not state."""
    models = {
        baseline.key.size: baseline.configuration.architecture
        for baseline in find_shipped(name).values()
    }
    rounded = {size: architecture.formula for size, architecture in models.items()}
    for baseline in find_shipped(name).values():
        if not baseline.configuration.proxy:
            rounded[baseline.key.size] = baseline.configuration.architecture.formula
    text = made.text
    for size, value in rounded.items():
        formula = re.search(rf'(?m)^  "?{size}"?:\n    formula: none.*\n', text)
        if formula:
            stated = (
                text[formula.end() :]
                .partition("\nconfigurations:")[0]
                .partition('\n  "')[0]
            )
            names = (
                "hidden_size",
                "attention_heads",
                "query_groups",
                "ffn_size",
                "vocabulary_size",
                "top_k",
            )
            sizes = {
                field: getattr(models[size], field)
                for field in names
                if f"{field}:" not in stated
            }
            lines = [
                f"    {field}: {count}\n"
                for field, count in sizes.items()
                if count is not None
            ]
            text = text.replace(
                formula[0], f'  "{size}":\n    formula: {value}\n{"".join(lines)}'
            )
    return text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("grok1/24.11", 2),
        ("maxtext_llama2/24.11", 1),
        ("grok1/25.05", 0),
        ("nemotron4/25.01", 1),
        ("llama3.1/25.04", 3),
    ],
)
def test_completed_draft_equals_the_shipped_file(
    tmp_path: Path, name: str, missing: int
) -> None:
    """Compares configurations, models, peaks, windows, cells and lint errata."""
    (made,) = import_shared(name).drafts
    assert len(made.assumed_values) == missing
    path = tmp_path / "draft.yaml"
    path.write_text(fill_draft(made, name))
    found, file = read_file(path), read_file(find_shipped_baselines() / f"{name}.yaml")
    assert (found.recipe.name, found.recipe.release) == (
        file.recipe.name,
        file.recipe.release,
    )
    for ours, theirs in zip(found.recipe.baselines, file.recipe.baselines, strict=True):
        changed = {"source": Source(""), "logged_tflops_factor": None}
        assert replace(_plain(ours), **changed) == replace(_plain(theirs), **changed)
    draft_report, report = lint_file(found), lint_file(file)
    assert (draft_report.derived, draft_report.reproduced) == (
        report.derived,
        report.reproduced,
    )


def _plain(baseline: Baseline) -> Baseline:
    """Drop Nemotron's heads, groups and FFN size, which its document does not state.

    Its formula does not need them.
    """
    architecture = baseline.configuration.architecture
    if architecture.formula.startswith("nemotron"):
        architecture = replace(
            architecture, attention_heads=None, query_groups=None, ffn_size=None
        )
    return replace(
        baseline,
        configuration=replace(baseline.configuration, architecture=architecture),
    )


# --- Megatron-Bridge ------------------------------------------------------------------

RELEASES = (
    "25.11",
    "26.02",
    "26.02.01",
    "26.04",
    "26.04.01",
    "26.06",
    "26.06.01",
    "26.08",
)
FOLDER = "documents/megatron_bridge"
COLUMNS = ("gbs", "mbs", "fsdp", "tp", "pp", "cp", "vp", "ep", "ga")
PAIR = re.compile(r"(.+) \((.+)\)")

Row = Mapping[str, str]


def tables_of(release: str) -> DocumentTables:
    # The newest release has a separate page.
    name = (
        "performance-summary.md"
        if release == RELEASES[-1]
        else "performance-summary-archive.md"
    )
    return read_markdown(shared(f"{FOLDER}/{name}").read_text(), load_mapping())


def collect(release: str) -> DocumentConfigurations:
    mapping = load_mapping()
    return collect_configurations(
        select_release(mapping, tables_of(release), "document", release), mapping
    )


def rows(release: str) -> Iterator[Row]:
    """Yield the rows of a release; a row with pairs of values is two rows."""
    with shared(f"{FOLDER}/rows.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["release"] == release and PAIR.fullmatch(row["precision"]):
                for part in (1, 2):
                    paired = {name: PAIR.fullmatch(text) for name, text in row.items()}
                    second = {
                        name: match[part]
                        for name, match in paired.items()
                        if match and name != "model"
                    }
                    yield {**row, **second}
            elif row["release"] == release:
                yield row


def expected(row: Row) -> dict[str, str]:
    """Convert a row of the independent table to the facts of a configuration."""
    stated = {name: row[name] for name in COLUMNS if row[name] not in ("", "n/a")}
    if stated.get("fsdp") == "0":  # not sharded
        del stated["fsdp"]
    without = row["model"].replace("w/o", "without").replace("w/", "with")
    return {
        **stated,
        "model": re.sub(r"[^a-z0-9.]+", "_", without.lower()).strip("_"),
        "gpu": row["system"].removeprefix("DGX-").lower(),
        "gpus": row["gpus"],
        "dtype": row["precision"].lower().replace("-", "_"),
        "sequence_length": row["seq"],
        "tokens_per_second_per_gpu": row["tokens_per_s_per_gpu"],
        "tflops_per_gpu": row["tflops_per_gpu"],
    } | ({} if row["task"] == "pretrain" else {"task": row["task"]})


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_all_megatron_bridge_rows_are_imported(release: str) -> None:
    found = collect(release)
    assert found.unread == ()
    omitted = ("size", "variant", "recipe", "unsized")
    read = [
        {name: str(value) for name, value in entry.facts.items() if name not in omitted}
        for entry in found.configurations
    ]
    assert read == [expected(row) for row in rows(release)]


@pytest.mark.slow
def test_missing_release_is_an_error() -> None:
    with pytest.raises(
        BaselineError, match=r"found tables of 26\.06\.01, 26\.06, .* but not of 26\.05"
    ):
        import_document(tables_of("26.06"), "archive.md", "26.05", load_mapping())


@pytest.mark.slow
def test_draft_without_step_time_is_refused(tmp_path: Path) -> None:
    made = import_document(tables_of("26.08"), "document.md", "26.08", load_mapping())
    path = write_drafts(made, tmp_path, force=False)[0].path
    path.write_text(path.read_text().replace("gbs: 4096,", ""))
    with pytest.raises(
        BaselineError,
        match="found cells that determine no step time, expected step_time, tokens_",
    ):
        read_file(path)


def test_cell_with_an_unexplained_second_value_in_parentheses_is_listed_as_unread() -> (
    None
):
    text = (
        "## 26.04 Container\n### LoRA Performance\n#### System: DGX-H100\n\n"
        "| Model | #-GPUs | Precision | GBS | Sequence Length | FSDP | Tokens / sec / GPU | Model TFLOP / sec / GPU |\n"
        "|---|---|---|---|---|---|---|---|\n| LLAMA3_8B | 8 | FP8-CS | 128 | 8192 | 0 | 37556 (36108) | 1933 (1858) |\n"
    )
    assert read(text).configurations == ()
    assert {"7 37556 (36108)", "7 1933 (1858)"} <= {
        line.partition(":")[0] for line in list_unread(read(text))
    }
