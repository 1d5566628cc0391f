"""For all tests."""

# pytester forgets what an in-process session imported, and extension modules cannot be loaded twice
import pandas as pd  # noqa: F401
import scipy.stats  # noqa: F401
import yaml  # noqa: F401
