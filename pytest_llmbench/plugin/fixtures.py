"""The fixtures that tests use: what a configuration is, which run was found, what it
measured, the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline
    from pytest_llmbench.core.outcome_records import Case, Outcome, UnmatchedRun
    from pytest_llmbench.core.run_records import Measurement, Run


@pytest.fixture
def llmb_case(request: pytest.FixtureRequest) -> Case:
    """The configuration that an item is about; a test that uses it, or any fixture
    below, has an item for each."""
    case: Case = get_case(request)
    return case


@pytest.fixture
def llmb_verdict(llmb_case: Case, request: pytest.FixtureRequest) -> Outcome:
    """The verdict on the configuration: `failed`, `skipped` and `message` are what the
    test has to act on."""
    from pytest_llmbench.plugin.stash import DESCRIBED, MESSAGE, get_session
    from pytest_llmbench.report.describe_outcome import list_properties

    outcome, described = get_session(request.config).get_outcome(llmb_case)
    request.node.stash[DESCRIBED], request.node.stash[MESSAGE] = (
        described,
        outcome.message,
    )
    request.node.user_properties.extend(list_properties(described))
    return outcome


@pytest.fixture
def llmb_baseline(llmb_verdict: Outcome) -> Baseline:
    """The baseline that decides."""
    return llmb_verdict.judgement.baseline


@pytest.fixture
def llmb_measurement(llmb_verdict: Outcome) -> Measurement:
    """What the judged run measured; without a judged run the test is skipped or fails
    as its verdict says."""
    measurement = llmb_verdict.judgement.measurement
    if llmb_verdict.skipped:
        pytest.skip(llmb_verdict.message)
    if measurement is None or not measurement.valid or not llmb_verdict.judged:
        pytest.fail(llmb_verdict.message, pytrace=False)
    return measurement


@pytest.fixture
def llmb_run(llmb_measurement: Measurement) -> Run:
    """The run that is judged: its logs, step by step, and what is known of it."""
    return llmb_measurement.run


@pytest.fixture
def llmb_unmatched(request: pytest.FixtureRequest) -> UnmatchedRun:
    """A run that matches no baseline, or a file or folder that could not be read;
    `message` says why."""
    from pytest_llmbench.plugin.stash import DESCRIBED, MESSAGE, get_session

    run, described = get_session(request.config).describe_unmatched(get_case(request))
    request.node.stash[DESCRIBED], request.node.stash[MESSAGE] = described, run.message
    return run


def get_case(request: pytest.FixtureRequest) -> Any:
    """Return what the item of a test is about; the test fails where no run is
    judged."""
    if request.param is None:
        pytest.fail(
            "this test judges runs, and there are none: add --llmb-logs=PATH",
            pytrace=False,
        )
    return request.param
