"""Outcomes and checks with the messages of their items.

Few tests read the message of a passed item, so it is written when it is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.core import formatting
from pytest_llmbench.core.outcome_records import Check, Outcome

if TYPE_CHECKING:
    from pytest_llmbench.report.outcome_documents import (
        CheckOutcome,
        ConfigurationOutcome,
    )


class DescribedOutcome(Outcome, frozen=True, kw_only=True):
    """An outcome with its redacted document, as the fixtures provide it to tests."""

    document: ConfigurationOutcome
    is_short: bool
    """True if messages of failing items take three lines."""

    @property
    def message(self) -> str:
        """The text of the item."""
        from pytest_llmbench.report.explain import explain
        from pytest_llmbench.report.job_text import list_files

        document = self.document
        if not self.skipped:
            return explain(document, short=self.is_short)
        verdict = f"{document.verdict} ({document.reason})"
        files = formatting.join_first(list_files(document))
        return ": ".join(filter(None, (verdict, document.text, files)))


class DescribedCheck(Check, frozen=True, kw_only=True):
    """A check with its redacted document, as the fixtures provide it to tests."""

    document: CheckOutcome
    is_short: bool
    """True if messages of failing items take three lines."""

    @property
    def message(self) -> str:
        """The text of the item."""
        from pytest_llmbench.report.explain import explain

        if self.skipped:
            return self.document.text
        return explain(self.document, short=self.is_short)
