"""Broken files as disks, jobs, copy programs and compressors leave them."""

from __future__ import annotations

import gzip
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from support.event_files import event, frame, scalar

Write = Callable[[Path], object]
"""Write files into an empty folder."""

LINES = "".join(
    f"Training epoch 0, iteration {step}/99 | lr: 1e-4 | global_batch_size: 128 | global_step: {step} | "
    f"reduced_train_loss: 9.5 | train_step_timing in s: 7.5\n"
    for step in range(30)
)
DEEP = 100_000
STEPS = LINES.encode()
# No baseline has 3 GPUs, so these runs never become the newest of a configuration.
NAME = "log-grok1_314b_3_{}_0.out"
LOG = NAME.format(7)


def file(name: str, data: bytes | str) -> Write:
    content = data.encode() if isinstance(data, str) else data
    return lambda folder: (folder / name).write_bytes(content)


def raw_name(name: bytes, data: bytes = STEPS) -> Write:
    """Write a file whose name consists of arbitrary bytes."""

    def write(folder: Path) -> None:
        with open(os.path.join(os.fsencode(folder), name), "wb") as handle:
            handle.write(data)

    return write


def link(name: str, target: str) -> Write:
    return lambda folder: (folder / name).symlink_to(target)


def combine(*writes: Write) -> Write:
    return lambda folder: [write(folder) for write in writes]


def empty_folder(name: str) -> Write:
    return lambda folder: (folder / name).mkdir()


def fifo(name: str) -> Write:
    return lambda folder: os.mkfifo(folder / name)


def within(name: str, write: Write) -> Write:
    """Apply `write` to a new subfolder."""

    def write_within(folder: Path) -> None:
        (folder / name).mkdir()
        write(folder / name)

    return write_within


def sparse(name: str, size: int, start: bytes = b"") -> Write:
    def write(folder: Path) -> None:
        with (folder / name).open("wb") as handle:
            handle.write(start)
            handle.truncate(size)

    return write


def dated(nanoseconds: int) -> Write:
    def write(folder: Path) -> None:
        (folder / LOG).write_bytes(STEPS)
        os.utime(folder / LOG, ns=(0, nanoseconds))

    return write


def leave_socket(folder: Path) -> None:
    """Create a socket with the name of a log."""
    with socket.socket(socket.AF_UNIX) as server:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{descriptor}/{LOG}")
        finally:
            os.close(descriptor)


def link_chain(folder: Path, links: int = 60) -> None:
    """Create a chain of links that is longer than the system follows."""
    (folder / "0.out").write_bytes(STEPS)
    for number in range(1, links):
        (folder / f"{number}.link").symlink_to(
            f"{number - 1}.link" if number > 1 else "0.out"
        )
    (folder / LOG).symlink_to(f"{links - 1}.link")


def nest_folders(folder: Path, depth: int, name: str) -> None:
    """Create `depth` nested folders, with a small file in the innermost."""
    folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=descriptor)
        inner = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    handle = os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=descriptor)
    os.write(handle, b"hello\n")
    os.close(handle)
    os.close(descriptor)


def remove_nested_folders(folder: Path) -> None:
    """Remove the folders of `nest_folders`, for which `shutil.rmtree` recurses too
    deep."""
    subprocess.run(["rm", "-rf", folder], check=True)


def patch(data: bytes, offset: int, new: bytes) -> bytes:
    return data[:offset] + new + data[offset + len(new) :]


GZ = gzip.compress(STEPS)
EVENTS = frame(b"\x09" + bytes(8) + b"\x1a\x0dbrain.Event:2") + b"".join(
    event(step, scalar("iteration-time", 7.5), scalar("lm loss", 9.5))
    for step in range(30)
)
EVENT_NAME = "events.out.tfevents.1774532589.node.1.0"
CSV = "step,train_step_timing in s,reduced_train_loss\n" + "".join(
    f"{step},7.5,9.5\n" for step in range(30)
)
METADATA = "llmb-config_7.yaml"


METRICS: dict[str, Write] = {
    "events-crc": file(EVENT_NAME, patch(EVENTS, 200, b"\0\0\0\0")),
    "events-endless": file(EVENT_NAME, EVENTS + b"\xff" * 7 + b"\x7f" + bytes(20)),
    "events-cut": file(EVENT_NAME, EVENTS[:-10]),
    "events-header-only": file(EVENT_NAME, EVENTS[:40]),
    "events-holes": sparse(EVENT_NAME, 2 << 30, EVENTS),
    "events-folder": empty_folder(EVENT_NAME),
    "csv-nul": file("metrics.csv", CSV.replace("7.5", "7\0.5")),
    "csv-columns": file(
        "metrics.csv",
        "step,train_step_timing in s," + ",".join(map(str, range(100_000))) + "\n1,2\n",
    ),
    "csv-quotes": file("metrics.csv", CSV + '"' + CSV),
    "csv-utf-16": file("metrics.csv", CSV.encode("utf-16")),
    "csv-header-only": file("metrics.csv", CSV.partition("\n")[0]),
    "csv-carriage-returns": file("metrics.csv", CSV.replace("\n", "\r")),
    "csv-huge": file("metrics.csv", CSV.replace("7.5", "9" * 5000)),
    "jsonl-deep": file(
        "metrics.jsonl",
        '{"step": 1, "train_step_timing in s": 7.5, "x": ' + "[" * DEEP + "\n",
    ),
    "jsonl-deep-first": file("metrics.jsonl", "[" * DEEP),
    "jsonl-nan": file(
        "metrics.jsonl", '{"step": NaN, "train_step_timing in s": -Infinity}\n' * 30
    ),
    "jsonl-keys-twice": file(
        "metrics.jsonl", '{"step": 1, "step": 2, "train_step_timing in s": 7.5}\n' * 30
    ),
    "jsonl-huge": file(
        "metrics.jsonl", f'{{"step": {"9" * 5000}, "train_step_timing in s": 1e999}}\n'
    ),
    "jsonl-surrogates": file(
        "metrics.jsonl",
        '{"step": 1, "train_step_timing in s": 7.5, "\\ud800": "\\udfff"}\n' * 30,
    ),
    "json-deep": file("trainer_state.json", '{"log_history": ' + "[" * DEEP),
    "json-cut": file("trainer_state.json", '{"log_history": [{"step": 1, "loss"'),
    "json-binary": file("trainer_state.json", bytes(range(256)) * 9),
    "parquet": file("metrics.parquet", b"PAR1" + STEPS + b"\xff\xff\xff\x7fPAR1"),
}

METADATA_FILES: dict[str, Write] = {
    "yaml-empty": file(METADATA, ""),
    "yaml-list": file(METADATA, "- a\n- b\n"),
    "yaml-text": file(METADATA, "hello"),
    "yaml-binary": file(METADATA, bytes(range(256)) * 9),
    "yaml-utf-16": file(METADATA, "job_info:\n  job_id: 7\n".encode("utf-16")),
    "yaml-not-utf-8": file(METADATA, b"job_info:\n  job_id: \xff\xfe\n"),
    "yaml-tabs": file(METADATA, "job_info:\n\tjob_id: 7\n"),
    "yaml-tag": file(
        METADATA, "job_info: !!python/object/apply:os.system ['touch /tmp/owned']\n"
    ),
    "yaml-holds-itself": file(METADATA, "job_info: &a [*a]\n"),
    "yaml-bomb": file(
        METADATA,
        "a0: &a0 x\n"
        + "".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 20)
        ),
    ),
    "yaml-merge": file(METADATA, "job_info:\n  <<: *nothing\n"),
    "yaml-two-documents": file(
        METADATA, "job_info:\n  job_id: 7\n---\njob_info:\n  job_id: 8\n"
    ),
    "yaml-key-twice": file(
        METADATA, "job_info:\n  job_id: 7\njob_info:\n  job_id: 8\n"
    ),
    "yaml-odd-key": file(METADATA, "? [a, b]\n: c\n"),
    "yaml-deep": file(METADATA, "{a: " * DEEP),
    "yaml-deep-lines": file(METADATA, "".join(" " * n + "a:\n" for n in range(600))),
    "yaml-deep-list": file(
        METADATA, "container_info:\n  images: " + "[" * 15 + "]" * 15 + "\n"
    ),
    "yaml-cut": file(METADATA, 'job_info:\n  job_id: "7'),
    "yaml-directive": file(METADATA, "%YAML 9.9\n---\njob_info: {}\n"),
    "yaml-large": file(METADATA, "a: b\n#" + "x" * 300_000),
    "yaml-other-job": file(METADATA, "job_info:\n  job_id: 8\n"),
    "yaml-types": file(
        METADATA,
        "job_info: [1]\nworkload_info: 7\nmodel_info: {model_name: {a: b}, scale: [1]}\ncluster_info: x\n"
        "container_info: {images: {a: [{b: c}]}}\njob_config: {env_overrides: [x], model_overrides: 3}\n",
    ),
    "yaml-time-of-year-0": file(
        METADATA, "job_info: {job_id: 7, launch_time: 0000-01-01T00:00:00}\n"
    ),
    "yaml-time-of-year-1": file(
        METADATA, "job_info: {job_id: 7, launch_time: '0001-01-01T00:00:00+14:00'}\n"
    ),
    "yaml-time-of-year-9999": file(
        METADATA, "job_info: {job_id: 7, launch_time: '9999-12-31T23:59:59-14:00'}\n"
    ),
    "yaml-time-of-words": file(
        METADATA, "job_info: {job_id: 7, launch_time: [yesterday]}\n"
    ),
    "yaml-folder": empty_folder(METADATA),
    "yaml-fifo": fifo(METADATA),
    "yaml-link-to-itself": link(METADATA, METADATA),
    "yaml-link-to-zero": link(METADATA, "/dev/zero"),
    "yaml-holes": sparse(METADATA, 2 << 30),
}

LOGS: dict[str, Write] = {
    "log-empty": file(LOG, b""),
    "log-line-feed": file(LOG, b"\n"),
    "log-carriage-returns": file(LOG, STEPS.replace(b"\n", b"\r")),
    "log-utf-16": file(LOG, LINES.encode("utf-16")),
    "log-utf-16-without-mark": file(LOG, LINES.encode("utf-16-be")),
    "log-utf-32": file(LOG, LINES.encode("utf-32")),
    "log-byte-order-mark": file(LOG, LINES.encode("utf-8-sig")),
    "log-nul-holes": file(LOG, STEPS.replace(b"\n", b"\n" + bytes(4096), 9)),
    "log-nul-between": file(
        LOG, b"\0".join(STEPS[i : i + 1] for i in range(len(STEPS)))
    ),
    "log-mixed-encodings": file(
        LOG, STEPS + b"\xe4\xf6\xfc\n" + "äöü\n".encode() + b"\xff\xfe\0\n"
    ),
    "log-surrogates": file(
        LOG, STEPS + b"\xed\xa0\x80\xed\xb0\x80 RuntimeError: \xed\xa0\x80\n"
    ),
    "log-half-a-character": file(LOG, STEPS + "ä".encode()[:1]),
    "log-long-line": file(LOG, STEPS + b"x" * (2 << 20) + b"\n" + STEPS),
    "log-of-one-line": file(LOG, STEPS.replace(b"\n", b" ") * 20),
    "log-escapes": file(LOG, STEPS + b"\x1b[2J\x1b]0;x\x07\x1b[31m" * 50_000),
    "log-backspaces": file(LOG, STEPS + b"a\x08" * 50_000),
    "log-form-feeds": file(LOG, STEPS.replace(b"\n", b"\x0c\x0b\x85\n")),
    "log-brackets": file(
        LOG,
        "{'loss': " * DEEP
        + "\n"
        + ":::MLLOG "
        + '{"a":' * DEEP
        + "\n"
        + "[" * DEEP
        + "\n"
        + LINES,
    ),
    "log-year-0": file(
        LOG,
        "0000-00-00 00:00:00 start\n0000-01-01T00:00:00Z x\n9999-12-31T23:59:59-14:00 x\n"
        + LINES,
    ),
    "log-far-dates": file(
        LOG,
        "".join(
            f"[{year}-02-30 25:61:61] {line}\n"
            for year in (1, 99999)
            for line in LINES.split("\n")
        ),
    ),
    "log-shrinking-steps": file(LOG, LINES[::-1]),
    "log-random": file(LOG, bytes(n * 167 % 256 for n in range(100_000))),
    "log-elf": file(LOG, b"\x7fELF" + bytes(range(256)) * 99),
    "log-pickle": file(LOG, b"\x80\x04cos\nsystem\n(S'touch /tmp/owned'\ntR."),
    "log-html": file(LOG, "<html>504 Gateway Time-out</html>\n"),
    "log-lfs-pointer": file(
        LOG, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    ),
    "log-sparse-tail": sparse(LOG, 2 << 30, STEPS),
    "log-before-1970": dated(-(10**18)),
    "log-year-2262": dated((1 << 63) - 1),
    "log-at-0": dated(0),
    "log-folder": empty_folder(LOG),
    "log-folder-with-log": within(LOG, file(LOG, STEPS)),
    "log-socket": leave_socket,
    "log-link-to-itself": link(LOG, LOG),
    "log-link-chain": link_chain,
    "log-link-to-memory": link(LOG, "/proc/self/mem"),
    "log-link-to-full": link(LOG, "/dev/full"),
    "log-link-to-pagemap": link(LOG, "/proc/self/pagemap"),
    "log-link-to-environment": link(LOG, "/proc/self/environ"),
    "log-link-to-kernel-log": link(LOG, "/proc/kmsg"),
    "log-link-to-terminal": link(LOG, "/dev/tty"),
    "log-link-to-folder": link(LOG, "."),
    "log-link-beyond-names": link(LOG, "x" * 300),
    "log-hard-link": combine(
        file(LOG, STEPS), lambda folder: os.link(folder / LOG, folder / NAME.format(8))
    ),
    "err-only": file(LOG.replace(".out", ".err"), b"\xff" * 99),
    "err-folder": combine(
        file(LOG, STEPS), lambda folder: (folder / LOG.replace(".out", ".err")).mkdir()
    ),
    "err-broken": combine(
        file(LOG, STEPS), file(LOG.replace(".out", ".err") + ".gz", GZ[:40])
    ),
}

NAMES: dict[str, Write] = {
    "name-newline": raw_name(b"log-grok1\n314b_3_7_0.out"),
    "name-bytes": raw_name(b"log-grok1_\xff\xfe314b_3_7_0.out"),
    "name-folder-bytes": within(os.fsdecode(b"\xff\xfe"), file(LOG, STEPS)),
    "name-255": raw_name(b"log-" + b"x" * 240 + b"_3_7_0.out"),
    "name-right-to-left": file("log-grok1_\u202e314b_3_7_0.out", STEPS),
    "name-wide": file("log-訓練\u200b\U0001f9a3_3_7_0.out", STEPS),
    "name-digits": file(f"log-grok1_314b_{'9' * 100}_{'9' * 100}_0.out", STEPS),
    "name-unicode-digits": file("log-grok1_314b_\u0663_\u0667_0.out", STEPS),
    "name-superscripts": file("log-grok1_314b_\xb3_\xb2_0.out", STEPS),
    "name-blanks": file(" log-grok1_314b_3_7_0.out ", STEPS),
    "name-dots": file("...out", STEPS),
    "name-dash": file("-rf.out", STEPS),
    "name-percent": file("%s%n{0}{x!r}$(id)`id`.out", STEPS),
    "name-case": combine(
        file(LOG, STEPS), file(LOG.upper(), STEPS.replace(b"7.5", b"8.5"))
    ),
    "name-two-forms": combine(
        file("log-a\u0308_3_7_0.out", STEPS), file("log-\xe4_3_7_0.out", STEPS)
    ),
    "name-put-away": file(LOG + ".1", STEPS),
    "name-partial": file(f".{LOG}.a1B2c3", STEPS),
    "name-silly": file(f".nfs{'0' * 20}", STEPS),
    "name-date-of-year-0": within("0000-00-00_00-00-00", file(LOG, STEPS)),
    "name-endless-time": within("1999999999999999999", file(LOG, STEPS)),
    "folder-git": within(".git", file(LOG, STEPS)),
    "folder-chain-of-links": combine(
        *(link(f"l{n}", f"l{n - 1}" if n else ".") for n in range(60))
    ),
    "folder-links-each-other": combine(
        within("a", link("x", "../b")), within("b", link("x", "../a"))
    ),
}

MARKERS: dict[str, Write] = {
    "marker-cut": combine(file(LOG, STEPS), file(".llmbench-ab", "tok")),
    "marker-binary": combine(file(LOG, STEPS), file(".llmbench-ab", bytes(range(256)))),
    "marker-deep": combine(file(LOG, STEPS), file(".llmbench-ab", "[" * DEEP)),
    "marker-folder": combine(file(LOG, STEPS), empty_folder(".llmbench-ab")),
    "marker-fifo": combine(file(LOG, STEPS), fifo(".llmbench-ab")),
    "marker-zero": combine(file(LOG, STEPS), link(".llmbench-ab", "/dev/zero")),
    "marker-dangling-link": combine(file(LOG, STEPS), link(".llmbench-ab", "nowhere")),
    "marker-holes": combine(file(LOG, STEPS), sparse(".llmbench-ab", 2 << 30)),
    "marker-endless-time": combine(
        file(LOG, STEPS), file(".llmbench-ab", f"t1 {'9' * 400}\nt2 {'9' * 5000} 7\n")
    ),
    "marker-of-log-folder": combine(file(LOG, STEPS), empty_folder(f"{LOG}.ab")),
    "marker-of-log-dangling-link": combine(
        file(LOG, STEPS), link(f"{LOG}.ab", "nowhere")
    ),
}

KINDS = {**METRICS, **METADATA_FILES, **LOGS, **NAMES, **MARKERS}
