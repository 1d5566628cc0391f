"""Fuzz targets of files in --llmb-logs: logs, launchers' records, archives, names and
secrets."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from fuzz.laws import (
    Finding,
    empty_folder,
    make_path,
    refusals,
    require,
    require_printable,
    require_types,
    written,
)
from fuzz.log_seeds import logs, records
from generator.bridge import COMMAND_TEXT, SCRIPT_TEXT, BridgeRun, make_configuration
from support import event_files
from support.exact_comparison import to_bits
from support.log_laws import find_problems

from pytest_llmbench.baseline.read import find_shipped_tables, read_recipes
from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.core.errors import LogError
from pytest_llmbench.core.log_records import ParsedLog
from pytest_llmbench.core.redaction import Redactor
from pytest_llmbench.core.run_records import AttemptFiles, RunFiles
from pytest_llmbench.logs.definitions import load_definitions
from pytest_llmbench.logs.growing import Growing
from pytest_llmbench.logs.log_reader import parse_blocks, read_log
from pytest_llmbench.logs.sources.compressed import Stream
from pytest_llmbench.logs.sources.zstd import zstd
from pytest_llmbench.runs.layouts.megatron_bridge import Companions, collect_hints
from pytest_llmbench.runs.layouts.metadata import interpret, parse
from pytest_llmbench.session.catalog import Catalog
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

NOW = datetime(2026, 6, 1, tzinfo=UTC)
BLOCKS = 7


def check_log(data: bytes, definitions: tuple[RegexDialect, ...] = ()) -> None:
    """Parsing raises no error, does not depend on blocks, and gives consistent results."""
    whole = parse_blocks([data], definitions)
    require(
        to_bits(parse_blocks(cut_blocks(data), definitions)) == to_bits(whole),
        "the blocks of the log change what is read",
    )
    require_types(whole, ParsedLog)
    for problem in find_problems(whole):
        raise Finding(problem)


def check_shipped(data: bytes) -> None:
    """The same for a log that is read with the shipped definitions."""
    check_log(data, tuple(load_definitions().values()))


def cut_blocks(data: bytes) -> list[bytes]:
    size = len(data) // BLOCKS + 1
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


def check_metrics(data: bytes) -> None:
    """A file of metrics becomes a LogError or a log, whatever its blocks.

    The same holds for its bytes as one complete record.
    """
    record = event_files.VERSION + event_files.frame(data)
    for name, content in (
        ("events", data),
        ("events", record),
        ("a.csv", data),
        ("a.jsonl", data),
    ):
        whole, cut = (
            read_metrics(name, [content]),
            read_metrics(name, cut_blocks(content)),
        )
        require(
            whole == cut,
            "the blocks that a file of metrics comes in change what is read",
        )


def read_metrics(name: str, blocks: list[bytes]) -> object:
    try:
        return to_bits(read_log(Stream(blocks, Path(name))))
    except LogError:
        return "damaged"


def metric_seeds() -> list[bytes]:
    """Return a file of each kind, and the contents of an event."""
    table = b"step,train_step_timing in s,reduced_train_loss\n0,9.5,12.0\n1,0.5,11.0\n"
    objects = b'{"step": 3, "perf/step_time_seconds": 0.5}\n{"step": 4, "perf/step_time_seconds": 0.25}\n'
    values = (
        event_files.scalar("iteration-time", 0.5),
        event_files.argument("train_iters", "5"),
    )
    return [
        event_files.run([0.5, 0.25], total=3),
        event_files.event(3, *values)[12:-4],
        table,
        objects,
    ]


def check_growing(data: bytes) -> None:
    """A log that is read while it grows finally equals the log read as a whole."""
    with empty_folder() as folder:
        path = folder / "log-x_1.out"
        growing = Growing(path)
        for end in (len(data) // 3, len(data) // 2, len(data)):
            path.write_bytes(data[:end])
            signs, step = growing.find_life_signs(), growing.find_last_step()
            require_types(signs, type(signs))
            require(
                step is None or (step.done > 0 and step.seconds >= 0),
                "a step that is none",
            )
        require(
            to_bits(growing.read()) == to_bits(parse_blocks([data])),
            "a growing log that says something else",
        )


def check_metadata(data: bytes) -> None:
    """A launcher's record of a job is read, or a LogError states the reason."""
    with refusals(LogError, naming=""):
        interpret(parse(data), "llmb-config_1.yaml", "1")


def check_companions(data: bytes) -> None:
    """The script and configuration of a Megatron-Bridge log give short texts or
    nothing."""
    script, _, configuration = data.decode("utf-8", "replace").partition("\0")
    folder = Path("/runs/pretrain_llama3_70b_fp8_mx_gpus64_gb300")
    run = RunFiles(
        folder.name, str(folder), (AttemptFiles(0, str(folder), "log-a_1_0.out"),), ()
    )
    for hint in collect_hints(
        run, (), Companions(script, configuration), {"26.04", "26.04.01"}
    ):
        require(
            0 < len(hint.value) <= 50 and hint.value.isprintable(),
            f"a {hint.field} that is none",
        )


def companion_seeds() -> list[bytes]:
    """Return the files next to the logs of two runs."""
    tables = read_recipes([find_shipped_tables()])
    runs = [BridgeRun(recipe.baselines[0]) for recipe in (tables[0], tables[-1])]
    script = f"{SCRIPT_TEXT}\n{COMMAND_TEXT}"
    texts = (
        (
            script.format(**run.values, experiment=run.experiment),
            make_configuration(run.values),
        )
        for run in runs
    )
    return ["\0".join(pair).encode() for pair in texts]


# --- archives and compressed logs -----------------------------------------------------

SUFFIXES = (
    *(
        ".tar",
        ".tar.gz",
        ".tar.zst",
        ".out.gz",
        ".out.zst",
        ".out",
        ".out.xz",
        ".out.bz2",
        ".tar.xz",
        ".tar.bz2",
    ),
    *(
        ".tgz",
        ".tzst",
        ".txz",
        ".tbz",
        ".tbz2",
        ".err",
        ".err.gz",
        ".err.zst",
        ".err.xz",
        ".err.bz2",
        ".log",
        ".txt",
    ),
)


@cache
def archive_seeds() -> list[bytes]:
    """Return a log in each format that `check_archive` selects by the first byte, and
    multi-part streams."""
    log = logs()[2]
    packed = _make_tar(log)
    pack: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "zst": zstd.compress,
        "xz": lzma.compress,
        "bz2": bz2.compress,
        "": bytes,
    }
    short = {"tgz": "gz", "tzst": "zst", "txz": "xz", "tbz": "bz2", "tbz2": "bz2"}
    seeds = []
    for number, suffix in enumerate(SUFFIXES):
        kind = suffix.rpartition(".")[2]
        mode = pack[short.get(kind, kind if kind in pack else "")]
        text = packed if "tar" in suffix or kind in short else log
        seeds.append(bytes([number]) + mode(text))
    several = gzip.compress(log[:900]) + gzip.compress(log[900:]) + bytes(99)
    bomb = bz2.compress(bytes(1 << 22))
    return [
        *seeds,
        bytes([3]) + several,
        bytes([7]) + bomb,
        bytes([4]) + zstd.compress(log[:900]) + zstd.compress(log[900:]),
    ]


def _make_tar(log: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        for name in (
            "llmb-archive-1/x/log-x_1_0.out",
            "llmb-archive-1/x/llmb-config_1.yaml",
        ):
            member = tarfile.TarInfo(name)
            member.size = len(log)
            file.addfile(member, io.BytesIO(log))
    return stream.getvalue()


def check_archive(data: bytes) -> None:
    """Archives and compressed logs are read or reported. The first byte selects the
    suffix."""
    if data:
        with written(f"log-x_1{SUFFIXES[data[0] % len(SUFFIXES)]}", data[1:]) as path:
            _check_folder(path.parent)


def _check_folder(folder: Path) -> None:
    result = ingest(Settings(logs=(folder,)), Catalog((), {}), NOW)
    for run in result.runs:
        require_printable(run.found.id, "a run's id")
        require("\n" not in run.found.id, "a run whose id has lines")


# --- names ----------------------------------------------------------------------------

RUN = "experiments/pretrain_grok1_314b_bf16_gpus128/pretrain_grok1_314b_bf16_gpus128_1795213837/grok1"
NAMES = (
    f"{RUN}/log-account.grok1_1_0.out\n{RUN}/llmb-config_1.yaml\n{RUN}/sbatch_x_1.out\n{RUN}/log-account.grok1_1_0.err",
    "results/llama3.1_8b_fp8_8gpus/log_7.out.gz\nresults/llama3.1_8b_fp8_8gpus/x_nsys/profile_1.nsys-rep",
    "slurm-4711_3.out\nslurm-4711.err\nnsys_profile/a.nsys-rep\nlogs/2026-05-04T06:05:54/x.log\na.out.bak\nb.tar",
    "workloads/pretrain_x/experiments/E_nsys/E_1795213837/a_stdout.txt\nworkloads/pretrain_x/experiments/E/E_1/b.log",
)


def check_names(data: bytes) -> None:
    """Files and folders of any name are read, reported or ignored."""
    log, record = logs()[2], records()[0]
    with empty_folder() as folder:
        for line in data.split(b"\n")[:20]:
            if path := make_path(folder, line):
                path.write_bytes(record if path.suffix == ".yaml" else log)
        _check_folder(folder)


# --- text with secrets ----------------------------------------------------------------

SECRET = "s3cret-Value+1"
TEXTS = (
    f"export HF_TOKEN={SECRET}; curl https://user:{SECRET}@host/x?token=abc&sig=def",
    "hf_"
    + "a1B2" * 9
    + " ghp_"
    + "x9Y8" * 9
    + " AKIA"
    + "A1B2" * 4
    + " bearer abcdefgh12345678ijkl",
    "postgresql://u:p@h/d postgresql:/u:p@h zip://a::https://u:p@h host=h password='a b' s3://key:x@h",
    f"s3cret%2DValue%2B1 's3cret-Value+1' {SECRET[:9]}… s3cret-Va...",
)


def check_secret(data: bytes) -> None:
    """No text contains a known secret after redaction."""
    redactor = Redactor([SECRET])
    hidden = redactor.redact(data.decode("utf-8", "replace"))
    require(SECRET not in hidden, "a secret that stays")
    require(SECRET not in redactor.redact(hidden), "a secret that comes back")
