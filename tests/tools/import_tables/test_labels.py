"""Labels and cells: what is read is what is printed, and what may mean two things is
refused with the reason."""

from __future__ import annotations

import pytest

from pytest_llmbench.tools.import_tables import labels
from pytest_llmbench.tools.import_tables.mappings import load_mapping


@pytest.mark.parametrize(
    ("label", "metric"),
    [
        ("Training step time (seconds per step)", ("step_time", 0)),
        ("Step time (ms)", ("step_time", -3)),
        ("Throughput (tokens/sec)", ("tokens_per_second", 0)),
        ("Model flops utilization", ("mfu", 0)),
        ("MFU, %", ("mfu", 0)),
        ("Time to train 1T tokens in days", ("days_to_1t", 0)),
        ("Step time std (s)", None),
        ("Step time (minutes)", None),
        ("Throughput", None),
        ("Time to train 1T tokens", None),
        ("Throughput (tokens/s/GPU)", ("tokens_per_second_per_gpu", 0)),
        ("Time to train 15T tokens in days", None),
        ("TFLOP/s per GPU", ("tflops_per_gpu", 0)),
        ("Hardware TFLOP/s per GPU", None),
        ("TFLOP/s", None),
    ],
)
def test_table_label_is_a_metric_only_if_unambiguous(
    label: str, metric: tuple[str, int] | None
) -> None:
    read = labels.parse_metric_label(load_mapping(), label)
    assert (read and (read.name, read.power)) == metric


@pytest.mark.parametrize(
    ("label", "field"),
    [
        ("# GPUs", "gpus"),
        ("Sequence Length", "sequence_length"),
        ("GBS", "gbs"),
        ("GPUs per node", ""),
        ("Vocabulary", ""),
    ],
)
def test_table_label_is_a_column_only_if_spelled_exactly(
    label: str, field: str
) -> None:
    assert labels.parse_column_label(load_mapping(), label) == field


@pytest.mark.parametrize(
    ("metric", "label", "text", "expected"),
    [
        ("step_time", "Step time", "7.325", "7.325"),
        ("step_time", "Step time", "7.325 s", "7.325"),
        ("step_time", "Step time", "7325.0 ms", "7.3250"),
        ("step_time", "Step time", "7.325*", "7.325"),
        ("tokens_per_second", "Tokens/s", "1,159,101.5", "1159101.5"),
        ("mfu", "MFU", "47.59%", "47.59%"),
        ("mfu", "MFU (%)", "47.59", "47.59%"),
        ("days_to_1t", "Days to 1T", "n/a", "n/a"),
        ("days_to_1t", "Days to 1T", "\u2014", ""),
    ],
)
def test_metric_keeps_its_printed_digits(
    metric: str, label: str, text: str, expected: str
) -> None:
    mapping = load_mapping()
    parsed = labels.parse_metric_label(mapping, label)
    assert parsed is not None
    assert parsed.name == metric
    assert labels.read_metric(parsed, labels.parse_cell(mapping, text, 1)) == expected


@pytest.mark.parametrize(
    ("metric", "label", "text", "reason"),
    [
        ("step_time", "Step time", "7,325", "the comma may be a decimal comma"),
        ("step_time", "Step time", "0.00", "the value is not above 0"),
        ("step_time", "Step time", "~7.3", "the value is not a number"),
        (
            "step_time",
            "Step time",
            "7.3 (7.4)",
            "the value contains two values, and the second is not explained",
        ),
        ("step_time", "Step time", "7.3 \u00b1 0.1", "found unit"),
        ("tokens_per_second", "Tokens/s", "174k", "found unit 'k', expected"),
        ("mfu", "MFU", "0.4759", "may be a percentage or a fraction"),
        ("mfu", "MFU (%)", "0.4759", "may be a percentage or a fraction"),
        ("mfu", "MFU", "147%", "the value is above 100 %"),
    ],
)
def test_ambiguous_cell_is_refused_with_reason(
    metric: str, label: str, text: str, reason: str
) -> None:
    mapping = load_mapping()
    parsed = labels.Metric(
        metric, "%" if "%" in label else "", mapping.metrics[metric].units
    )
    with pytest.raises(ValueError, match=r".") as error:
        labels.read_metric(parsed, labels.parse_cell(mapping, text, 1))
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("text", "facts"), [("8,192", {"gbs": 8192}), ("NA", {}), ("", {})]
)
def test_global_batch_size_cell_is_read_as_an_integer_or_as_missing(
    text: str, facts: labels.Facts
) -> None:
    mapping = load_mapping()
    label, cell = (labels.parse_cell(mapping, part, 1) for part in ("GBS", text))
    assert labels.read_value(mapping, labels.LabelledCell(label, cell)) == facts


@pytest.mark.parametrize("text", ["128 * 2", "8.0", "0", "\uff18"])
def test_zero_decimals_and_arithmetic_are_refused_as_counts(text: str) -> None:
    with pytest.raises(ValueError, match="not a whole number above 0"):
        labels.parse_integer(text)
