"""Inputs of `benchmarks.equivalence.same`: real, generated, damaged and long logs.

Long logs have records across the boundaries of blocks.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

from generator.__main__ import shipped
from generator.experiments import write_experiments
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from support.ending_lines import CAUSES, LINES
from support.log_damages import DAMAGES, ENCODINGS, HARMLESS, Damage
from support.log_strategies import NAMES, NOISE, written
from support.written_logs import nemo2_run

from pytest_llmbench.logs import endings
from pytest_llmbench.logs.dialect_table import DIALECTS
from pytest_llmbench.logs.recognisers import CHECKPOINTS, TRACE
from pytest_llmbench.logs.sources.zstd import zstd

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstd.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
}
SEAMS = (1 << 16, 1 << 16, 1 << 18, 1 << 20)
"""What divides the places at which a reader may cut a log, if it cuts its bytes at
all."""

NEAR = (-8192, -512, 0, 512, 8192)
"""How far from such a place a reader may look."""

MIXED, SOUPS, ENDS, LONG = 100, 500, 500, 100
"""How many logs of blocks of real ones, of pieces of what readers look for, with other
ends, and of up to some MiB."""


def real(folder: Path) -> list[Path]:
    """Return the files in the folder of real logs."""
    return sorted(
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size
    )


def compressed(paths: Sequence[Path], root: Path, folder: Path) -> Iterator[Path]:
    """Compress each file with every method in turn, complete and truncated, and archive
    all of them."""
    for number, path in enumerate(paths):
        suffix, method = list(COMPRESS.items())[number % len(COMPRESS)]
        data = method(path.read_bytes())
        for name, kept in (("whole", data), ("cut", data[: len(data) * 2 // 3])):
            yield _write(folder / f"{number}-{path.name}-{name}.{suffix}", kept)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in paths:
            tar.add(path, path.relative_to(root))
    yield _write(folder / "all.tar", packed.getvalue())
    for suffix, method in COMPRESS.items():
        yield _write(folder / f"all.tar.{suffix}", method(packed.getvalue()))


def examples(folder: Path) -> list[Path]:
    """Write the generator's examples, which use each of its options. Returns their
    files."""
    write_experiments(folder, shipped())
    return real(folder)


def whole(folder: Path, count: int) -> Iterator[Path]:
    """Write logs of all dialects as their frameworks do, and in other encodings."""
    for name in NAMES:
        for number, log in enumerate(
            _drawn(written(name).map(lambda log: log.data), count // len(NAMES), 1)
        ):
            yield _write(folder / f"{name}-{number}.log", log)
            for mode, change in (HARMLESS | ENCODINGS).items() if number < 3 else ():
                yield _write(folder / f"{name}-{number}-{mode}.log", change(log))


def damaged(folder: Path, count: int) -> Iterator[Path]:
    """Write damaged logs, the same number for every dialect and kind of damage."""
    each = -(-count // (len(NAMES) * len(DAMAGES)))
    for place, (name, mode) in enumerate(
        (name, mode) for mode in DAMAGES for name in NAMES
    ):
        for number, data in enumerate(
            _drawn(_damaged(name, DAMAGES[mode]), each, place)
        ):
            yield _write(folder / f"{mode}-{name}-{number}.log", data)


def mixed(paths: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Write logs of blocks of lines from all real logs."""
    lines = [path.read_bytes().splitlines(keepends=True) for path in paths]
    for number in range(MIXED):
        random = Random(number)
        yield _write(
            folder / f"mixed-{number}.log",
            b"".join(_blocks(lines, random, random.randrange(10, 120))),
        )


def soups(folder: Path) -> Iterator[Path]:
    """Write random sequences of markers: whole, partial, overlapping."""
    markers = sorted(
        {
            marker
            for one in DIALECTS.values()
            for marker in (*one.markers, *one.starts, *one.ends)
        }.union(endings.MARKERS, CHECKPOINTS.markers, TRACE.markers)
    )
    for number in range(SOUPS):
        random = Random(number)
        yield _write(
            folder / f"soup-{number}.log",
            b"".join(_soup(markers, random, random.randrange(50, 1000))),
        )


def ends(folder: Path) -> Iterator[Path]:
    """Write logs with the last lines of jobs and processes: all known lines and
    tracebacks, single and combined."""
    texts = [f"{line}\n" for line, _ in LINES] + [text for _, text, *_ in CAUSES]
    for number in range(ENDS):
        random = Random(number)
        endings = (
            random.choices(texts, k=random.randrange(1, 4))
            if number >= len(texts)
            else [texts[number]]
        )
        steps = [nemo2_run(0, random.randrange(1, 50)) for _ in endings]
        pieces = [
            piece for pair in zip(steps, endings, strict=True) for piece in pair
        ] + steps[: number % 2]
        yield _write(folder / f"ends-{number}.log", "".join(pieces).encode())


def _soup(markers: Sequence[bytes], random: Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        marker = random.choice(markers)
        begin, end = sorted(random.choices(range(len(marker) + 1), k=2))
        yield random.choice(
            (marker, marker, marker[:end], marker[begin:], marker[begin:end])
        )
        yield random.choice(
            (b"", b"", b"", b" ", b"\n", b"\n", b"\r", b": 7", b"12.5", b" 3/50 ")
        )


def long(
    paths: Sequence[Path], sources: Sequence[Path], folder: Path
) -> Iterator[Path]:
    """Write logs of several MiB, with so much text between lines that records cross
    block boundaries."""
    lines = [path.read_bytes().splitlines(keepends=True) for path in paths] or [
        [f"{one}\n".encode() for one in NOISE]
    ]
    ordinary = [line for several in lines for line in several if len(line) < 400]
    for number, source in zip(
        range(LONG), Random(0).sample(sources, min(LONG, len(sources))), strict=False
    ):
        yield _write(
            folder / f"long-{number}.log",
            _stretched(source.read_bytes(), ordinary, Random(number)),
        )


def _stretched(data: bytes, ordinary: Sequence[bytes], random: Random) -> bytes:
    """Insert fillings between the lines of a log, so that bytes after each are near a
    block boundary."""
    rest = data.splitlines(keepends=True)
    text = b"".join(rest[:1])
    for _ in range(random.randrange(1, 5)):
        kept = random.randrange(1, max(2, len(rest) // 2))
        text, rest = text + b"".join(rest[:kept]), rest[kept:]
        seam = random.choice(SEAMS)
        place = (
            (len(text) // seam + random.randrange(1, 3)) * seam
            + random.choice(NEAR)
            + random.randrange(-20, 20)
        )
        text += _filling(
            max(0, place - len(text) - random.randrange(400)), ordinary, random
        )
    return text + b"".join(rest)


def _filling(size: int, ordinary: Sequence[bytes], random: Random) -> bytes:
    """Return `size` bytes: lines of real logs, or sometimes one endless line, or zeros."""
    if not random.randrange(8):
        return random.choice((b"x", b"\0", b"\n", b"\r", b"step ")) * (size // 5)
    block = b"".join(random.choices(ordinary, k=500))
    return (block * (size // len(block) + 1))[: max(0, size - 1)] + b"\n"


def _blocks(
    lines: Sequence[list[bytes]], random: Random, count: int
) -> Iterator[bytes]:
    for _ in range(count):
        several = random.choice(lines)
        begin = random.randrange(len(several))
        yield from several[begin : begin + random.randrange(1, 60)]


@st.composite
def _damaged(draw: st.DrawFn, name: str, damage: Damage) -> bytes:
    return draw(damage(draw(written(name))))


def _drawn(strategy: st.SearchStrategy[bytes], count: int, number: int) -> list[bytes]:
    """Return examples of a strategy, the same each time."""
    found: list[bytes] = []

    @seed(number)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def take(one: bytes) -> None:
        found.append(one)

    take()
    return found


def _write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
