"""Every worked example of the five documents, computed with the package's functions.

Results must agree to the last printed digit, or be listed as errata.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace
from support.shipped_documents import DOCUMENTS, recipe, text_of

from pytest_llmbench.baseline.lint import round_as_printed
from pytest_llmbench.core import metric_definitions
from pytest_llmbench.core.baseline_records import Baseline, Configuration
from pytest_llmbench.core.flops import count_flops_per_token, count_model_flops


@dataclass(frozen=True)
class Example:
    """A line of a document that computes a metric.

    `configuration` contains precision and GPUs.
    """

    document: str
    line: int
    text: str
    configuration: str
    seconds: float
    batch: int
    printed: str


@dataclass(frozen=True)
class Count:
    """A line of a document that counts nodes or sequences per batch.

    Nodes have 8 GPUs.
    """

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


def read_line(document: str, number: int) -> str:
    return text_of(document).splitlines()[number - 1]


def find_baseline(document: str, end: str) -> Baseline:
    (baseline,) = (
        baseline
        for baseline in recipe(document).baselines
        if baseline.key.id.endswith(f"-{end}") or end in baseline.key.id
    )
    return baseline


def set_batch(configuration: Configuration, batch: int) -> Configuration:
    """Set the batch size of an example, which may not be documented."""
    return replace(configuration, global_batch_size=batch)


def list_errata(document: str, line: int) -> set[tuple[str, str]]:
    """Return (printed, corrected) of the errata on a line of a document's text."""
    return {
        (erratum.printed, erratum.corrected)
        for erratum in recipe(document).errata
        if not erratum.cell
        and line
        in {
            int(number)
            for number in re.findall(r"\d+", erratum.where.partition("(line")[2])
        }
    }


def check_printed(
    document: str, line: int, text: str, printed: str, value: float
) -> None:
    """Check that a printed result follows from its numbers, or has an erratum."""
    assert text in read_line(document, line), "the document has another text"
    expected = round_as_printed(value, printed)
    if expected != printed:
        assert (printed, expected) in list_errata(document, line), (
            f"{printed} should be {expected}, without an erratum"
        )
    else:
        assert printed not in {wrong for wrong, _ in list_errata(document, line)}, (
            "the value reproduces, but has an erratum"
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", TOKENS, ids=lambda one: f"{one.document}:{one.line}"
)
def test_tokens_per_second_match_the_documents(example: Example) -> None:
    configuration = set_batch(
        find_baseline(example.document, example.configuration).configuration,
        example.batch,
    )
    value = metric_definitions.compute_tokens_per_second(configuration, example.seconds)
    check_printed(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize("example", DAYS, ids=lambda one: f"{one.document}:{one.line}")
def test_days_to_1t_tokens_match_the_documents(example: Example) -> None:
    configuration = set_batch(
        find_baseline(example.document, example.configuration).configuration,
        example.batch,
    )
    value = metric_definitions.compute_days_to_1t_tokens(configuration, example.seconds)
    assert value is not None
    check_printed(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize("example", MFU, ids=lambda one: f"{one.document}:{one.line}")
def test_mfu_matches_the_documents(example: Example) -> None:
    baseline = find_baseline(example.document, example.configuration)
    configuration = set_batch(baseline.configuration, example.batch)
    value = metric_definitions.compute_model_flops_utilization(
        configuration, example.seconds, baseline.peak_tflops
    )
    check_printed(example.document, example.line, example.text, example.printed, value)


@pytest.mark.parametrize(
    ("document", "line", "text", "size"), CONSTANTS, ids=lambda value: str(value)[:30]
)
def test_model_flops_match_the_documents(
    document: str, line: int, text: str, size: str
) -> None:
    assert read_line(document, line).endswith(text)
    baseline = next(
        baseline for baseline in recipe(document).baselines if baseline.key.size == size
    )
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
def test_flops_terms_match_the_documents(
    document: str, line: int, text: str, size: str, term: int
) -> None:
    assert read_line(document, line).endswith(text)
    baseline = next(
        baseline for baseline in recipe(document).baselines if baseline.key.size == size
    )
    assert (
        f"{count_flops_per_token(baseline.configuration.architecture)[term]}"
        == text.rpartition("= ")[2].replace(",", "")
    )


@pytest.mark.parametrize(
    "example", COUNTS, ids=lambda baseline: f"{baseline.document}:{baseline.line}"
)
def test_node_and_batch_counts_match_the_documents(example: Count) -> None:
    assert example.text in read_line(example.document, example.line)
    example_recipe = recipe(example.document)
    configuration = next(
        baseline.configuration
        for baseline in example_recipe.baselines
        if baseline.key.gpus == example.gpus
    )
    launch: dict[str, Any] = dict(example_recipe.launch)
    nodes = example.gpus // dict(launch["gpus_per_node"])["h100"]
    value = nodes if example.what == "nodes" else configuration.global_batch_size
    if str(value) != example.printed:
        corrected = [
            right
            for wrong, right in list_errata(example.document, example.line)
            if example.printed in wrong
        ]
        assert any(right.endswith(f"= {value}") for right in corrected), (
            f"no erratum with the value {value}"
        )


def test_every_worked_example_in_the_documents_is_tested() -> None:
    """An example has numbers on both sides of an equals sign and an arithmetic
    operator."""
    computed = re.compile(r"\d[\d,.eE+^]* *[*/+] *\(?[\d,.eE+]+.* = [\d,.eE+%]+")
    computed_lines = {
        (document, number)
        for document in DOCUMENTS
        for number, line in enumerate(text_of(document).splitlines(), start=1)
        if computed.search(line)
    }
    tested = {
        (example.document, example.line) for example in (*TOKENS, *DAYS, *MFU)
    } | {(example.document, example.line) for example in COUNTS}
    tested |= {(example[0], example[1]) for example in CONSTANTS} | {
        (example[0], example[1]) for example in SUMS
    }
    assert computed_lines == tested
