"""TensorBoard event files: protocol buffers in frames with checksums."""

from __future__ import annotations

import struct
from collections.abc import Sequence


def checksum(data: bytes) -> int:
    """Compute the masked CRC-32C of data bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 & -(value & 1))
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Frame one record with its length and both checksums."""
    length = struct.pack("<Q", len(data))
    return (
        length
        + struct.pack("<I", checksum(length))
        + data
        + struct.pack("<I", checksum(data))
    )


def varint(value: int) -> bytes:
    data = b""
    while value > 127:
        data += bytes([value & 127 | 128])
        value >>= 7
    return data + bytes([value])


def field(number: int, value: int | float | bytes) -> bytes:
    """Encode a varint, a double, or length-delimited bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def event(step: int, *values: bytes, moment: float = 1774532589.0) -> bytes:
    summary = b"".join(field(1, value) for value in values)
    return frame(
        field(1, moment) + (field(2, step) if step else b"") + field(5, summary)
    )


def scalar(tag: str, value: float) -> bytes:
    return field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)


def tensor_scalar(tag: str, value: float) -> bytes:
    """Encode a scalar as TensorFlow 2 does."""
    tensor = field(1, 1) + field(4, struct.pack("<f", value))
    return field(1, tag.encode()) + field(8, tensor)


def argument(name: str, value: str) -> bytes:
    """Encode an argument as Megatron does."""
    return field(1, f"{name}/text_summary".encode()) + field(
        8, field(1, 7) + field(8, value.encode())
    )


VERSION = frame(field(1, 1774532589.0) + field(3, b"brain.Event:2"))


def event_file(*events: bytes) -> bytes:
    return VERSION + b"".join(events)


def run(seconds: Sequence[float], total: int = 0, first: int = 1) -> bytes:
    """Build the event file of a Megatron run."""
    arguments = (
        [event(0, argument("train_iters", str(total)), argument("seq_length", "8192"))]
        if total
        else []
    )
    steps = [
        event(
            step,
            scalar("lm loss", 7.5),
            scalar("iteration-time", value),
            scalar("throughput", 200 / value),
        )
        for step, value in enumerate(seconds, first)
    ]
    return event_file(*arguments, *steps)
