"""Archives as folders: listed members, reasons for others, and all texts in one pass."""

from __future__ import annotations

import contextlib
import gzip
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bad_archives import pax, record
from support.written_archives import END, archive, make_member

from pytest_llmbench.core.errors import LogError
from pytest_llmbench.logs.sources import archive as packed
from pytest_llmbench.logs.sources.archive import NAME, Archive
from pytest_llmbench.logs.sources.listing import Listing

ROOT = Path("/x.tar")


def opened(data: bytes | Callable[[], Iterable[bytes]]) -> Archive:
    """Return a listed archive with these bytes."""
    blocks = data if callable(data) else lambda: [data]
    result = Archive(
        ROOT, blocks, Listing(ROOT, -3), lambda name: name.endswith((".out", ".yaml"))
    )
    result.list()
    return result


def files(archive_read: Archive, folder: Path = ROOT) -> list[str]:
    """Return all files under a folder."""
    below = []
    for item in archive_read.listing.scan(folder):
        path = Path(item.path)
        below += (
            files(archive_read, path)
            if item.is_dir()
            else [str(path.relative_to(ROOT))]
        )
    return sorted(below)


def notes(pairs: Iterable[tuple[Path, str]]) -> dict[str, str]:
    return {str(path.relative_to(ROOT.parent)): reason for path, reason in pairs}


def test_members_have_paths_under_the_archive() -> None:
    result = opened(
        archive(
            [
                ("./a/x.out", b"1"),
                ("a//./b/y.out", b"2"),
                ("z.out", b"3"),
                ("notes.md", b"4"),
            ]
        )
    )
    assert files(result) == ["a/b/y.out", "a/x.out", "z.out"]
    assert result.listing.stat(ROOT / "a" / "x.out").st_mtime == 1_750_000_000
    assert (result.ignored, result.unreadable) == ([], [])
    assert result.listing.find_top() == ROOT


def test_single_top_level_folder_is_the_root_of_the_archive() -> None:
    assert (
        opened(
            archive([("runs/a/x.out", b"1"), ("runs/y.out", b"1")])
        ).listing.find_top()
        == ROOT / "runs"
    )


def test_all_texts_of_an_archive_are_read_in_one_pass() -> None:
    passes = 0
    data = gzip.compress(
        archive([(f"{name}.out", name.encode() * 999) for name in "abcd"])
    )

    def blocks() -> Iterator[bytes]:
        nonlocal passes
        passes += 1
        yield data

    archive_read = opened(blocks)
    wanted = [ROOT / "d.out", ROOT / "a.out", ROOT / "b.out"]
    texts = [(path.name, b"".join(text)) for path, text in archive_read.read(wanted)]
    assert texts == [
        ("a.out", b"a" * 999),
        ("b.out", b"b" * 999),
        ("d.out", b"d" * 999),
    ]
    assert passes == 2
    assert list(archive_read.read([])) == []
    assert passes == 2


def test_compressed_log_in_an_archive_is_decompressed() -> None:
    result = opened(archive([("x.out", gzip.compress(b"text"))]))
    ((_, text),) = result.read([ROOT / "x.out"])
    assert b"".join(text) == b"text"


def test_last_member_of_a_name_is_read() -> None:
    result = opened(archive([("x.out", b"old"), ("y.out", b"1"), ("./x.out", b"new")]))
    assert notes(result.ignored) == {
        "x.tar/x.out": "occurs 2 times in x.tar: the last copy counts"
    }
    assert [b"".join(text) for _, text in result.read([ROOT / "x.out"])] == [b"new"]


@pytest.mark.parametrize(
    "name", ["a/../../x.out", "/etc/x.out", "a/" * 70 + "x.out", "a" * 5000 + ".out"]
)
def test_log_with_unsafe_path_is_unreadable(name: str) -> None:
    result = opened(archive([("y.out", b"1"), (name, b"2")]))
    assert files(result) == ["y.out"]
    assert [reason for _, reason in result.unreadable] == [
        "the name points outside the archive, or is not a file name"
    ]
    other = opened(archive([("y.out", b"1"), (name.replace(".out", ".md"), b"2")]))
    assert (other.unreadable, len(other.ignored)) == ([], 1)


def of_type(flag: bytes, target: str = "") -> Callable[[tarfile.TarInfo], None]:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname = flag, target

    return change


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        (
            tarfile.SYMTYPE,
            "a symbolic link to ../etc/passwd in an archive: not followed",
        ),
        (tarfile.LNKTYPE, "a hard link to ../etc/passwd in an archive: not followed"),
        (tarfile.CHRTYPE, "a device to ../etc/passwd in an archive: not followed"),
        (b"Z", "a member of type 'Z' to ../etc/passwd in an archive: not followed"),
    ],
)
def test_member_that_is_not_a_file_is_reported(flag: bytes, why: str) -> None:
    result = opened(make_member("x.out", of_type(flag, "../etc/passwd")) + END)
    assert files(result) == []
    link = flag in (tarfile.SYMTYPE, tarfile.LNKTYPE)
    assert notes(result.ignored if link else result.unreadable) == {"x.tar/x.out": why}


def test_link_that_replaces_a_log_is_unreadable() -> None:
    """Unpacking would leave the link there."""
    data = archive([("x.out", b"1")]).rstrip(b"\0")
    result = opened(
        data
        + bytes(-len(data) % 512)
        + make_member("x.out", of_type(tarfile.SYMTYPE, "y"))
        + END
    )
    assert list(notes(result.unreadable)) == ["x.tar/x.out"]
    assert "though it replaces a file" in result.unreadable[0][1]


def test_member_that_is_file_and_folder_is_reported() -> None:
    for names in (("a.out", "a.out/x.out"), ("a.out/x.out", "a.out")):
        result = opened(archive([(name, b"1") for name in names]))
        assert [reason for _, reason in result.unreadable] == [
            "is a file and a folder in the archive"
        ]


def test_truncated_archive_is_read_to_its_end_and_reported() -> None:
    complete = archive([(f"{name}.out", name.encode() * 2000) for name in "abc"])
    result = opened(complete[: 2 * (512 + 2048) + 600])
    assert files(result) == ["a.out", "b.out"]
    ((path, reason),) = result.unreadable
    assert path == ROOT
    assert reason.startswith(
        "the archive is truncated or damaged after c.out: the data end too early; the complete members"
    )


FILES = [
    (f"{number}/{'long' * number}.out", b"%d" % number * 700) for number in range(40)
]


@pytest.mark.slow
@given(
    st.integers(0, 60_000),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_archive_truncated_by_members_is_always_reported(end: int, kind: int) -> None:
    """Missing runs must always be reported."""
    result = opened(archive(FILES[:20], kind)[:end])
    listed = files(result)
    assert set(listed) <= {name for name, _ in FILES[:20]}
    assert len(listed) == 20 or result.unreadable


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 255)), max_size=8),
    st.integers(100, 4000),
)
def test_random_archives_raise_only_log_errors(
    changes: list[tuple[int, int]], size: int
) -> None:
    data = bytearray(archive(FILES))
    for offset, value in changes:
        data[offset] = value
    result = opened(
        lambda: (
            bytes(data[index : index + size]) for index in range(0, len(data), size)
        )
    )
    with contextlib.suppress(LogError):
        for path, text in result.read([ROOT / name for name in files(result)]):
            assert path.is_relative_to(ROOT)
            b"".join(text)


@pytest.mark.slow
@given(
    st.binary(max_size=600),
    st.sampled_from(
        [b"", b"\x1f\x8b\x08\0\0\0\0\0\0\3", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"]
    ),
)
def test_empty_archive_is_always_reported(data: bytes, head: bytes) -> None:
    result = opened(head + data)
    assert files(result) or result.unreadable or result.ignored


@pytest.mark.parametrize("missing", [1, 200])
def test_truncated_compressed_archive_is_reported(missing: int) -> None:
    data = gzip.compress(
        archive([(f"{number}.out", b"%d" % number * 999) for number in range(99)])
    )
    result = opened(data[:-missing])
    assert len(result.unreadable) == 1
    assert any(
        word in result.unreadable[0][1]
        for word in ("truncated or still being written", "are truncated")
    )


def test_archive_appended_to_another_archive_is_reported_as_unread() -> None:
    result = opened(archive([("x.out", b"1")]) + archive([("y.out", b"1")]))
    assert notes(result.unreadable) == {
        "x.tar": "has data after its end, which are not read: pack the archive again"
    }


def test_archive_changed_between_passes_raises_an_error() -> None:
    versions = [
        archive([("x.out", b"1"), ("y.out", b"1")]),
        archive([("y.out", b"1"), ("x.out", b"1")]),
    ]
    result = opened(lambda: [versions.pop(0)])
    with pytest.raises(LogError, match="changed while it was read"):
        list(result.read([ROOT / "x.out"]))


def test_metadata_files_of_an_archive_are_readable_up_to_a_size_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "SMALL", 8)
    monkeypatch.setattr(packed, "ALL_SMALL", 22)
    result = opened(
        archive(
            [
                ("a.yaml", b"a: 1"),
                ("b.yaml", b"b: 123456"),
                ("c.yaml", b"c: 1"),
                ("d.yaml", b"123456"),
            ]
        )
    )
    assert result.read_metadata(ROOT / "a.yaml", 3) == b"a: "
    assert result.read_metadata(ROOT / "c.yaml", 99) == b"c: 1"
    for name in "bd":
        with pytest.raises(LogError, match="larger than 8 bytes, or the archive"):
            result.read_metadata(ROOT / f"{name}.yaml", 99)


def test_number_of_folders_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "FOLDERS", 10)
    result = opened(archive([(f"{number}/x.out", b"1") for number in range(30)]))
    assert (
        "more than 10 folders with files, so the newest run may be missing"
        in result.unreadable[0][1]
    )


def test_archive_with_too_many_folders_of_possible_logs_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packed, "FOLDERS", 10)
    data = archive([(f"{number}/console", b"1") for number in range(30)])
    result = Archive(
        ROOT,
        lambda: [data],
        Listing(ROOT, -3),
        lambda _: False,
        lambda name: name == "console",
    )
    result.list()
    assert [reason for _, reason in result.unreadable] == [
        "more than 10 folders with files, so the newest run may be missing: give --llmb-logs fewer"
    ]
    assert len(files(result)) == 10


def test_archive_with_too_many_launch_folders_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make_folder(info: tarfile.TarInfo) -> None:
        info.type = tarfile.DIRTYPE

    launches = [f"job_{1_750_000_000 + number}" for number in range(4)]
    data = b"".join(make_member(name, make_folder) for name in launches) + bytes(1024)
    assert opened(data).unreadable == []
    monkeypatch.setattr(packed, "FOLDERS", 3)
    assert (
        "more than 3 folders with files, so the newest run may be missing"
        in opened(data).unreadable[0][1]
    )


@pytest.mark.parametrize(
    ("name", "is_archive"),
    [
        ("x.tar", True),
        ("X.TAR.GZ", True),
        ("llmb-archive_25.05_20251120T060000Z.tar.zst", True),
        ("x.tgz", True),
        ("x.gz", False),
        (".tar", False),
        ("x.tar.gz.part", False),
    ],
)
def test_archives_are_recognised_by_name(name: str, is_archive: bool) -> None:
    assert (NAME.fullmatch(name) is not None) is is_archive


def test_archive_that_cannot_be_opened_is_unreadable() -> None:
    def fail() -> Iterator[bytes]:
        raise LogError("permission denied")
        yield b""

    result = opened(fail)
    assert files(result) == []
    assert notes(result.unreadable) == {"x.tar": "permission denied"}


@pytest.mark.parametrize(
    "data",
    [END, bytes(1 << 16), gzip.compress(bytes(10240))],
    ids=["end", "zeros", "compressed zeros"],
)
def test_archive_of_zeros_is_unreadable(data: bytes) -> None:
    assert notes(opened(data).unreadable) == {
        "x.tar": "contains no member: the archive is empty, or its data were replaced by zeros"
    }


@pytest.mark.parametrize(
    ("data", "ignored"),
    [
        (archive([("notes.md", b"1")]), 1),
        (make_member("x.out/", of_type(tarfile.DIRTYPE)) + END, 1),
        (archive([("notes.md", b"1"), ("x.out", b"1")]), 0),
        (make_member("exp_1764000000/", of_type(tarfile.DIRTYPE)) + END, 0),
    ],
    ids=["other files", "a folder in the place of a log", "a log", "an empty launch"],
)
def test_archive_without_a_file_named_like_a_log_is_reported_as_ignored(
    data: bytes, ignored: int
) -> None:
    result = opened(data)
    assert [reason for _, reason in result.ignored] == [
        "an archive without a file named like a log"
    ] * ignored
    assert not result.unreadable


def test_member_name_with_nul_is_refused() -> None:
    result = opened(pax(record(b"path", b"a\0b.out")) + archive([("x.out", b"1")]))
    assert files(result) == []
    assert [reason for _, reason in result.unreadable] == [
        "the name points outside the archive, or is not a file name"
    ]
