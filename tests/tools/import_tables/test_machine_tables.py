"""Reading CSV, TSV, YAML and JSON tables with mapping files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.imported_tables import list_unread

from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.document_configurations import (
    DocumentConfigurations,
    collect_configurations,
)
from pytest_llmbench.tools.import_tables.imported_documents import read_document
from pytest_llmbench.tools.import_tables.mappings import load_mapping

COLUMNS = ("recipe", "size", "gpu", "dtype", "gpus", "gbs", "step_time_s", "note")
ROWS = (
    ("oak", "8b", "h100", "bf16", "8", "128", "12.27", ""),
    ("oak", "8b", "h100", "fp8", "1,024", "128", "9.33", "second run, quiet"),
)
MAPPING = '[headers]\nrecipe = "recipe"\nstep_time_s = "step_time"\nnote = "ignore"\n'
RECORDS = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


def read_as(
    folder: Path, name: str, text: str, mapping: str = MAPPING
) -> DocumentConfigurations:
    path = folder / name
    path.write_text(text)
    (folder / "own.toml").write_text(mapping)
    loaded = load_mapping(folder / "own.toml")
    load_mapping.cache_clear()
    return collect_configurations(read_document(path, loaded), loaded)


def separate(rows: list[tuple[str, ...]], separator: str) -> str:
    return "\n".join(separator.join(f'"{cell}"' for cell in row) for row in rows)


NESTED = {
    "gpu": "h100",
    "runs": {"results": [{**record, "gpu": None} for record in RECORDS]},
}
BY_GPU = {
    "h100": {"bf16": [{**RECORDS[0], "gpu": None, "dtype": None}], "fp8": [RECORDS[1]]}
}


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.csv", separate([COLUMNS, *ROWS], ","), [2, 3]),
        ("a.tsv", separate([COLUMNS, *ROWS], "\t"), [2, 3]),
        ("a.json", json.dumps(RECORDS, indent=1), [2, 12]),
        (
            "a.yaml",
            f"a:\n- {json.dumps(RECORDS[0])}\nb:\n- {json.dumps(RECORDS[1])}\n",
            [2, 4],
        ),
        ("a.yml", json.dumps({"schema": 1, "runs": {"results": RECORDS}}), [1, 1]),
    ],
)
def test_csv_tsv_json_and_yaml_give_the_same_configurations(
    tmp_path: Path, name: str, text: str, lines: list[int]
) -> None:
    mapping = MAPPING + 'schema = "ignore"\n'
    result = read_as(tmp_path, name, text, mapping)
    assert list_unread(result) == []
    assert [entry.line for entry in result.configurations] == lines
    assert [
        (entry.recipe, entry.facts["gpus"], entry.cells)
        for entry in result.configurations
    ] == [
        ("oak", 8, {"step_time": "12.27"}),
        ("oak", 1024, {"step_time": "9.33"}),
    ]


def test_outer_json_keys_and_scalars_complete_the_records_inside_them(
    tmp_path: Path,
) -> None:
    for data in (NESTED, BY_GPU):
        text = (
            json.dumps(data)
            .replace('"gpu": null, ', "")
            .replace('"dtype": null, ', "")
            .replace(', "gpu": null', "")
        )
        result = read_as(tmp_path, "a.json", text)
        assert [entry.facts["gpu"] for entry in result.configurations] == [
            "h100",
            "h100",
        ]
        assert [entry.facts["dtype"] for entry in result.configurations] == [
            "bf16",
            "fp8",
        ]


def test_only_records_below_the_path_of_the_mapping_file_are_imported(
    tmp_path: Path,
) -> None:
    text = json.dumps(
        {"old": [{**RECORDS[0], "step_time_s": "99"}], "new": {"results": RECORDS}}
    )
    result = read_as(tmp_path, "a.json", text, f'records = "new.results"\n{MAPPING}')
    assert [entry.cells["step_time"] for entry in result.configurations] == [
        "12.27",
        "9.33",
    ]
    with pytest.raises(
        BaselineError,
        match=r"found no 'new\.other', which the mapping file names as the path",
    ):
        read_as(tmp_path, "a.json", text, f'records = "new.other"\n{MAPPING}')


def test_value_of_a_shifted_row_or_unknown_key_is_listed_with_its_line(
    tmp_path: Path,
) -> None:
    short = separate([COLUMNS, ROWS[0][:-2], ROWS[1]], ",")
    result = read_as(tmp_path, "a.csv", short)
    assert [entry.facts["gpus"] for entry in result.configurations] == [1024]
    assert (
        "2 oak: the row has 6 cells, but the header has 8: the row may be shifted"
        in list_unread(result)
    )
    odd = [{**RECORDS[0], "runs": [1, 2], "nested": {"deep": [{"gpus": 8}]}}]
    unread = list_unread(read_as(tmp_path, "a.json", json.dumps(odd)))
    assert "1 1, 2: 'runs': the row or column of the value is unknown" in unread


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", 'a,b\n1,"2\n', r"a\.csv:2: unexpected end of data, expected CSV"),
        ("a.json", "[1,\n}", r"a\.json:2: found a syntax error"),
        ("a.yaml", "a: &x 1\n", r"a\.yaml:1: found the anchor &x"),
        ("a.csv", "\udcff", r"a\.csv:1: found byte 0xff, expected UTF-8 text"),
    ],
)
def test_broken_file_is_reported_with_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(BaselineError, match=message):
        read_document(path, load_mapping())


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", ""), ("a.json", "{}"), ("a.yaml", "- 1\n- x\n"), ("a.yml", "")],
)
def test_file_without_records_has_no_configuration(
    tmp_path: Path, name: str, text: str
) -> None:
    assert read_as(tmp_path, name, text).configurations == ()
