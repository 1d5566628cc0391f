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
def test_every_number_of_a_table_is_read_or_listed(
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
    found = read("\n".join(lines))
    seen = {
        (value.cell.line, value.cell.text)
        for thing in found.configurations
        for value in thing.values
    }
    seen |= {(one.line, one.text) for one in found.unread}
    labels = {
        (one.line, label)
        for one in found.unread
        for label in re.findall(r"'(.*?)'", one.reason)
    }
    known = {
        (value.cell.line, value.label.text)
        for thing in found.configurations
        for value in thing.values
    }
    quiet = {
        (line, text)
        for line, text in numbers
        if text in ("Time to train 1T tokens in days",)
    }
    assert not {
        one for one in numbers - seen - labels - known - quiet if _is_value(one[1])
    }


def _is_value(text: str) -> bool:
    """Labels with a digit, such as a title in the first column, are no values."""
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
def test_no_text_is_an_error(text: str) -> None:
    """Whatever is found is a draft, or is listed."""
    try:
        imported = draft(text, recipe="mine", size="8b", gpu="h100", dtype="bf16")
    except BaselineError:
        return
    assert all(one.text and one.configurations for one in imported.drafts)
