"""Whatever stands in a table: no error, and every number of it is in a configuration or
in the list."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.imported_tables import draft, read

from pytest_llmbench.core.errors import BaselineError
from pytest_llmbench.tools.import_tables.markdown_tables import strip_markup

headers = st.sampled_from(
    [
        "Llama 3.1 8b BF16",
        "Grok 1 314b FP8 (TP=8, GBS=64)",
        "GPUs",
        "Size",
        "Precision",
        "GPU type",
        "SeqLen",
        "Layers",
        "GBS",
        "8x H100 GPUs",
        "16x H100 GPUs (GBS=128)",
        "1,024x GB200 GPUs",
        "Throughput on 64 H100 GPUs",
        "Step time (s)",
        "Step time (ms)",
        "Training step time (seconds per step)",
        "Throughput in tokens per second",
        "MFU",
        "MFU (%)",
        "Time to train 1T tokens in days",
        "Notes",
        "run 2",
        "",
        "405b-Proxy 8x H100/GB200 GPUs",
    ]
)
values = st.sampled_from(
    [
        "7.325",
        "10",
        "174,544",
        "47.59%",
        "0.4759",
        "NA",
        "-",
        "",
        "8",
        "64",
        "1024",
        "405b-Proxy",
        "8b",
        "BF16/FP8",
        "H100",
    ]
) | st.from_regex(r"\A[0-9.,% x*~]{1,8}\Z")
rows = st.lists(headers | values, min_size=1, max_size=6)
tables = st.lists(
    st.tuples(st.lists(headers, min_size=1, max_size=6), st.lists(rows, max_size=6)),
    max_size=3,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(tables, st.booleans(), st.booleans())
def test_every_number_is_imported_or_listed(
    made: list[tuple[list[str], list[list[str]]]], outer: bool, apart: bool
) -> None:
    lines: list[str] = []
    numbers: set[tuple[int, str]] = set()

    def add(cells: list[str], in_row: bool) -> None:
        joined = " | ".join(cells)
        lines.append(
            f"| {joined} |"
            if outer or len(cells) == 1 or not (cells[0] and cells[-1])
            else joined
        )
        if in_row:
            numbers.update(
                (len(lines), strip_markup(cell))
                for cell in cells
                if re.search(r"\d", cell)
            )

    for header, body in made:
        add(header, in_row=False)
        add(["---"] * len(header), in_row=False)
        for row in body:
            add(row, in_row=True)
        if apart:
            lines.append("")
    result = read("\n".join(lines))
    read_cells = {
        (value.cell.line, value.cell.text)
        for configuration in result.configurations
        for value in configuration.values
    }
    read_cells |= {(cell.line, cell.text) for cell in result.unread}
    labels = {
        (cell.line, label)
        for cell in result.unread
        for label in re.findall(r"'(.*?)'", cell.reason)
    }
    used_labels = {
        (value.cell.line, value.label.text)
        for configuration in result.configurations
        for value in configuration.values
    }
    quiet = {
        (line, text)
        for line, text in numbers
        if text in ("Time to train 1T tokens in days",)
    }
    assert not {
        cell
        for cell in numbers - read_cells - labels - used_labels - quiet
        if _is_value(cell[1])
    }


def _is_value(text: str) -> bool:
    """True for a value, False for labels with a digit such as a title."""
    return re.fullmatch(r"[\d.,%~*x ]*\d[\d.,%~*x ]*", text) is not None


@pytest.mark.slow
@given(
    st.text(
        alphabet="|-: \n\t\r\\*_`[]()<>&#;GPUs0123456789.,%xHB/=~ab\u00a0\u2028\x0b",
        max_size=300,
    )
)
@example("| a |\n|---|\n| &#55296; |")
@example("GPUs | Step time (s)\n---|---\n8 | 7.3")
def test_arbitrary_text_raises_no_unexpected_error(text: str) -> None:
    """Any text gives drafts or a BaselineError."""
    try:
        imported = draft(text, recipe="mine", size="8b", gpu="h100", dtype="bf16")
    except BaselineError:
        return
    assert all(cell.text and cell.configurations for cell in imported.drafts)
