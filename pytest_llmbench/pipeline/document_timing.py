"""Judging by what each document timed, of most the last step: to compare with their tables.

One step is no verdict on a run, so nothing rests on it later: no baseline, no certificate, no night of a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.core.errors import SettingsError
from pytest_llmbench.core.models import Baseline, BaselineKind, TimedBy, Window
from pytest_llmbench.core.options import destination

if TYPE_CHECKING:
    from pytest_llmbench.pipeline.settings import Settings

OPTION = "--llmb-timed=document"

LAST_STEP = "last_step"
"""What a baseline file calls it that its document timed the last step."""

NEVER = {
    "--llmb-record": "a baseline is a mean of many steps, and never the last one",
    "--llmb-certify": "a certificate does not rest on one step",
}
"""What a session by the documents cannot do, wherever it was asked for."""

UNUSED = {
    "--llmb-history": "one step is no night of a history",
    "--llmb-acknowledged": "the tables know of no acknowledged change",
}
"""What it has no use for: refused where it was typed, left out where it stands in the ini file."""


def by_document(settings: Settings, typed: Mapping[str, Any]) -> Settings:
    """Return the settings of a session that judges by the documents: against published baselines, and without what
    would outlive it. Raises SettingsError for what contradicts that."""
    asked = {"--llmb-record": settings.record is not None, "--llmb-certify": settings.certify}
    asked |= {flag: bool(typed.get(destination(flag))) for flag in UNUSED}
    for flag, why in {**NEVER, **UNUSED}.items():
        if asked[flag]:
            raise SettingsError(f"{OPTION} with {flag}: {why}; give --llmb-timed=window, or leave {flag} out")
    against = str(typed.get("llmb_against") or "published")
    if against != "published":
        raise SettingsError(f"{OPTION} with --llmb-against={against}: only published baselines have a document")
    return replace(settings, against="published", history=None, acknowledged=None)


def as_documented(baseline: Baseline) -> Baseline:
    """Return a published baseline that is timed as its document does; others as they are.

    Which runs count stays what it is: those that finished, and whose usual window is whole.
    """
    if baseline.kind is not BaselineKind.PUBLISHED:
        return baseline
    if baseline.timed != LAST_STEP:
        return replace(baseline, timed_by=TimedBy.DOCUMENT)
    last = _first_step(baseline) + baseline.steps - 1
    return replace(baseline, timed_by=TimedBy.DOCUMENT, window=Window(last, last), required_window=baseline.window)


def _first_step(baseline: Baseline) -> int:
    return baseline.log.first_step if baseline.log else DIALECTS[baseline.dialect].first_step
