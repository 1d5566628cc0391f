"""Positive evidence that a run is not comparable: profiled, traced, or made to load a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_llmbench.discover import names
from pytest_llmbench.discover.metadata import Metadata
from pytest_llmbench.models import Reason

_REPORT_JOB = re.compile(r"_\d+g_(\d+)_\d+_\d+\.nsys-rep$", re.IGNORECASE)


def exclusion(
    record: Metadata | None, own_names: Sequence[str], reports: Sequence[str], job: str, *, alone: bool
) -> tuple[Reason | None, str]:
    """Return why a run is not comparable and what says so, or None and an empty string.

    `own_names` are the names of the run's folders and log, `reports` the profiler's reports beside it; `alone` where no
    other run shares the folder, so that a report without a job id must be this run's.
    """
    if record and record.excluded:
        return record.excluded, record.excluded_because
    for name in own_names:
        if names.is_profiled(name):
            return Reason.PROFILED, f"the name {name} ends in _nsys"
        if names.is_traced(name):
            return Reason.TRACED, f"the name {name} says nccltrace"
    for report in reports:
        found = _REPORT_JOB.search(report)
        if (found and job == found[1]) or (alone and not (found and job)):
            return Reason.PROFILED, f"the profiler's report {report} stands beside it"
    return None, ""
