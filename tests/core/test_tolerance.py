"""Parsing and precedence of tolerances, and the drift of recorded values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.builders import BASELINE, at

from pytest_llmbench.core.baseline_records import Architecture, Recording, Tolerance
from pytest_llmbench.core.metric_definitions import METRICS
from pytest_llmbench.core.tolerance import (
    FASTER,
    KEPT,
    NAMES,
    explain_refusal,
    find_reference,
    follow_recording,
    get_metric_name,
    is_beyond,
    list_accepted,
    merge_tolerances,
    parse_tolerances,
)
from pytest_llmbench.session.catalog import select_tolerance
from pytest_llmbench.session.settings import CERTIFIED, DEFAULT_TOLERANCE, Settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5%", Tolerance(0.05)),
        ("2.5 %", Tolerance(0.025)),
        ("0.025", Tolerance(0.025)),
        (".05", Tolerance(0.05)),
        ("50%", Tolerance(0.5)),
        ("step_time_seconds:5%", Tolerance(0.05)),
        ("perf: 5 %", Tolerance(0.05, "performance", larger_is_better=True)),
        ("Performance:0.05", Tolerance(0.05, "performance", larger_is_better=True)),
        ("MFU:3%", Tolerance(0.03, "mfu", larger_is_better=True)),
        ("tflops: 2%", Tolerance(0.02, "tflops_per_gpu", larger_is_better=True)),
        ("days_to_1t_tokens:5%", Tolerance(0.05, "days_to_1t_tokens")),
    ],
)
def test_valid_tolerance_is_parsed(text: str, expected: Tolerance) -> None:
    assert parse_tolerances(text, "") == (expected,)


def test_several_tolerances_are_parsed_with_their_source() -> None:
    tolerances = parse_tolerances("mfu:3%, 5%,days_to_1t_tokens : 0.1", "ini")
    assert tolerances == (
        Tolerance(0.05, source="ini"),
        Tolerance(0.1, "days_to_1t_tokens", source="ini"),
        Tolerance(0.03, "mfu", larger_is_better=True, source="ini"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "5",
            r"found '5', that is 500 %, expected above 0 and at most 50 %; write 5% for 5 percent",
        ),
        ("51%", "that is 51 %"),
        ("0", "that is 0 %, expected above 0"),
        ("-5%", "expected a tolerance such as 5%"),
        ("nan", "expected a tolerance"),
        ("1e-2", "expected a tolerance"),
        ("\u0665%", "expected a tolerance"),
        ("", "expected a tolerance"),
        ("5%%", "expected a tolerance"),
        ("5% mfu:3%", "expected one of time"),
        ("5%,", "expected a tolerance"),
        ("2,5%", r"found '2,5%' with a comma, expected a decimal point: 2\.5%"),
        ("perf:2,5 %", r"expected a decimal point: perf:2\.5 %"),
        (
            "pref:5%",
            r"found 'pref' before the colon, expected one of time, perf, .*\(did you mean 'perf'\?\)",
        ),
        (":5%", "before the colon"),
        ("mfu:perf:5%", "found 'mfu:perf' before the colon"),
        ("5%, 3%", "found 5 % and 3 %, expected each metric once"),
        (
            "5%, perf:8%",
            r"expected each metric once \(time, perf and step_time_seconds are the same\)",
        ),
        ("mfu:3%, 5%, mfu:4%", "of mfu .*, expected each metric once$"),
    ],
)
def test_invalid_tolerance_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_tolerances(text, "")


@pytest.mark.parametrize("name", METRICS)
def test_only_metrics_of_the_step_time_have_tolerances(
    name: str,
) -> None:
    if METRICS[name].of_step_time:
        (tolerance,) = parse_tolerances(f"{name}:5%", "")
        assert tolerance.larger_is_better is METRICS[name].larger_is_better, (
            "it has a direction"
        )
    else:
        message = f"found {name} before the colon: it is not computed from the step time, .* expected one of time, perf,"
        with pytest.raises(ValueError, match=message):
            parse_tolerances(f"{name}:5%", "")


LOGGED = replace(
    BASELINE,
    configuration=replace(
        BASELINE.configuration, architecture=Architecture("none"), logged_tflop=3600.0
    ),
)


def compute_value(name: str, seconds: float) -> float:
    """Compute a metric at a step time by its formula."""
    if name in ("time", "perf"):
        return seconds if name == "time" else 1 / seconds
    formula = METRICS[name].formula
    assert formula is not None
    value = formula(LOGGED if "logged" in name else BASELINE, seconds)
    assert value is not None
    return value


@pytest.mark.slow
@given(st.sampled_from(NAMES), st.integers(1, 5000))
def test_metric_computed_at_the_limit_is_worse_by_exactly_the_tolerance(
    name: str, hundredths: int
) -> None:
    (tolerance,) = parse_tolerances(f"{name}:{hundredths / 100}%", "")
    expected, at_bound = (
        compute_value(name, 7.325),
        compute_value(name, 7.325 * tolerance.factor),
    )
    worse = (
        1 - at_bound / expected
        if tolerance.larger_is_better
        else at_bound / expected - 1
    )
    assert worse == pytest.approx(hundredths / 1e4, rel=1e-9)
    assert tolerance.factor > 1


def test_performance_tolerance_allows_more_time_than_its_fraction() -> None:
    (performance,), (time,) = (
        parse_tolerances("perf:5%", ""),
        parse_tolerances("5%", ""),
    )
    assert (performance.factor, time.factor) == pytest.approx((1 / 0.95, 1.05))
    assert str(performance) == "5 % of performance (+5.26 % time)"


# --- precedence -----------------------------------------------------------------------


def select_from_sources(flag: str = "", ini: str = "", file: str = "") -> Tolerance:
    """Return the tolerance that applies, given those of the flag, ini file and baseline
    file."""

    def parsed(text: str, source: str) -> tuple[Tolerance, ...]:
        return parse_tolerances(text, source) if text else ()

    settings = Settings(
        tolerances=merge_tolerances(
            parsed(ini, "ini"), parsed(flag, "--llmb-tolerance")
        )
    )
    return select_tolerance(
        settings, at(BASELINE, tolerances=parsed(file, "baseline file"))
    )


@pytest.mark.parametrize(
    ("given_as", "expected"),
    [
        ({}, ("5 %", "default")),
        ({"file": "7%"}, ("7 %", "baseline file")),
        ({"file": "7%", "ini": "6%"}, ("6 %", "ini")),
        ({"file": "7%", "ini": "6%", "flag": "8%"}, ("8 %", "--llmb-tolerance")),
        (
            {"ini": "5%", "flag": "perf:8%"},
            ("8 % of performance (+8.7 % time)", "--llmb-tolerance"),
        ),
        ({"flag": "mfu:8%"}, ("5 %", "default")),
        ({"flag": "mfu:2%"}, ("2 % of mfu (+2.04 % time)", "--llmb-tolerance")),
        (
            {"file": "mfu:2%", "flag": "8%"},
            ("2 % of mfu (+2.04 % time)", "baseline file"),
        ),
        (
            {"file": "mfu:2%", "ini": "mfu:6%", "flag": "8%"},
            ("6 % of mfu (+6.38 % time)", "ini"),
        ),
    ],
)
def test_tolerance_of_flag_wins_over_ini_over_baseline_file_over_default(
    given_as: dict[str, str], expected: tuple[str, str]
) -> None:
    tolerance = select_from_sources(**given_as)
    assert (str(tolerance), tolerance.source) == expected


texts = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(1, 5000)).map(
        lambda one: f"{one[0]}:{one[1] / 100}%"
    ),
    max_size=4,
    unique_by=lambda text: get_metric_name(parse_tolerances(text, "")[0]),
)


@pytest.mark.slow
@given(texts, texts, texts)
def test_limit_follows_from_the_strictest_tolerance_of_all_metrics(
    flag: list[str], ini: list[str], file: list[str]
) -> None:
    """For any tolerances, in any order."""
    layers = [
        parse_tolerances(",".join(layer), "") if layer else ()
        for layer in (file, ini, flag)
    ]
    strongest = {
        get_metric_name(tolerance): tolerance.factor
        for layer in layers
        for tolerance in layer
    }
    bound = min(
        strongest.setdefault("time", DEFAULT_TOLERANCE.factor), *strongest.values()
    )
    assert (
        select_from_sources(", ".join(flag), ", ".join(ini), ", ".join(file)).factor
        == bound
    )
    assert (
        select_from_sources(
            ", ".join(reversed(flag)),
            ", ".join(reversed(ini)),
            ", ".join(reversed(file)),
        ).factor
        == bound
    )


def test_certificate_requires_95_percent_of_the_performance() -> None:
    settings = Settings(tolerances=(CERTIFIED,))
    for file in ("", "3%", "40%", "perf:3%"):
        baseline = at(
            BASELINE, tolerances=parse_tolerances(file, "baseline file") if file else ()
        )
        assert select_tolerance(settings, baseline) == CERTIFIED
    assert math.isclose(CERTIFIED.factor, 1 / 0.95)
    tighter = at(BASELINE, tolerances=parse_tolerances("mfu:1%", "baseline file"))
    assert select_tolerance(settings, tighter).of == "mfu", (
        "another metric has a separate bound"
    )


# --- recorded values ------------------------------------------------------------------

BUDGET = 0.05


def make_recording(seconds: float, date: str = "2025-11-20") -> Recording:
    return Recording(
        date, 1, seconds, seconds, 0.0, (seconds,), ("0" * 64,), by="alice on login1"
    )


def record_again(
    previous: Recording, seconds: float, reason: str = ""
) -> Recording | None:
    """Return the recording in the file afterwards, or None if the new one is refused."""
    new = make_recording(seconds, "2025-12-20")
    return (
        None
        if explain_refusal(new, previous, BUDGET) and not reason
        else follow_recording(new, previous, BUDGET, reason)
    )


@pytest.mark.slow
@given(st.lists(st.floats(0.95, 1.05), max_size=60))
def test_baseline_recorded_repeatedly_never_exceeds_the_drift_budget(
    factors: list[float],
) -> None:
    """After any number of small moves, a value is at most 5 % slower than the first
    one."""
    current = make_recording(7.3)
    for factor in factors:
        after = record_again(current, current.trimmed_mean_seconds * factor)
        current = after or current
        assert current.trimmed_mean_seconds <= 7.3 * (1 + BUDGET) * (1 + 1e-8)
        assert current.trimmed_mean_seconds <= find_reference(current).seconds * (
            1 + BUDGET
        ) * (1 + 1e-8)
        assert list_accepted(current)[0].seconds == 7.3


def test_third_recorded_slowdown_of_two_percent_is_refused() -> None:
    first = make_recording(7.3)
    second = record_again(first, 7.3 * 1.02)
    assert second
    third = record_again(second, 7.3 * 1.02**2)
    assert third
    assert explain_refusal(make_recording(7.3 * 1.02**3), third, BUDGET) == (
        "7.747 s is +6.1 % from 7.300 s, accepted on 2025-11-20 by alice on login1, the drift budget is 5 %: "
        "find the cause of the slowdown, or accept it with `accept: drift` in the file of --llmb-acknowledged"
    )


def test_accepted_value_becomes_the_drift_reference() -> None:
    accepted = record_again(make_recording(7.3), 8.0, "driver 570")
    assert accepted
    assert (accepted.reason, find_reference(accepted).seconds) == ("driver 570", 8.0)
    after = record_again(accepted, 8.3)
    assert after
    assert (after.reason, find_reference(after).reason) == ("", "driver 570")
    assert record_again(after, 8.5) is None


def test_acceptance_reason_is_not_stored_if_the_recording_is_within_budget() -> None:
    """Otherwise one accepted session would restart the drift of every configuration."""
    within = record_again(make_recording(7.3), 7.4, "driver 570")
    assert within
    assert (within.reason, find_reference(within).seconds) == ("", 7.3)


def test_much_faster_value_becomes_the_drift_reference() -> None:
    faster = record_again(make_recording(7.3), 6.5)
    assert faster
    assert (faster.reason, find_reference(faster).seconds) == (FASTER, 6.5)
    assert record_again(faster, 7.0) is None


def test_recording_the_same_runs_replaces_no_value() -> None:
    current = record_again(make_recording(7.3), 8.0, "driver 570")
    assert current
    new = replace(current, date="2026-01-01", reason="", earlier=())
    assert follow_recording(new, current, BUDGET, "another reason") == replace(
        current, date="2026-01-01"
    )


def test_pruned_list_of_recordings_contains_first_value_and_accepted_reasons() -> None:
    current = make_recording(7.3)
    for count in range(100):
        reason = "driver 570" if count == 30 else ""
        seconds = 8.0 + count / 1000 if count >= 30 else 7.3 + count / 1000
        current = record_again(current, seconds, reason) or current
    assert len(current.earlier) == KEPT + 2
    assert current.earlier[0].seconds == 7.3
    assert find_reference(current).reason == "driver 570"


@pytest.mark.parametrize(
    ("seconds", "beyond"), [(7.665, False), (7.6651, True), (7.0, False)]
)
def test_recorded_value_exactly_at_the_drift_budget_is_allowed(
    seconds: float, beyond: bool
) -> None:
    assert is_beyond(seconds, list_accepted(make_recording(7.3))[0], BUDGET) is beyond
