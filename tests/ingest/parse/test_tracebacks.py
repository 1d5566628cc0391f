"""Tracebacks are followed to their exceptions, whoever writes between, in bounded memory."""

from __future__ import annotations

import pytest

from pytest_llmbench.ingest.parse import tracebacks
from pytest_llmbench.ingest.parse.scan import find_markers, iterate_chunks
from pytest_llmbench.ingest.parse.tracebacks import HEAD, Tracebacks

PLAIN = """step 1
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
    ^^^^^^
ValueError: the batch does not fit
srun: error: n1: task 0: Exited with exit code 1
"""
RANKS = """[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File "train.py", line 7, in <module>
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: of rank 0
[rank1]: torch.OutOfMemoryError: of rank 1
"""
TORN = """ 3: [rank3]: Traceback (most recent call last):
 3: [rank3]:     scheduler = Scheduler(
16: [rank16]: Traceback (most recent call last):
 3: [rank3
16: [rank16]:     assert self.warmup < self.decay
 3: ]:                   ^^^^^^
 3: [rank3]:     assert self.warmup < self.decay
16: [rank16]:            ^^^^^^^^^^^^^^^^^^^^^^^^
 3: [rank3]: AssertionError
16: [rank16]: AssertionError
"""
CHAINED = """[rank0]: Traceback (most recent call last):
[rank0]:   File "queue.py", line 7, in get
[rank0]:     raise Empty
[rank0]: _queue.Empty

[rank0]: During handling of the above exception, another exception occurred:

[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 9, in <module>
[rank0]: RuntimeError: DataLoader worker (pid 9) exited unexpectedly
"""
SHORT = "Traceback (most recent call last):\nValueError: x"
COLOURED = (
    'Traceback (most recent call last):\n  File \x1b[35m"/x.py"\x1b[0m, line \x1b[35m1\x1b[0m\n'
    "    \x1b[1;31mmain\x1b[0m()\n\x1b[1;35mValueError\x1b[0m: \x1b[35mbad\x1b[0m\n"
)
RETURNS = "bar\rTraceback (most recent call last):\r\nValueError: x\r\n"
UNLABELLED = """Traceback (most recent call last):
Traceback (most recent call last):
  File "train.py", line 7, in <module>
INFO: still here
WARNING: an old file
2025-06-11 05:14:49 a line of the log
Epoch 0: : 10%
  File "train.py", line 7, in <module>
KeyError: 'tokens'
KeyError: 'tokens'
"""
LISTED = """step 1
error: ['Traceback (most recent call last):\\n', '  File "x.py", line 7, in main\\n    f()\\n', 'ValueError: bad\\n']
"""
RAY = """(Worker(train-1) pid=7, ip=10.0.0.1) [2025-10-11 11:16:52] [ERROR] Traceback (most recent call last):
(Worker(train-2) pid=8, ip=10.0.0.1) ValueError: of another worker
(Worker(train-1) pid=7, ip=10.0.0.1)   File "train.py", line 7, in <module>
(Worker(train-1) pid=7, ip=10.0.0.1) jaxlib.xla_extension.XlaRuntimeError: INTERNAL: no
"""


def found(text: str, block: int = 1 << 20) -> list[tuple[int, int, str, str, str]]:
    """What is found in a text that comes in blocks of a size."""
    read = Tracebacks()
    data = text.encode()
    for chunk in iterate_chunks(data[place : place + block] for place in range(0, len(data), block)):
        read.take(chunk, find_markers(chunk, (HEAD,)))
    return [(each.head, each.line, each.rank, each.first.decode(), each.last.decode()) for each in read.latest]


BATCH = "ValueError: the batch does not fit"
CASES = [
    ("one", PLAIN, [(2, 6, "", BATCH, BATCH)]),
    (
        "interleaved ranks",
        RANKS,
        [
            (1, 6, "rank1", "torch.OutOfMemoryError: of rank 1", "torch.OutOfMemoryError: of rank 1"),
            (2, 5, "rank0", "RuntimeError: of rank 0", "RuntimeError: of rank 0"),
        ],
    ),
    (
        "torn lines between",
        TORN,
        [
            (1, 9, "3 rank3", "AssertionError", "AssertionError"),
            (3, 10, "16 rank16", "AssertionError", "AssertionError"),
        ],
    ),
    (
        "a chain: the first is the root",
        CHAINED,
        [(1, 4, "rank0", "_queue.Empty", "RuntimeError: DataLoader worker (pid 9) exited unexpectedly")],
    ),
    (
        "a chain by cause",
        CHAINED.replace(
            "During handling of the above exception, another exception occurred",
            "The above exception was the direct cause of the following exception",
        ),
        [(1, 4, "rank0", "_queue.Empty", "RuntimeError: DataLoader worker (pid 9) exited unexpectedly")],
    ),
    ("no labels, other lines between", UNLABELLED, [(1, 9, "", "KeyError: 'tokens'", "KeyError: 'tokens'")]),
    (
        "a logger before the head only",
        RAY,
        [(1, 4, "pid=7", *("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: no",) * 2)],
    ),
    ("the log ends before", "x\nTraceback (most recent call last):\n  File", [(2, 2, "", "", "")]),
    ("the log ends within", "Traceback (most recent call last):\n  File\nValueErr", [(1, 1, "", "", "")]),
    ("no line feed at the end", SHORT, [(1, 2, "", *("ValueError: x",) * 2)]),
    ("carriage returns", RETURNS, [(1, 2, "", *("ValueError: x",) * 2)]),
    ("colours", COLOURED, [(1, 4, "", *("ValueError: bad",) * 2)]),
    ("a class that is written small", SHORT.replace("ValueError", "socket.gaierror"),
     [(1, 2, "", *("socket.gaierror: x",) * 2)]),
    ("a list on one line", LISTED, [(2, 2, "", *("ValueError: bad",) * 2)]),
    ("a list on several lines", LISTED.replace("\\n', '", "\\n',\n '"), [(2, 4, "", *("ValueError: bad",) * 2)]),
    ("a text of a text", LISTED.replace("\\n', '", "\\n"), [(2, 2, "", *("ValueError: bad",) * 2)]),
    ("a list of another process", f"{RANKS.splitlines()[0]}\n{LISTED}[rank1]: KeyError: 'x'\n",
     [(1, 4, "rank1", *("KeyError: 'x'",) * 2), (3, 3, "", *("ValueError: bad",) * 2)]),
    ("none", "ValueError: x\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize("shift", [0, 8150, 8192, (1 << 20) - 8192])
def test_exception_is_found_across_windows(
    text: str, expected: list[tuple[int, int, str, str, str]], shift: int
) -> None:
    if shift:
        text = "x" * (shift - 1) + "\n" + text
    lines = int(shift > 0)
    assert [(head - lines, line - lines, *rest) for head, line, *rest in found(text)] == expected


@pytest.mark.parametrize("block", [1, 7, 511])
def test_exception_is_found_across_blocks(block: int) -> None:
    text = "".join(case[1] for case in CASES[:4])
    assert found(text, block) == found(text)


def test_the_line_that_raised_is_kept() -> None:
    read = Tracebacks()
    for chunk in iterate_chunks([TORN.encode()]):
        read.take(chunk, find_markers(chunk, (HEAD,)))
    assert [each.code for each in read.latest] == [b"assert self.warmup < self.decay"] * 2


def test_what_is_not_found_soon_is_not_looked_for_any_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Traceback (most recent call last):\n" + "  File\n" * 30 + "ValueError: late\n"
    assert found(text)[0][3] == "ValueError: late"
    monkeypatch.setattr(tracebacks, "LONGEST", 20)
    assert found(text)[0][3] == ""


def test_many_tracebacks_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "KEPT", 5)
    read = Tracebacks()
    heads = "".join(f"[rank{rank}]: Traceback (most recent call last):\n" for rank in range(30))
    for chunk in iterate_chunks([heads.encode()]):
        read.take(chunk, find_markers(chunk, (HEAD,)))
    assert len(read._open) == 5
