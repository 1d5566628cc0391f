"""The fixtures for tests: configuration, verdict, baseline, measurement and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.core.baseline_records import Baseline
    from pytest_llmbench.core.outcome_records import Case, UnmatchedRun
    from pytest_llmbench.core.run_records import Measurement, Run
    from pytest_llmbench.plugin.messages import DescribedOutcome


@pytest.fixture
def llmb_case(request: pytest.FixtureRequest) -> Case:
    """The configuration of the item.

    A test runs once for each configuration if it uses this fixture, or a fixture that
    depends on this fixture.
    """
    case: Case = get_case(request)
    return case


@pytest.fixture
def llmb_verdict(llmb_case: Case, request: pytest.FixtureRequest) -> DescribedOutcome:
    """The verdict on the configuration.

    The test must act on `failed`, `skipped` and `message`.
    """
    from pytest_llmbench.plugin.stash import FIXTURE_VALUE, OUTCOME, get_session
    from pytest_llmbench.report.describe_outcome import list_properties

    outcome = get_session(request.config).get_outcome(llmb_case)
    request.node.stash[OUTCOME] = outcome.document
    request.node.stash[FIXTURE_VALUE] = outcome
    request.node.user_properties.extend(list_properties(outcome.document))
    return outcome


@pytest.fixture
def llmb_baseline(llmb_verdict: DescribedOutcome) -> Baseline:
    """The baseline that the run was judged against."""
    return llmb_verdict.judgement.baseline


@pytest.fixture
def llmb_measurement(llmb_verdict: DescribedOutcome) -> Measurement:
    """The measurement of the judged run.

    Without a judged run, the test is skipped or fails according to the verdict.
    """
    measurement = llmb_verdict.judgement.measurement
    if llmb_verdict.skipped:
        pytest.skip(llmb_verdict.message)
    if measurement is None or not measurement.valid or not llmb_verdict.judged:
        pytest.fail(llmb_verdict.message, pytrace=False)
    return measurement


@pytest.fixture
def llmb_run(llmb_measurement: Measurement) -> Run:
    """The judged run, with the steps of its logs and its metadata."""
    return llmb_measurement.run


@pytest.fixture
def llmb_unmatched(request: pytest.FixtureRequest) -> UnmatchedRun:
    """An unmatched run, or a file or folder that cannot be read.

    `message` contains the reason.
    """
    from pytest_llmbench.plugin.stash import FIXTURE_VALUE, OUTCOME, get_session

    run, document = get_session(request.config).describe_unmatched(get_case(request))
    request.node.stash[OUTCOME], request.node.stash[FIXTURE_VALUE] = document, run
    return run


def get_case(request: pytest.FixtureRequest) -> Any:
    """Return the case of an item; fails the test if the session judges no runs."""
    if request.param is None:
        pytest.fail(
            "no runs to judge: add --llmb-logs=PATH",
            pytrace=False,
        )
    return request.param
