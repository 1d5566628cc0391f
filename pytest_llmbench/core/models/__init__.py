"""What the stages hand to each other: frozen records, tuples and columns; no behaviour beyond names and ids."""

from typing import TYPE_CHECKING

from pytest_llmbench.core.models.baselines import *
from pytest_llmbench.core.models.codes import *
from pytest_llmbench.core.models.jobs import *
from pytest_llmbench.core.models.judgements import *
from pytest_llmbench.core.models.logs import *
from pytest_llmbench.core.models.nodes import *
from pytest_llmbench.core.models.outcomes import *
from pytest_llmbench.core.models.runs import *

if TYPE_CHECKING:
    from pytest_llmbench.core.models.comparisons import *
    from pytest_llmbench.core.models.fleets import *
    from pytest_llmbench.core.models.trials import *
else:
    LATER = ("comparisons", "fleets", "trials")

    def __getattr__(name: str) -> object:
        """Return a record of the modules that are loaded once something asks for one of theirs."""
        # A record takes half a millisecond to make, and a session that judges needs none of these.
        if name not in LATER and not name.startswith("__"):
            from pytest_llmbench.core.models import comparisons, fleets, trials

            for module in (comparisons, fleets, trials):
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
