"""Every example that the five documents compute, with the package's own functions: to
the last printed digit, or a listed erratum."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.shipped_documents import DOCUMENTS, recipe, text_of

from pytest_llmbench.baseline.lint import round_as_printed
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.baseline_records import Baseline, Configuration
from pytest_llmbench.core.flops import count_flops_per_token, count_model_flops


@dataclass(frozen=True)
class Example:
    """A line of a document that computes something: for which configuration (its
    precision and GPUs), with which step time and GBS, and what it prints."""

    document: str
    line: int
    text: str
    configuration: str
    seconds: float
    batch: int
    printed: str


@dataclass(frozen=True)
class Count:
    """A line of a document that counts nodes, or sequences in a batch, for so many GPUs
    of 8 in a node."""

    document: str
    line: int
    text: str
    gpus: int
    what: str
    printed: str


TOKENS = [
    Example(
        "grok1/24.11",
        20,
        "8192 * 4096 / 22 = 1525201",
        "h100-bf16-2048",
        22,
        4096,
        "1525201",
    ),
    Example(
        "maxtext_llama2/24.11",
        10,
        "4096 * 128 / 7.908 = 66298.43",
        "h100-bf16-64",
        7.908,
        128,
        "66298.43",
    ),
    Example(
        "grok1/25.05",
        51,
        "8192 * 4096 / 24 = 1398101",
        "h100-bf16-512",
        24,
        4096,
        "1398101",
    ),
    Example(
        "nemotron4/25.01",
        10,
        "4096 * 256 / 3.59 = 292082",
        "h100-bf16-1024",
        3.59,
        256,
        "292082",
    ),
    Example(
        "llama3.1/25.04",
        39,
        "8192 * 128 / 12.39 = 84631",
        "8b-25.04-h100-fp8-8",
        12.39,
        128,
        "84631",
    ),
]
DAYS = [
    Example(
        "grok1/24.11",
        23,
        "1e12 / 1525201 / 86400 = 7.59 days",
        "h100-bf16-2048",
        22,
        4096,
        "7.59",
    ),
    Example(
        "maxtext_llama2/24.11",
        13,
        "1e12 / 66298.43 / 86400 = 174.57 days",
        "h100-bf16-64",
        7.908,
        128,
        "174.57",
    ),
    Example(
        "grok1/25.05",
        57,
        "1e12 / 1398101 / 86400 = 8.28 days",
        "h100-bf16-512",
        24,
        4096,
        "8.28",
    ),
    Example(
        "nemotron4/25.01",
        13,
        "1e12 / 292082 / 86400 = 39.6 days",
        "h100-bf16-1024",
        3.59,
        256,
        "39.6",
    ),
    Example(
        "llama3.1/25.04",
        42,
        "1e12 / 84631 / 86400 = 136.76 days",
        "8b-25.04-h100-fp8-8",
        12.39,
        128,
        "136.76",
    ),
]
MFU = [
    Example(
        "grok1/24.11",
        32,
        "4096 * 4.27E+15 / 22 / 2048 / 989E+12 = 39.3%",
        "h100-bf16-2048",
        22,
        4096,
        "39.3%",
    ),
    Example(
        "maxtext_llama2/24.11",
        22,
        "128 * 1.82E+15 / 7.908 / 64 / 989E+12 = 46.54%",
        "h100-bf16-64",
        7.908,
        128,
        "46.54%",
    ),
    Example(
        "grok1/25.05",
        77,
        "256 * 4.27E+15 / 6.631 / 128 / 4.9E+15 = 26.3%",
        "gb200-fp8-128",
        6.631,
        256,
        "26.3%",
    ),
    Example(
        "nemotron4/25.01",
        22,
        "32 * 1.01e16 / 4.77 / 128 / 989e+12 = 53.52%",
        "h100-bf16-128",
        4.77,
        32,
        "53.52%",
    ),
    Example(
        "llama3.1/25.04",
        51,
        "128 * 4.74E+14 / 12.39 / 8 / 1979E+12 = 30.93%",
        "8b-25.04-h100-fp8-8",
        12.39,
        128,
        "30.93%",
    ),
]
CONSTANTS = [
    (
        "grok1/25.05",
        337,
        "8192 * (53,150,220,288 + 463,856,467,968 + 4,728,029,184) = 4.27E15",
        "314b",
    ),
    (
        "maxtext_llama2/24.11",
        77,
        "4096 * (104,689,827,840 + 338,228,674,560 + 1,572,864,000) = 1.82E+15",
        "70b",
    ),
    (
        "nemotron4/25.01",
        122,
        "4096 * (869730877440 + 1565515579392 + 28311552000) = 1.01e16",
        "340b",
    ),
    (
        "llama3.1/25.04",
        223,
        "8192 * (20,937,965,568 + 33,822,867,456 + 3,152,019,456) = 4.74E+14",
        "8b",
    ),
]
SUMS = [
    (
        "maxtext_llama2/24.11",
        74,
        "12 * 80 * 8192^2 * (1 + 8/64 + 4096/8192) = 104,689,827,840",
        "70b",
        0,
    ),
    ("maxtext_llama2/24.11", 75, "18 * 80 * 28672 * 8192 = 338,228,674,560", "70b", 1),
    ("maxtext_llama2/24.11", 76, "6 * 32000 * 8192 = 1,572,864,000", "70b", 2),
    (
        "grok1/25.05",
        333,
        "12 * 64 * 6144^2 * (1 + 8/48 + 8192/6144/2) = 53,150,220,288",
        "314b",
        0,
    ),
    ("grok1/25.05", 334, "18 * 64 * 32768 * 6144 * 2 = 463,856,467,968", "314b", 1),
    ("grok1/25.05", 335, "6 * 128256 * 6144 = 4,728,029,184", "314b", 2),
    (
        "nemotron4/25.01",
        119,
        "24 * 96 * 18432^2 + 12 * 96 * 18432 * 4096 = 869730877440",
        "340b",
        0,
    ),
    ("nemotron4/25.01", 120, "48 * 96 * 18432^2 = 1565515579392", "340b", 1),
    ("nemotron4/25.01", 121, "6 * 256000 * 18432 = 28311552000", "340b", 2),
    (
        "llama3.1/25.04",
        220,
        "12 * 32 * 4096^2 * (1 + 8/32 + 8192/4096) = 20,937,965,568",
        "8b",
        0,
    ),
    ("llama3.1/25.04", 221, "18 * 32 * 14336 * 4096 = 33,822,867,456", "8b", 1),
    ("llama3.1/25.04", 222, "6 * 128256 * 4096 = 3,152,019,456", "8b", 2),
]
COUNTS = [
    Count("grok1/24.11", 71, "should be 256 / 8 = 32", 256, "nodes", "32"),
    Count("maxtext_llama2/24.11", 62, "should be 256 / 8 = 32", 256, "nodes", "32"),
    Count("nemotron4/25.01", 73, "should be 128 / 8 = 16", 128, "nodes", "16"),
    Count(
        "maxtext_llama2/24.11",
        65,
        "8 * 8 * 2 = 128 (in the example above)",
        256,
        "batch",
        "128",
    ),
    Count(
        "nemotron4/25.01",
        75,
        "128 * 2 = 256 (in the example above)",
        128,
        "batch",
        "256",
    ),
]


def line_of(document: str, number: int) -> str:
    return text_of(document).splitlines()[number - 1]


def baseline_of(document: str, end: str) -> Baseline:
    (found,) = (
        one
        for one in recipe(document).baselines
        if one.key.id.endswith(f"-{end}") or end in one.key.id
    )
    return found


def with_batch(configuration: Configuration, batch: int) -> Configuration:
    """Return a configuration with the batch of an example, which may be no documented
    one."""
    return replace(configuration, global_batch_size=batch)


def errata(document: str, line: int) -> set[tuple[str, str]]:
    """Return printed and corrected text of the errata in the prose of a document that
    are about a line."""
    return {
        (one.printed, one.corrected)
        for one in recipe(document).errata
        if not one.cell
        and line
        in {
            int(number)
            for number in re.findall(r"\d+", one.where.partition("(line")[2])
        }
    }


def compare(document: str, line: int, text: str, printed: str, value: float) -> None:
    """The document prints what follows from its own numbers; where it does not, an
    erratum has what follows."""
    assert text in line_of(document, line), "the document says something else there"
    expected = round_as_printed(value, printed)
    if expected != printed:
        assert (printed, expected) in errata(document, line), (
            f"{printed} should be {expected}, and no erratum says so"
        )
    else:
        assert printed not in {wrong for wrong, _ in errata(document, line)}, (
            "it reproduces, and an erratum says not"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", TOKENS, ids=lambda one: f"{one.document}:{one.line}"
)
def test_tokens_per_second(example: Example) -> None:
    configuration = with_batch(
        baseline_of(example.document, example.configuration).configuration,
        example.batch,
    )
    value = metric_definitions.compute_tokens_per_second(configuration, example.seconds)
    compare(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize("example", DAYS, ids=lambda one: f"{one.document}:{one.line}")
def test_days_to_1t_tokens(example: Example) -> None:
    configuration = with_batch(
        baseline_of(example.document, example.configuration).configuration,
        example.batch,
    )
    value = metric_definitions.compute_days_to_1t_tokens(configuration, example.seconds)
    assert value is not None
    compare(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize("example", MFU, ids=lambda one: f"{one.document}:{one.line}")
def test_mfu(example: Example) -> None:
    baseline = baseline_of(example.document, example.configuration)
    configuration = with_batch(baseline.configuration, example.batch)
    value = metric_definitions.compute_model_flops_utilization(
        configuration, example.seconds, baseline.peak_tflops
    )
    compare(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize(
    ("document", "line", "text", "size"), CONSTANTS, ids=lambda value: str(value)[:30]
)
def test_model_flops(document: str, line: int, text: str, size: str) -> None:
    assert line_of(document, line).endswith(text)
    baseline = next(one for one in recipe(document).baselines if one.key.size == size)
    sequence, sums, printed = re.fullmatch(r"(\d+) \* \((.*)\) = (\S+)", text).groups()  # type: ignore[union-attr]
    architecture = baseline.configuration.architecture
    assert architecture.sequence_length == int(sequence)
    assert [int(number.replace(",", "")) for number in sums.split(" + ")] == list(
        count_flops_per_token(architecture)
    )
    assert count_model_flops(architecture) == float(printed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "line", "text", "size", "term"),
    SUMS,
    ids=lambda value: str(value)[:20],
)
def test_each_sum_of_the_notes(
    document: str, line: int, text: str, size: str, term: int
) -> None:
    assert line_of(document, line).endswith(text)
    baseline = next(one for one in recipe(document).baselines if one.key.size == size)
    assert (
        f"{count_flops_per_token(baseline.configuration.architecture)[term]}"
        == text.rpartition("= ")[2].replace(",", "")
    )


@pytest.mark.parametrize(
    "example", COUNTS, ids=lambda one: f"{one.document}:{one.line}"
)
def test_nodes_and_batches(example: Count) -> None:
    assert example.text in line_of(example.document, example.line)
    found = recipe(example.document)
    configuration = next(
        one.configuration for one in found.baselines if one.key.gpus == example.gpus
    )
    launch: dict[str, Any] = dict(found.launch)
    nodes = example.gpus // dict(launch["gpus_per_node"])["h100"]
    value = nodes if example.what == "nodes" else configuration.global_batch_size
    if str(value) != example.printed:
        corrected = [
            right
            for wrong, right in errata(example.document, example.line)
            if example.printed in wrong
        ]
        assert any(right.endswith(f"= {value}") for right in corrected), (
            f"no erratum says that it should be {value}"
        )


def test_no_computed_line_is_left_out() -> None:
    """A line with numbers on both sides of an equals sign, and at least one sign of
    arithmetic, is an example."""
    computed = re.compile(r"\d[\d,.eE+^]* *[*/+] *\(?[\d,.eE+]+.* = [\d,.eE+%]+")
    found = {
        (document, number)
        for document in DOCUMENTS
        for number, line in enumerate(text_of(document).splitlines(), start=1)
        if computed.search(line)
    }
    tested = {(one.document, one.line) for one in (*TOKENS, *DAYS, *MFU)} | {
        (one.document, one.line) for one in COUNTS
    }
    tested |= {(one[0], one[1]) for one in CONSTANTS} | {
        (one[0], one[1]) for one in SUMS
    }
    assert found == tested
