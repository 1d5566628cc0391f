"""What the stages hand to each other: frozen records, tuples and columns; no behaviour beyond names and ids."""

from pytest_llmbench.core.models.baselines import *
from pytest_llmbench.core.models.codes import *
from pytest_llmbench.core.models.comparisons import *
from pytest_llmbench.core.models.fleets import *
from pytest_llmbench.core.models.jobs import *
from pytest_llmbench.core.models.judgements import *
from pytest_llmbench.core.models.logs import *
from pytest_llmbench.core.models.nodes import *
from pytest_llmbench.core.models.outcomes import *
from pytest_llmbench.core.models.runs import *
from pytest_llmbench.core.models.trials import *
