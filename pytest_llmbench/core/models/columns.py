"""Columns: the types of arrays that stages hand to each other. For type checkers: it loads numpy."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
