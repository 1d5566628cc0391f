"""What a reader of a session should know before a green light is believed: the one place where cautions are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_llmbench.report.cautions import findings
from pytest_llmbench.report.terminal import worst

if TYPE_CHECKING:
    from pytest_llmbench.models import Caution
    from pytest_llmbench.session import Session


def find_cautions(session: Session) -> Iterator[Caution]:
    """Yield the cautions of a session that judged: what it found and did not fail for, then what hooks noticed, then
    what weakens the gate."""
    if not session.described:
        return
    outcomes = worst(session.described)
    yield from findings(outcomes)
    yield from session.noticed
