"""What fuzzing starts from: small files that our own generator writes, and the words that readers look for."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import zstandard
from fuzz.targets import SUFFIXES
from generator import lines
from generator.metadata import LAUNCHERS, metadata_text
from generator.plan import Plan
from generator.runs import own_job
from log_strategies import FRAMEWORKS, write

from pytest_llmbench.baseline.read import find_baseline_files, find_shipped_baselines, read_recipe
from pytest_llmbench.core.dialects import DIALECTS
from pytest_llmbench.ingest.parse.collect import STEP_MARKERS
from pytest_llmbench.ingest.parse.endings import MARKERS as ENDING_MARKERS
from pytest_llmbench.ingest.parse.facts import NCCL_OPERATION

MOMENT = datetime(2026, 5, 4, 6, 5, 54, tzinfo=UTC)
BASELINE_BYTES = 4000
FINDINGS = Path(__file__).parent / "findings"

YAML_WORDS = (b": ", b"- ", b"\n", b"&a", b"*a", b"!!", b"{", b"}", b"[", b"]", b"|", b">", b"---", b"'", b'"', b"~")
ARCHIVE_WORDS = (b"ustar", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh9", b"\xfd7zXZ\x00", b"../", b"log-x_1.out")


def logs() -> list[bytes]:
    """Return a log of each framework, one of two ranks and restarts, and one with all that stands around steps."""
    simple = [write(how, first=1, lengths=(4,), prefixes=("",), starts=False, seed=3) for how in FRAMEWORKS.values()]
    ranks = [write(how, first=1, lengths=(4, 5), prefixes=how.prefixes[-1], starts=True, seed=4)
             for how in FRAMEWORKS.values()]  # fmt: skip
    around = [
        lines.checkpoint_load(MOMENT, 1744407969.27, 9.712),
        lines.checkpoint_save(MOMENT, 50, 1744408121.151, 4.389),
        lines.nccl_collective(7, "AllReduce", 2, 1, 128),
        lines.fit_stopped(50),
        lines.huggingface_summary(2577.7505, 95.339, 0.745, 1.5),
        lines.slurm_cancelled("1999616", "r6i4n5", MOMENT, "TIME LIMIT"),
        "srun: error: node-1: task 3: Exited with exit code 1",
        "0: Traceback (most recent call last):\n0:   File 'a.py', line 1\n0: ValueError: no",
    ]
    return [*(each.data for each in simple + ranks), "\n".join([*around, ""]).encode()]


def records() -> list[bytes]:
    """Return metadata as launchers write it."""
    recipes = [read_recipe(path) for path in find_baseline_files([find_shipped_baselines()])]
    plans = (Plan(recipe.baselines[0], **own_job(recipe.baselines[0])) for recipe in recipes)
    return [metadata_text(plan).encode() for plan in plans if plan.layout_name in LAUNCHERS]


def baselines() -> list[bytes]:
    """Return the beginnings of the documented baselines, cut after a whole block, and a whole small file."""
    texts = [path.read_bytes() for path in find_baseline_files([find_shipped_baselines()])]
    return [min(texts, key=len), *(text[: text.find(b"\n", BASELINE_BYTES) + 1] for text in texts)]


def archives() -> list[bytes]:
    """Return a log in every form that `archive` chooses by the first byte."""
    data = logs()[2]
    packed = _tar(data)
    zstd = zstandard.ZstdCompressor().compress
    forms = (packed, gzip.compress(packed), zstd(packed), gzip.compress(data), zstd(data), data, lzma.compress(data))
    return [bytes([number]) + form for number, form in enumerate((*forms, bz2.compress(data)))]


def _tar(data: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name in ("llmb-archive-1/x/log-x_1_0.out", "llmb-archive-1/x/llmb-config_1.yaml"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def seeds(target: str) -> list[bytes]:
    """Return what fuzzing of a target starts from, without and with all that was found before."""
    made = {"log": logs, "metadata": records, "baseline": baselines, "archive": archives}[target]()
    return [b"", *made, *findings(target)]


def findings(target: str) -> list[bytes]:
    """Return the inputs that once broke a target."""
    return [path.read_bytes() for path in sorted(FINDINGS.glob(f"{target}-*.bin"))]


def words(target: str) -> list[bytes]:
    """Return the pieces that inputs of a target are made of."""
    if target == "log":
        marks = [mark for dialect in DIALECTS.values() for mark in (*dialect.starts, *dialect.ends)]
        return list(dict.fromkeys([*STEP_MARKERS, *marks, *ENDING_MARKERS, NCCL_OPERATION, *_fields()]))
    if target == "archive":
        return [*ARCHIVE_WORDS, *(suffix.encode() for suffix in SUFFIXES)]
    keys = {key for text in seeds(target) for key in re.findall(rb"[a-z_]{3,40}:", text)}
    return [*YAML_WORDS, *sorted(keys)]


def _fields() -> list[bytes]:
    """Return the names of fields and the signs around them, from the logs themselves."""
    text = b"".join(logs())
    return sorted({match[0] for match in re.finditer(rb"[A-Za-z_][A-Za-z_/ ]{2,30} ?[:=] ?| \| |\]|\r|e\+", text)})
