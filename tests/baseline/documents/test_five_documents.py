"""Importing the five documents gives the cells of the shipped files, and what is filled in by hand gives the files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.shared_data import shared

from pytest_llmbench.baseline.documents import ImportedDocument, import_document
from pytest_llmbench.baseline.documents.document_configurations import (
    DocumentConfigurations,
    ImportDefaults,
    collect_configurations,
)
from pytest_llmbench.baseline.documents.drafts import BaselineDraft
from pytest_llmbench.baseline.documents.markdown import read_tables
from pytest_llmbench.baseline.documents.table_configurations import DocumentConfiguration
from pytest_llmbench.baseline.lint import lint_file
from pytest_llmbench.baseline.read import find_shipped_baselines, read_file, read_recipe
from pytest_llmbench.core.baseline_records import Baseline, Source

DOCUMENTS = {
    "grok1/24.11": "000_e0e04c4c085ed8d6.txt",
    "maxtext_llama2/24.11": "001_74aabd83c4a30565.txt",
    "grok1/25.05": "002_e4d1b25d7aef7166.txt",
    "nemotron4/25.01": "003_6c8318a40332ad32.txt",
    "llama3.1/25.04": "004_a73f50c75f1f041c.txt",
}
KEY = ("size", "gpu", "dtype", "gpus")


def text_of(name: str) -> str:
    return shared(f"recipes/{DOCUMENTS[name]}").read_text()


def collected(name: str) -> DocumentConfigurations:
    return collect_configurations(read_tables(text_of(name)), ImportDefaults())


def imported(name: str) -> ImportedDocument:
    return import_document(text_of(name), DOCUMENTS[name], name.partition("/")[2], ImportDefaults())


def shipped(name: str) -> Mapping[tuple[int | str, ...], Baseline]:
    baselines = read_recipe(find_shipped_baselines() / f"{name}.yaml").baselines
    return {tuple(getattr(one.key, field) for field in KEY): one for one in baselines}


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


def key_of(thing: DocumentConfiguration) -> tuple[int | str, ...]:
    return tuple(thing.facts[name] for name in KEY)


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
def test_every_cell_and_every_column_of_the_shipped_files_is_imported(
    name: str, configurations: int, cells: int
) -> None:
    """All 82 configurations and 313 cells, verbatim; the columns that tables hold; proxies and titles."""
    things, files = collected(name).configurations, shipped(name)
    assert [key_of(thing) for thing in things] == list(files)
    assert (len(things), sum(len(thing.cells) for thing in things)) == (configurations, cells)
    for thing in things:
        baseline = files[key_of(thing)]
        assert (thing.recipe, thing.table) == (baseline.key.recipe, baseline.source.table)
        assert thing.cells == dict(baseline.cells)
        assert thing.proxy == baseline.configuration.proxy
        printed = {name: value for name, value in thing.facts.items() if name not in KEY}
        assert printed.items() <= columns(baseline).items()
        prose = {"sequence_length", "layers"} if name in ("maxtext_llama2/24.11", "nemotron4/25.01") else set()
        assert set(columns(baseline)) - set(printed) == prose  # in worked examples, not in tables


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_in_no_file_is_listed(name: str) -> None:
    """Two tables of the Llama document are about checkpoints."""
    unread = collected(name).unread
    assert not any(one.decisive for one in unread)
    lines = {one.line for one in unread}
    assert lines == ({176, 178, 179, 180, 193, 195, 196, 197} if name == "llama3.1/25.04" else set())


def filled(draft: BaselineDraft, name: str) -> str:
    """Return a draft with what its document does not say, from the shipped file: formulas and models' sizes."""
    models = {one.key.size: one.configuration.architecture for one in shipped(name).values()}
    rounded = {one.key.size: one.configuration.architecture.formula for one in shipped(name).values()}
    for one in shipped(name).values():
        if not one.configuration.proxy:
            rounded[one.key.size] = one.configuration.architecture.formula
    text = draft.text
    for size, value in rounded.items():
        formula = re.search(rf'(?m)^  "?{size}"?:\n    formula: none.*\n', text)
        if formula:
            stated = text[formula.end() :].partition("\nconfigurations:")[0].partition('\n  "')[0]
            names = ("hidden_size", "attention_heads", "query_groups", "ffn_size", "vocabulary_size", "top_k")
            sizes = {each: getattr(models[size], each) for each in names if f"{each}:" not in stated}
            lines = [f"    {each}: {count}\n" for each, count in sizes.items() if count is not None]
            text = text.replace(formula[0], f'  "{size}":\n    formula: {value}\n{"".join(lines)}')
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
def test_a_draft_that_was_filled_in_is_the_shipped_file(tmp_path: Path, name: str, missing: int) -> None:
    """Same configurations, models, peaks, windows and cells; so lint finds what the errata of the file explain."""
    (draft,) = imported(name).drafts
    assert len(draft.assumed) == missing
    path = tmp_path / "draft.yaml"
    path.write_text(filled(draft, name))
    found, file = read_file(path), read_file(find_shipped_baselines() / f"{name}.yaml")
    assert (found.recipe.name, found.recipe.release) == (file.recipe.name, file.recipe.release)
    for ours, theirs in zip(found.recipe.baselines, file.recipe.baselines, strict=True):
        changed = {"source": Source(""), "logged_tflops_factor": None}
        assert replace(_plain(ours), **changed) == replace(_plain(theirs), **changed)  # type: ignore[arg-type]
    draft_report, report = (lint_file(one) for one in (found, file))
    assert (draft_report.derived, draft_report.reproduced) == (report.derived, report.reproduced)


def _plain(baseline: Baseline) -> Baseline:
    """The formula does not use Nemotron's heads, groups and FFN size, which its document does not state."""
    architecture = baseline.configuration.architecture
    if architecture.formula.startswith("nemotron"):
        architecture = replace(architecture, attention_heads=None, query_groups=None, ffn_size=None)
    return replace(baseline, configuration=replace(baseline.configuration, architecture=architecture))
