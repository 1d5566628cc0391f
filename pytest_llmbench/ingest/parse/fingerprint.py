"""What tells copies of a text from other texts without hashing gigabytes."""

from __future__ import annotations

import zlib

# So many bytes at the beginning count all, and then the first SAMPLE of every SPAN.
WHOLE = 1 << 20

SPAN = 1 << 18
SAMPLE = 4096


class Fingerprint:
    """Size and a checksum of samples of a text that is taken in order: equal for copies of it, however compressed.

    Others of the same size differ with near certainty where they differ in a sample; in a longer text they need not, so
    whoever looks for copies compares what was read from them as well.
    """

    def __init__(self) -> None:
        """Begin with an empty text."""
        self._checksum = 0

    def take(self, sample: bytes) -> None:
        """Take the sample of the next bytes."""
        self._checksum = zlib.crc32(sample, self._checksum)

    def digest(self, size: int) -> str:
        """Return it as one word, now that the size of the text is known."""
        return f"{size:x}-{self._checksum:08x}"


def take_sample(offset: int, data: bytes | memoryview) -> bytes:
    """Return what counts of the bytes at a place of a text."""
    begins = (offset, *range(offset - offset % SPAN + SPAN, offset + len(data), SPAN))
    return b"".join(data[begin - offset : begin - offset + _count_bytes(begin)] for begin in begins)


def _count_bytes(offset: int) -> int:
    """Return how many bytes from a place on, up to the end of its span, count."""
    inside = offset % SPAN
    return SPAN - inside if offset < WHOLE else max(0, SAMPLE - inside)
