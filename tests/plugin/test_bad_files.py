"""One bad file costs that file: a night of good runs beside files that nobody can read gives all its verdicts."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import random
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from generator import write_run
from sessions import Judge

from pytest_llmbench.core.models import Baseline
from pytest_llmbench.ingest.sources import compressed, files
from pytest_llmbench.plugin.stash import raise_usage_errors

GROK = "grok1_314b-25.05-gb200-bf16-128"
DIGITS = "9" * 5000
LONG_NUMBERS = (DIGITS, f"1e{DIGITS}", f"-{DIGITS}")
ZEROS = bytes(1 << 25)
LARGE_WINDOW = zstandard.ZstdCompressionParameters.from_level(1, window_log=29)
EXPERIMENT = "experiments/pretrain_grok1_314b_bf16_gpus"
LOG = "log-grok1_314b_3_{}_0.out"  # no baseline has 3 GPUs, so none of them is the newest run of a configuration

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


def make_tar(*members: tuple[str, bytes], size: int | None = None) -> bytes:
    """Return an archive of files; `size` is what the header of each says, whatever its data have."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = stream.getvalue()
    if size is None:
        return data
    head = bytearray(data[:512])
    head[124:136] = b"\x80" + size.to_bytes(11, "big")
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


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


def pack_widely(data: bytes) -> bytes:
    """Return zstd data whose decompression needs 512 MiB of memory."""
    packer = zstandard.ZstdCompressor(compression_params=LARGE_WINDOW).compressobj()
    return packer.compress(data) + packer.flush()


def make_special(name: str, kind: bytes) -> bytes:
    """Return an archive of one member that is no plain file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    return stream.getvalue()


def punch(folder: Path) -> None:
    """Write a log that ends behind a hole which takes no room."""
    with (folder / LOG.format(26)).open("wb") as file:
        file.write(write_steps("1").encode())
        file.truncate(1 << 40)


def link(name: str, target: str) -> Write:
    return lambda folder: (folder / name).symlink_to(target)


def bind(folder: Path) -> None:
    above = Path.cwd()
    os.chdir(folder)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind("log-x_1_0.out")
    finally:
        os.chdir(above)


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
    """Write a log whose time is beyond every calendar, as far as the file system takes it."""
    path = folder / LOG.format(14)
    path.write_text(write_steps("1"))
    os.utime(path, ns=(0, 1 << 62))


NOISE = random.Random(4).randbytes(200_000)  # noqa: S311 (noise, no secret)
BOMB = "no log is compressed like that"
NO_NAME = "is no name of a file"
COMMANDS = "::error::x\n::stop-commands::x\n##[error]x\nsection_start:1:a\r\x1b[0K\x1b[2J=cmd|' /C calc'!A0\n"
"""What CI systems, terminals and spreadsheets would take for something to do."""

RED: dict[str, tuple[Write, str]] = {
    "out-bz2": (file(LOG.format(1) + ".bz2", bz2.compress(ZEROS)), BOMB),
    "out-xz": (file(LOG.format(2) + ".xz", lzma.compress(ZEROS)), BOMB),
    "out-zst": (file(LOG.format(3) + ".zst", zstandard.ZstdCompressor().compress(ZEROS)), BOMB),
    "out-gz": (file(LOG.format(4) + ".gz", gzip.compress(ZEROS)), BOMB),
    "tar-bz2": (file("a.tar.bz2", bz2.compress(make_tar((LOG.format(5), ZEROS)))), BOMB),
    "tar-xz": (file("b.tar.xz", lzma.compress(make_tar((LOG.format(5), ZEROS)))), BOMB),
    "zeros-as-tar": (file("c.tar.bz2", bz2.compress(ZEROS)), BOMB),
    "much-memory": (file(LOG.format(6) + ".zst", pack_widely(b"x" * 9999)), "requires too much memory"),
    "noise-as-bz2": (file(LOG.format(7) + ".bz2", b"BZh91AY&SY" + NOISE), "are damaged after 0 bytes"),
    "noise": (file(LOG.format(8), NOISE), "no baseline fits"),
    "one-line": (file(LOG.format(9), b"iteration " * (1 << 18)), "no baseline fits"),
    "long-numbers": (file(LOG.format(10), "".join(map(write_steps, LONG_NUMBERS))), "no baseline fits"),
    "far-time": (write_far, "no baseline fits"),
    "deep-yaml": (file("llmb-config_13.yaml", "[" * 100_000), "nested too deeply"),
    "yaml-bomb": (file("llmb-config_14.yaml", "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n"), "an alias"),
    "noise-as-yaml": (file("llmb-config_15.yaml", NOISE), "not valid YAML"),
    "long-job": (file("llmb-config_16.yaml", f"job_info: {{job_id: {DIGITS}}}"), "job_id has 5000 letters"),
    "endless-member": (file("d.tar", make_tar((LOG.format(11), b"x" * 600), size=1 << 80)), "ends before its end"),
    "long-name": (file("e.tar", make_tar((LOG.format(DIGITS[:4000]), b"x"))), NO_NAME),
    "long-folder": (file("f.tar", make_tar((f"{EXPERIMENT}{DIGITS[:3000]}/{LOG.format(12)}", b"x"))), NO_NAME),
    "holes": (punch, "the rest are holes"),
    "utf-16": (file(LOG.format(27), write_steps("1").encode("utf-16")), "no baseline fits"),
    "commands": (file(LOG.format(28), f"{write_steps('1')}{COMMANDS}RuntimeError: {COMMANDS}"), "no baseline fits"),
    "odd-name": (file("log-a\x1b[31m\n::error::b_3_29_0.out", write_steps("1")), "nothing says its recipe"),
    "path-up": (file("g.tar", make_tar((f"../../{LOG.format(30)}", b"x"))), "leads out of the archive"),
    "device-in-tar": (file("h.tar", make_special(LOG.format(31), tarfile.CHRTYPE)), "in an archive: not followed"),
    "loop": (link(LOG.format(13), LOG.format(13)), "Too many levels of symbolic links"),
    "deep-folder": (dig, "File name too long"),
}
"""Each with what its item says."""

LEFT_OUT: dict[str, Write] = {
    "zip": file("runs.zip", b"PK\3\4" + NOISE),
    "err-alone": file("log-grok1_314b_3_20_0.err.bz2", bz2.compress(ZEROS)),
    "long-job-in-the-name": file(f"llmb-config_{DIGITS[:230]}.yaml", f"job_info: {{job_id: {DIGITS[:230]}}}"),
    "fifo": lambda folder: os.mkfifo(folder / LOG.format(21)),
    "socket": bind,
    "device": link(LOG.format(22), "/dev/zero"),
    "device-as-bz2": link(LOG.format(23) + ".bz2", "/dev/zero"),
    "device-as-yaml": link("llmb-config_24.yaml", "/dev/zero"),
    "device-as-tar": link("runs.tar", "/dev/zero"),
    "folder": lambda folder: (folder / LOG.format(25)).mkdir(),
    "link-up": link("up", ".."),
    "link-out-of-tar": file("i.tar", make_special(LOG.format(32), tarfile.SYMTYPE)),
}
"""What is no file of a run."""

METADATA = {
    "job_id": DIGITS,
    "scale": DIGITS,
    "gpus_per_node": DIGITS,
    "launch_time": DIGITS,
    "model_size": f"{DIGITS}b",
    "model_name": "x" * 200_000,
}
"""Values of a launcher's record, beside a good log."""


def write_night(folder: Path, baseline: Baseline) -> None:
    for name, write in {**{name: write for name, (write, _) in RED.items()}, **LEFT_OUT}.items():
        (folder / name).mkdir(parents=True)
        write(folder / name)
    for job, (key, value) in enumerate(METADATA.items(), 500):
        (folder / key).mkdir()
        write_run(folder / key, baseline, job_id=str(job))
        (path,) = (folder / key).rglob("llmb-config_*.yaml")
        text, changes = re.subn(rf"(?m)^( +{key}: ).*$", rf"\g<1>{value}", path.read_text())
        assert changes == 1
        path.write_text(text)


@pytest.mark.slow
def test_a_night_beside_bad_files_gives_all_its_verdicts(
    judged: Judge, examples: Path, tmp_path: Path, baselines: dict[str, Baseline]
) -> None:
    alone = judged(f"--llmb-logs={examples}")
    write_night(tmp_path / "bad", baselines[GROK])
    session = judged(f"--llmb-logs={examples}", f"--llmb-logs={tmp_path / 'bad'}")
    assert session.ret == pytest.ExitCode.TESTS_FAILED
    assert len(alone.verdicts) == 83
    assert {name: session.verdicts[name] for name in alone.verdicts} == alone.verdicts
    new = [" ".join(session.messages[name].split()) for name in session.verdicts if name not in alone.verdicts]
    assert all(len(message) < 10_000 for message in new)
    lines = [line for name in session.messages for line in session.messages[name].split("\n")]
    assert not [line for line in lines if line.lstrip().startswith("::") or "##[" in line or not line.isprintable()]
    for name, (_, expected) in RED.items():
        (message,) = (each for each in new if f"/bad/{name}/" in each)
        assert expected in message, name
    for key in METADATA:
        assert any(f"/bad/{key}/" in message for message in new), key
    assert len(new) == len(RED) + len(METADATA)


@pytest.mark.slow
@pytest.mark.parametrize(("most", "code"), [(12, pytest.ExitCode.USAGE_ERROR), (32, pytest.ExitCode.OK)])
def test_a_session_that_may_open_few_files_says_so_or_works(
    pytester: pytest.Pytester, tmp_path: Path, baselines: dict[str, Baseline], most: int, code: pytest.ExitCode
) -> None:
    write_run(tmp_path, baselines[GROK])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--llmb-logs={tmp_path}", "-k", GROK]
    limited = ["sh", "-c", f'ulimit -n {most} && exec "$@"', "sh", *command]
    with (pytester.path / "said").open("w") as said:
        done = subprocess.run(limited, cwd=pytester.path, stdout=said, stderr=said, check=False, timeout=120)
    text = (pytester.path / "said").read_text()
    assert done.returncode == code, text
    assert ("Too many open files: allow this process more" in text) is (most == 12)
    assert "INTERNALERROR" not in text


def test_a_session_without_memory_ends_in_words() -> None:
    def fail() -> None:
        raise MemoryError

    with pytest.raises(pytest.UsageError, match="it takes more memory than there is"):
        raise_usage_errors(fail)


def test_a_place_that_fails_in_the_middle_ends_the_session_in_words() -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "/nfs/llmb/s.json")

    with pytest.raises(pytest.UsageError, match=r"/nfs/llmb/s\.json: Input/output error, expected"):
        raise_usage_errors(fail)


@pytest.mark.slow
def test_a_report_of_pytest_that_cannot_be_written_is_told_below_all_verdicts(
    pytester: pytest.Pytester, baselines: dict[str, Baseline], tmp_path: Path
) -> None:
    write_run(tmp_path / "logs", baselines[GROK])
    arguments = [f"--llmb-logs={tmp_path / 'logs'}", "-k", GROK, "-p", "no:cacheprovider"]
    done = pytester.runpytest_inprocess(*arguments, "--junitxml=/dev/full")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    text = " ".join(done.stdout.str().split())
    assert "INTERNALERROR" not in text
    assert "1 green: 1 PASS" in text
    assert "--junitxml=/dev/full: not written: No space left on device" in text
    assert pytester.runpytest_inprocess(*arguments, f"--junitxml={tmp_path / 'j.xml'}").ret == pytest.ExitCode.OK
