"""Zstandard: the module of Python 3.14 and newer, and its backport for older versions."""

import sys

if sys.version_info >= (3, 14):
    from compression.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdDict,
        ZstdError,
        compress,
        decompress,
        get_frame_info,
    )
else:
    from backports.zstd import (
        CompressionParameter,
        DecompressionParameter,
        ZstdCompressor,
        ZstdDecompressor,
        ZstdDict,
        ZstdError,
        compress,
        decompress,
        get_frame_info,
    )

__all__ = [
    "CompressionParameter",
    "DecompressionParameter",
    "ZstdCompressor",
    "ZstdDecompressor",
    "ZstdDict",
    "ZstdError",
    "compress",
    "decompress",
    "get_frame_info",
]
