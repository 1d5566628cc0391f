"""What a launch does about nodes that one of its runs makes suspect, before anybody is told to leave them out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pytest_llmbench.core.models.jobs import JobSpec, Purpose

if TYPE_CHECKING:
    from pytest_llmbench.judge.cluster import NodeFinding

NODELIST = "--nodelist="


def plan_confirmation(spec: JobSpec, finding: NodeFinding) -> JobSpec | None:
    """Return one more run of a configuration on exactly the nodes of its slowest run; None where no node is suspect.

    It counts for no verdict on the configuration: one that is repeated until it is fast would be green in the end.
    """
    if not finding.suspects or len(finding.again) != spec.nodes:
        return None
    options = [option for option in spec.sbatch_options if not option.startswith(NODELIST)]
    pinned = (*options, f"{NODELIST}{','.join(finding.again)}")
    return dataclasses.replace(spec, purpose=Purpose.CONFIRM_NODES, sbatch_options=pinned)
