"""For all tests."""

# pytester forgets what an in-process session imported, and extension modules cannot be loaded twice
from collections.abc import Iterator

import pandas as pd  # noqa: F401
import pytest
import scipy.stats  # noqa: F401
import yaml  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _no_user_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests read out of the cache of the user who runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
