"""Mapping files, which describe new families of documents."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.imported_tables import list_unread

from pytest_llmbench.baseline.read import read_recipe
from pytest_llmbench.cli.main import main
from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.document_configurations import (
    collect_configurations,
)
from pytest_llmbench.tools.import_tables.imported_documents import read_document
from pytest_llmbench.tools.import_tables.mappings import FAMILIES, METRICS, load_mapping

MAPPING = """\
[stated]
recipe = "acorn"
sequence_length = 4096
[document]
dialect = "torchtitan"
framework = "Acorn"
[headers]
"Accelerators" = "gpus"
"Chip" = "gpu"
"Numbers" = "dtype"
"Network" = "size"
"Samples" = "gbs"
"ms/it" = "step_time ms"
"Utilisation" = "mfu %"
"Remark" = "ignore"
[values.gpu]
"TPU-v5p" = "v5p"
[values.dtype]
"brain float" = "bf16"
[values.size]
"Tiny" = {size = "1b", variant = "tiny"}
"""
TABLE = """\
# Nightly table

| Network | Chip | Accelerators | Numbers | Samples | ms/it | Utilisation | Remark |
|---|---|---|---|---|---|---|---|
| 8b | TPU-v5p | 16 | Brain  Float | 64 | 512.5 | 41.5 | stable |
| Tiny | TPU-v5p | 8 | FP8 | 64 | 98 | 38.25 | 3 nights |
"""


@pytest.fixture
def mapping_file(tmp_path: Path) -> Path:
    path = tmp_path / "acorn.toml"
    path.write_text(MAPPING)
    return path


def test_mapping_file_describes_a_new_family_of_documents(
    tmp_path: Path, mapping_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, output = tmp_path / "nightly.md", tmp_path / "acorn.yaml"
    document.write_text(TABLE)
    arguments = [
        "baselines",
        "import",
        str(document),
        "--release",
        "26.01",
        "-o",
        str(output),
    ]
    assert main(arguments) == 2
    assert "'ms/it'" in capsys.readouterr().err
    assert main([*arguments, "--mapping", str(mapping_file)]) == 0
    assert "dialect: torchtitan   # acorn.toml" in output.read_text()
    first, second = read_recipe(output).baselines
    assert (first.key.id, first.step_seconds) == ("acorn_8b-26.01-v5p-bf16-16", 0.5125)
    assert (second.key.variant, dict(second.cells)) == (
        "tiny",
        {"step_time": "0.098", "mfu": "38.25%"},
    )
    assert second.configuration.architecture.sequence_length == 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[header]\n",
            "found 'header', expected one of .* \\(did you mean 'headers'\\?\\)",
        ),
        ('[headers]\nx = "gpu_count"\n', "found 'gpu_count', expected one of "),
        (
            '[headers]\nx = "step_time hours"\n',
            "found 'step_time hours', expected one of ",
        ),
        ('[stated]\ndialect = "x"\n', "found 'dialect', expected one of "),
        ("[columns]\ngpus = ['(']\n", "'.*' is not a pattern"),
        ("columns = 3\n", ".*describes mapping files"),
        ("[headers\n", ".*expected TOML"),
    ],
)
def test_invalid_mapping_file_is_refused(
    mapping_file: Path, text: str, message: str
) -> None:
    mapping_file.write_text(text)
    with pytest.raises(BaselineError, match=rf"acorn\.toml: {message}"):
        load_mapping(mapping_file)


def test_name_of_a_metric_never_matches_the_label_of_a_configuration_column() -> None:
    mapping = load_mapping()
    assert tuple(mapping.metrics) == METRICS
    for name, metric in mapping.metrics.items():
        assert not any(
            pattern.fullmatch(name.replace("_", " "))
            for pattern in mapping.columns.values()
        )
        assert metric.units
    folder = Path(__file__).parents[3] / "pytest_llmbench/tools/import_tables/families"
    assert {path.stem for path in folder.iterdir()} in (
        {*FAMILIES},
        set(),
    )  # set(): tests of an installed wheel


def test_import_option_overrides_values_stated_in_the_text(
    tmp_path: Path, mapping_file: Path
) -> None:
    document = tmp_path / "nightly.md"
    document.write_text(TABLE)
    mapping = load_mapping(mapping_file).add_stated({"recipe": "oak"})
    result = collect_configurations(read_document(document, mapping), mapping)
    assert [entry.recipe for entry in result.configurations] == ["oak", "oak"]
    assert list_unread(result) == []
