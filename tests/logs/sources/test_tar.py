"""The tar reader compared with Python's and the system's, and invalid archives."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from support.written_archives import END, archive, make_member

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.sources import tar as module
from pytest_llmbench.logs.sources.tar import (
    BLOCK,
    SPARSE,
    ArchiveMember,
    TarReader,
    is_archive,
)

LONG = "experiments/" + "pretrain_grok1_314b_bf16_256/" * 12 + "log.out"
FILES = [
    ("a/x.out", b"one\n" * 400),
    (LONG, b"two"),
    ("empty.log", b""),
    ("ü/\udcff.log", b"3" * 512),
]


def read(data: bytes, size: int = 1 << 20) -> list[tuple[ArchiveMember, bytes]]:
    """Return all members with their data."""
    reel = TarReader(data[index : index + size] for index in range(0, len(data), size))
    return [(member, b"".join(reel.read_data())) for member in reel.read_members()]


def texts(data: bytes, size: int = 1 << 20) -> list[tuple[str, bytes]]:
    return [(member.name, text) for member, text in read(data, size)]


@pytest.mark.parametrize(
    "kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
)
@pytest.mark.parametrize("size", [1, 511, 1 << 20])
def test_every_tar_format_is_read_in_any_blocks(kind: int, size: int) -> None:
    files = [
        file for file in FILES if kind != tarfile.USTAR_FORMAT or len(file[0]) < 256
    ]
    data = archive(files, kind)
    assert texts(data, size) == files
    assert is_archive(data[:BLOCK])
    assert {member.modified for member, _ in read(data)} == {1_750_000_000.0}


@pytest.mark.skipif(shutil.which("tar") is None, reason="there is no tar here")
@pytest.mark.parametrize("kind", ["v7", "gnu", "posix"])
def test_archives_of_system_tar_are_read(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    for name in ("x.out", "y.out"):
        (folder / name).write_bytes(hashlib.shake_128(name.encode()).digest(70_000))
    (folder / "link").symlink_to("x.out")
    (folder / "again.out").hardlink_to(folder / "x.out")
    with (folder / "holes.out").open("wb") as file:
        for index in range(40):  # more holes than a header describes
            file.seek(index * 100_000)
            file.write(b"x" * 5000)
    command = [
        "tar",
        "-C",
        tmp_path,
        "--sort=name",
        f"--format={kind}",
        "-cf",
        tmp_path / "x.tar",
    ]
    holes = [] if kind == "v7" else ["-S"]
    subprocess.run([*map(str, command), *holes, "runs"], check=True)
    members = {
        member.name.rstrip("/"): (member.kind, text)
        for member, text in read((tmp_path / "x.tar").read_bytes())
    }
    sparse = kind != "v7"
    assert {name: member_kind for name, (member_kind, _) in members.items()} == {
        "runs": "folder",
        "runs/again.out": "file",
        "runs/holes.out": SPARSE if sparse else "file",
        "runs/link": "symbolic link",
        "runs/x.out": "hard link",
        "runs/y.out": "file",
    }
    for name in ("again.out", "y.out", *(() if sparse else ("holes.out",))):
        assert members[f"runs/{name}"][1] == (folder / name).read_bytes()


def test_large_size_and_fractional_time_are_read() -> None:
    info = tarfile.TarInfo("x")
    info.size, info.mtime = 9 << 30, 1_750_000_000.25
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        member = next(TarReader([info.tobuf(kind)]).read_members())
        assert member.size == 9 << 30
        assert member.modified == pytest.approx(1_750_000_000.25, abs=0.5)


WHOLE = archive(FILES)


@pytest.mark.parametrize(
    "data", [b"", WHOLE[:100], WHOLE[: 2 * BLOCK + 7], WHOLE.rstrip(b"\0")]
)
def test_truncated_archive_raises_an_error(data: bytes) -> None:
    with pytest.raises(LogError, match="the data end too early"):
        read(data)


def test_damaged_header_raises_an_error() -> None:
    """Python's reader ends here silently, so that the following runs would be missing."""
    data = bytearray(archive([("a.out", b"1"), ("b.out", b"2"), ("c.out", b"3")]))
    data[2 * BLOCK + 3] ^= 1
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["a.out"]
    with pytest.raises(LogError, match="no member header where one is expected"):
        read(bytes(data))


def sized(flag: bytes, size: int) -> bytes:
    """Return a header of a type that states this size."""
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = flag, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("flag", [b"L", b"x"])
def test_giant_header_is_not_read_into_memory(flag: bytes) -> None:
    taken = 0

    def endless() -> object:
        nonlocal taken
        yield sized(flag, 4 << 30)
        while True:
            taken += 1 << 20
            yield bytes(1 << 20)

    with pytest.raises(
        LogError,
        match=r"a name or pax header of 4294967296 bytes: expected at most 1048576",
    ):
        list(TarReader(endless()).read_members())  # type: ignore[arg-type]
    assert taken == 0


def with_pax(values: bytes) -> bytes:
    data = values + bytes(-len(values) % BLOCK)
    return (
        sized(b"x", len(values)) + data + make_member("x.out", lambda info: None) + END
    )


@pytest.mark.parametrize(
    "values",
    [
        b"path=x\n",
        b"12 path=x\n",
        b"10 size=-x\n",
        b"18 size=999999999e9\n",
        b"15 mtime=1e999\n",
    ],
)
def test_invalid_pax_header_raises_an_error(values: bytes) -> None:
    with pytest.raises(LogError, match="pax header"):
        read(with_pax(values))


def test_invalid_header_numbers_raise_errors() -> None:
    header = bytearray(make_member("x.out", lambda info: None))
    header[124:136] = b"99999999999\0"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    with pytest.raises(LogError, match="instead of a number"):
        read(bytes(header) + END)
    header[124:136] = b"\xff" * 12  # -1
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * 32 + sum(header[156:]))
    with pytest.raises(LogError, match="found a member of -1 bytes"):
        read(bytes(header) + END)


def test_too_many_members_or_names_raise_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MEMBERS", 3)
    assert len(read(archive(FILES[:3]))) == 3
    with pytest.raises(LogError, match="more than 3 members"):
        read(archive(FILES))
    monkeypatch.setattr(module, "NAMES", 100)
    with pytest.raises(LogError, match="or 100 bytes of names"):
        read(archive(FILES[:2]))


@pytest.mark.parametrize(
    ("flag", "kind"),
    [(b"1", "hard link"), (b"2", "symbolic link"), (b"4", "device"), (b"V", "label")],
)
def test_tar_members_without_data_ignore_their_stated_size(
    flag: bytes, kind: str
) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.size, info.linkname = flag, 4096, "to"

    (first, text), (second, _) = read(make_member("x", change) + archive([("y", b"1")]))
    assert (first.kind, first.is_file, text, second.name) == (kind, False, b"", "y")


@pytest.mark.parametrize("head", [b"", b"step 1\n" * 99, bytes(BLOCK)])
def test_other_data_are_not_recognised_as_tar(head: bytes) -> None:
    assert not is_archive(head)
