"""Bad files do not hide the verdicts of good runs in the same folder."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from generator import write_run
from support.bad_archives import PACKED
from support.bad_files import KINDS
from support.sessions import Judge

from pytest_llmbench.core.baseline_records import Baseline
from pytest_llmbench.logs.sources import compressed, files
from pytest_llmbench.logs.sources.stores import Stores
from pytest_llmbench.logs.sources.zstd import zstd
from pytest_llmbench.plugin.stash import raise_usage_errors
from pytest_llmbench.runs.discover.discovery import find_runs
from pytest_llmbench.session.catalog import load
from pytest_llmbench.session.collect_runs import ingest
from pytest_llmbench.session.settings import Settings

GROK = "grok1_314b-25.05-gb200-bf16-128"
DIGITS = "9" * 5000
LONG_NUMBERS = (DIGITS, f"1e{DIGITS}", f"-{DIGITS}")
ZEROS = bytes(1 << 25)
# no baseline has 3 GPUs, so none of them is the newest run of a configuration
LOG = "log-grok1_314b_3_{}_0.out"

Write = Callable[[Path], object]
"""Write something into a folder of its own."""


@pytest.fixture(autouse=True)
def _small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call 16 MiB of text suspicious: a gigabyte takes seconds."""
    for module in (files, compressed):
        monkeypatch.setattr(module, "UNSUSPECTED", 1 << 24)


def file(name: str, data: bytes | str) -> Write:
    content = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(content)


def write_steps(number: str) -> str:
    """Return lines of several frameworks with a number in each field."""
    return (
        f"Training epoch 0, iteration {number}/{number} | lr: {number} | global_batch_size: {number} | "
        f"global_step: {number} | reduced_train_loss: {number} | train_step_timing in s: {number}\n"
        f"completed step: {number}, seconds: {number}, TFLOP/s/device: {number}, loss: {number}\n"
        f" iteration {number}/{number} | consumed samples: {number} | elapsed time per iteration (ms): {number} | "
        f"throughput per GPU (TFLOP/s/GPU): {number} | lm loss: {number} |\n"
        f"step: {number} loss: {number} memory: {number}GiB({number}%) tps: {number} tflops: {number} mfu: {number}%\n"
        f"[PAX STATUS] step_i: {number}, training loss: {number}\nStep Time: {number}\n"
        f"{{'loss': {number}, 'grad_norm': {number}, 'learning_rate': {number}, 'epoch': {number}}}\n"
        f"NCCL version {number}.{number}.{number}+cuda{number}\nstarting training loop: {number}/{number}\n"
    )


def punch(folder: Path) -> None:
    """Write a log that ends behind a hole which takes no room."""
    with (folder / LOG.format(26)).open("wb") as file:
        file.write(write_steps("1").encode())
        file.truncate(1 << 40)


def link(name: str, target: str) -> Write:
    return lambda folder: (folder / name).symlink_to(target)


def dig(folder: Path) -> None:
    """Make a path that is longer than the system takes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def write_far(folder: Path) -> None:
    """Write a log whose time is beyond every calendar, as far as the file system takes
    it."""
    path = folder / LOG.format(14)
    path.write_text(write_steps("1"))
    os.utime(path, ns=(0, 1 << 62))


BOMB = "no log compresses like that"
COMMANDS = "::error::x\n::stop-commands::x\n##[error]x\nsection_start:1:a\r\x1b[0K\x1b[2J=cmd|' /C calc'!A0\n"
"""What CI systems, terminals and spreadsheets would take for something to do."""

RED: dict[str, tuple[Write, str]] = {
    "out-zst": (file(LOG.format(3) + ".zst", zstd.compress(ZEROS)), BOMB),
    "long-numbers": (
        file(LOG.format(10), "".join(map(write_steps, LONG_NUMBERS))),
        "no baseline fits",
    ),
    "far-time": (write_far, "no baseline fits"),
    "deep-yaml": (file("llmb-config_13.yaml", "[" * 100_000), "nested too deeply"),
    "holes": (punch, "the rest are holes"),
    "commands": (
        file(LOG.format(28), f"{write_steps('1')}{COMMANDS}RuntimeError: {COMMANDS}"),
        "no baseline fits",
    ),
    "odd-name": (
        file("log-a\x1b[31m\n::error::b_3_29_0.out", write_steps("1")),
        "not stated: recipe",
    ),
    "deep-folder": (dig, "File name too long"),
}
"""Each with what its item says."""

LEFT_OUT: dict[str, Write] = {
    "fifo": lambda folder: os.mkfifo(folder / LOG.format(21)),
    "device": link(LOG.format(22), "/dev/zero"),
    "link-up": link("up", ".."),
}
"""What is no file of a run."""

METADATA = {
    "job_id": DIGITS,
    "scale": DIGITS,
    "model_name": "x" * 200_000,
}
"""Values of a launcher's record, beside a good log."""


def write_night(folder: Path, baseline: Baseline) -> None:
    for name, write in {
        **{name: write for name, (write, _) in RED.items()},
        **LEFT_OUT,
    }.items():
        (folder / name).mkdir(parents=True)
        write(folder / name)
    for job, (key, value) in enumerate(METADATA.items(), 500):
        (folder / key).mkdir()
        write_run(folder / key, baseline, job_id=str(job))
        (path,) = (folder / key).rglob("llmb-config_*.yaml")
        text, changes = re.subn(
            rf"(?m)^( +{key}: ).*$", rf"\g<1>{value}", path.read_text()
        )
        assert changes == 1
        path.write_text(text)


@pytest.mark.slow
def test_bad_files_hide_no_verdict_of_good_runs(
    judged: Judge, examples: Path, tmp_path: Path, baselines: dict[str, Baseline]
) -> None:
    alone = judged(f"--llmb-logs={examples}")
    write_night(tmp_path / "bad", baselines[GROK])
    session = judged(f"--llmb-logs={examples}", f"--llmb-logs={tmp_path / 'bad'}")
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert len(alone.verdicts) == 83
    assert {name: session.verdicts[name] for name in alone.verdicts} == alone.verdicts
    new = [
        " ".join(session.messages[name].split())
        for name in session.verdicts
        if name not in alone.verdicts
    ]
    assert all(len(message) < 10_000 for message in new)
    lines = [
        line for name in session.messages for line in session.messages[name].split("\n")
    ]
    assert not [
        line
        for line in lines
        if line.lstrip().startswith("::") or "##[" in line or not line.isprintable()
    ]
    for name, (_, expected) in RED.items():
        (message,) = (message for message in new if f"/bad/{name}/" in message)
        assert expected in message, name
    for key in METADATA:
        assert any(f"/bad/{key}/" in message for message in new), key
    assert len(new) == len(RED) + len(METADATA)


SILENT = {"parquet", "name-dots", "name-silly"}
"""What no user takes for a run: data, a hidden file, and a file that a file server
keeps until its reader ends."""


def list_left_out(folder: Path) -> set[str]:
    """Return the kinds with a file that is listed as left out."""
    search = find_runs([folder], Stores())
    ingested = ingest(Settings(logs=(folder,)), load(Settings()), datetime.now(UTC))
    paths = [path for path, _ in search.ignored] + [
        path for path, _, _ in search.hidden
    ]
    paths += [
        run.attempts[0].log for run in search.metrics
    ]  # next to logs of other runs they are listed
    return {path.relative_to(folder).parts[0] for path in paths}.union(
        file.name.partition("/")[0] for file in ingested.ignored
    )


@pytest.mark.slow
def test_each_kind_of_bad_file_is_reported(
    judged: Judge, examples: Path, tmp_path: Path
) -> None:
    kinds = {**PACKED, **KINDS}
    for name, write in kinds.items():
        (tmp_path / "bad" / name).mkdir(parents=True)
        write(tmp_path / "bad" / name)
    alone = judged(f"--llmb-logs={examples}")
    session = judged(f"--llmb-logs={examples}", f"--llmb-logs={tmp_path / 'bad'}")
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert {name: session.verdicts[name] for name in alone.verdicts} == alone.verdicts
    messages = [
        "".join(session.messages[name].split())
        for name in session.verdicts
        if name not in alone.verdicts
    ]
    items = {
        name
        for name in kinds
        if any(f"/bad/{name}/" in message for message in messages)
    }
    assert kinds.keys() - items - list_left_out(tmp_path / "bad") == SILENT
    assert len(items) > 130


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "code"), [(12, pytest.ExitCode.USAGE_ERROR), (32, pytest.ExitCode.OK)]
)
def test_session_passes_with_32_file_handles_and_is_refused_with_12(
    pytester: pytest.Pytester,
    tmp_path: Path,
    baselines: dict[str, Baseline],
    most: int,
    code: pytest.ExitCode,
) -> None:
    write_run(tmp_path, baselines[GROK])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        f"--llmb-logs={tmp_path}",
        "-k",
        GROK,
    ]
    limited = ["sh", "-c", f'ulimit -n {most} && exec "$@"', "sh", *command]
    with (pytester.path / "said").open("w") as said:
        process = subprocess.run(
            limited,
            cwd=pytester.path,
            stdout=said,
            stderr=said,
            check=False,
            timeout=120,
        )
    text = (pytester.path / "said").read_text()
    assert process.returncode == code, text
    assert ("Too many open files: raise the limit of open files" in text) is (
        most == 12
    )
    assert "INTERNALERROR" not in text


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory: allow more memory"),
        (
            OSError(errno.EIO, "Input/output error", "/nfs/llmb/s.json"),
            r"/nfs/llmb/s\.json: Input/output error; make the path readable",
        ),
    ],
    ids=["memory", "disk"],
)
def test_system_error_ends_the_session_as_usage_error(
    error: Exception, message: str
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(pytest.UsageError, match=message):
        raise_usage_errors(fail)


@pytest.mark.slow
def test_unwritable_junitxml_is_reported_after_the_verdicts(
    pytester: pytest.Pytester, baselines: dict[str, Baseline], tmp_path: Path
) -> None:
    write_run(tmp_path / "logs", baselines[GROK])
    arguments = [
        f"--llmb-logs={tmp_path / 'logs'}",
        "-k",
        GROK,
        "-p",
        "no:cacheprovider",
    ]
    result = pytester.runpytest_inprocess(*arguments, "--junitxml=/dev/full")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = " ".join(result.stdout.str().split())
    assert "INTERNALERROR" not in text
    assert "1 green: 1 PASS" in text
    assert "--junitxml=/dev/full: not written: No space left on device" in text
    assert (
        pytester.runpytest_inprocess(*arguments, f"--junitxml={tmp_path / 'j.xml'}").ret
        == pytest.ExitCode.OK
    )
