"""Zstandard: the module of Python 3.14 and newer, and its backport for older
versions."""

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
