"""Tracebacks are followed to their exceptions among lines of other processes, in
bounded memory."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.logs import endings, log_collector
from pytest_llmbench.logs.endings import HEAD, Tracebacks
from pytest_llmbench.logs.log_reader import parse_blocks
from pytest_llmbench.logs.scan import find_markers, iterate_chunks

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


def read(text: str, block: int = 1 << 20) -> Tracebacks:
    """Read a text in blocks of `size` bytes."""
    tracebacks = Tracebacks()
    data = text.encode()
    for chunk in iterate_chunks(
        data[index : index + block] for index in range(0, len(data), block)
    ):
        tracebacks.feed(chunk, find_markers(chunk, (HEAD,)))
    return tracebacks


def describe(text: str, block: int = 1 << 20, before: int = 0) -> list[str]:
    """Describe tracebacks: line (relative), rank, first and last exception."""
    described = []
    for traceback in read(text, block).latest:
        raised = [
            traceback.first.decode(),
            *([traceback.last.decode()] if traceback.last != traceback.first else []),
        ]
        described.append(
            f"{traceback.head - before}-{traceback.line - before} {traceback.rank}: {', '.join(raised)}"
        )
    return described


def test_traceback_keeps_the_line_that_raised() -> None:
    assert [traceback.code for traceback in read(TORN).latest] == [
        b"assert self.warmup < self.decay"
    ] * 2


def test_memory_is_bounded_with_many_tracebacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endings, "KEPT", 5)
    heads = [
        f"[rank{rank}]: Traceback (most recent call last):\n" for rank in range(30)
    ]
    assert len(read("".join(heads))._open) == 5


QUEUE = "_queue.Empty, RuntimeError: DataLoader worker (pid 9) exited unexpectedly"
# expected: lines of the head and of the first exception, the rank, the first and the
# last exception
CASES = [
    ("one", PLAIN, ["2-6 : ValueError: the batch does not fit"]),
    (
        "interleaved ranks",
        RANKS,
        [
            "1-6 rank1: torch.OutOfMemoryError: of rank 1",
            "2-5 rank0: RuntimeError: of rank 0",
        ],
    ),
    (
        "torn lines between",
        TORN,
        ["1-9 3 rank3: AssertionError", "3-10 16 rank16: AssertionError"],
    ),
    ("a chain: the first is the root", CHAINED, [f"1-4 rank0: {QUEUE}"]),
    (
        "a chain by cause",
        CHAINED.replace(
            "During handling of the above exception, another exception occurred",
            "The above exception was the direct cause of the following exception",
        ),
        [f"1-4 rank0: {QUEUE}"],
    ),
    ("no labels, other lines between", UNLABELLED, ["1-9 : KeyError: 'tokens'"]),
    (
        "a logger before the head only",
        RAY,
        ["1-4 pid=7: jaxlib.xla_extension.XlaRuntimeError: INTERNAL: no"],
    ),
    (
        "the log ends before",
        "x\nTraceback (most recent call last):\n  File",
        ["2-2 : "],
    ),
    (
        "the log ends within",
        "Traceback (most recent call last):\n  File\nValueErr",
        ["1-1 : "],
    ),
    ("no line feed at the end", SHORT, ["1-2 : ValueError: x"]),
    ("carriage returns", RETURNS, ["1-2 : ValueError: x"]),
    ("colours", COLOURED, ["1-4 : ValueError: bad"]),
    (
        "a class in small letters",
        SHORT.replace("ValueError", "socket.gaierror"),
        ["1-2 : socket.gaierror: x"],
    ),
    ("a list on one line", LISTED, ["2-2 : ValueError: bad"]),
    (
        "a list on several lines",
        LISTED.replace("\\n', '", "\\n',\n '"),
        ["2-4 : ValueError: bad"],
    ),
    ("a text of a text", LISTED.replace("\\n', '", "\\n"), ["2-2 : ValueError: bad"]),
    (
        "a list of another process",
        f"{RANKS.splitlines()[0]}\n{LISTED}[rank1]: KeyError: 'x'\n",
        ["1-4 rank1: KeyError: 'x'", "3-3 : ValueError: bad"],
    ),
    ("none", "ValueError: x\n", []),
]


@pytest.mark.parametrize(
    ("text", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
@pytest.mark.parametrize("shift", [0, 8150, 8192, (1 << 20) - 8192])
def test_exception_is_found_across_chunks(
    text: str, expected: list[str], shift: int
) -> None:
    before = "x" * (shift - 1) + "\n" if shift else ""
    assert describe(before + text, before=len(before.splitlines())) == expected


@pytest.mark.parametrize("block", [1, 7, 511])
def test_exception_is_found_across_blocks(block: int) -> None:
    text = "".join(case[1] for case in CASES[:4])
    assert describe(text, block) == describe(text)


def test_exception_far_from_its_head_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (
        "Traceback (most recent call last):\n" + "  File\n" * 30 + "ValueError: late\n"
    )
    assert describe(text) == ["1-32 : ValueError: late"]
    monkeypatch.setattr(endings, "LONGEST", 20)
    assert describe(text) == ["1-1 : "]


REGULAR_LINES = (
    "Traceback (most recent call last):\n",
    *('  File "train.py", line 7, in <module>\n', "    main()\n", "    ~~~~^^\n"),
    *("RuntimeError: fault 3\n", "torch.OutOfMemoryError: no memory\n"),
)
OTHER_LINES = (
    *("    x/2 + 1\n", "    12: x\n", "    (x)\n", f"    {'x' * 1100}\n", "\n"),
    *("  [Previous line repeated 996 more times]\n", "[rank0]:     main()\n", "cut "),
    *("ValueError\n", "ValueError: x\r\n", "KeyboardInterrupt: \n", "\x1b[31mred\n"),
    *("WARNING: x\n", "x.py:3: UserWarning: no\n", f"RuntimeError: {'y' * 9000}\n"),
    "During handling of the above exception, another exception occurred:\n",
    f"{'z' * 9000}rror: {'z' * 9000}Error: found NaN in local rror: \n",
    *("srun: error: node-1: task 3: Exited with exit code 1\n", "rror: rror: \n"),
)
REGULAR = "".join(REGULAR_LINES[:5])
LABELS = (
    "[rank3]: ",
    "12: ",
    "1: [rank1]:",
    "a/3 ",
    "  ",
    "    ",
    "E x ",
    " E ",
    "3: E ",
)


def test_regular_traceback_is_read_without_its_lines() -> None:
    with patch.object(Tracebacks, "_add_line", side_effect=AssertionError):
        assert describe(REGULAR) == ["1-5 : RuntimeError: fault 3"]
        assert describe(PLAIN) == ["2-6 : ValueError: the batch does not fit"]
        assert [traceback.code for traceback in read(REGULAR).latest] == [b"main()"]
        assert describe(label(REGULAR, "[rank3]: ")) == [
            "1-5 rank3: RuntimeError: fault 3"
        ]
        assert describe(label(REGULAR, "    ")) == ["1-5 : RuntimeError: fault 3"]
        assert describe("ERROR " + REGULAR) == ["1-5 : RuntimeError: fault 3"]


def label(text: str, before: str) -> str:
    """Return the lines of a text with a label before each."""
    return "".join(before + line for line in text.splitlines(keepends=True))


@pytest.mark.slow
@settings(max_examples=400)
@given(
    st.lists(
        st.builds(
            label,
            st.just(REGULAR)
            | st.sampled_from(REGULAR_LINES)
            | st.sampled_from(OTHER_LINES),
            st.just("") | st.sampled_from(LABELS),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 300),
)
def test_regular_tracebacks_equal_those_read_by_line(
    lines: list[str], cut: int
) -> None:
    data = "".join(lines).encode()
    blocks = [data[:cut], data[cut:]]
    log = parse_blocks(blocks)
    with (
        patch.object(endings, "_read_regular", return_value=False),
        patch.object(log_collector, "drop_harmless_errors", lambda _, hits: hits),
    ):
        assert parse_blocks(blocks) == log
        by_line = read("".join(lines))
    tracebacks = read("".join(lines))
    for traceback in (*tracebacks.latest, *by_line.latest):
        traceback.lines = traceback.indented = 0  # only used until the traceback ends
    assert tracebacks.latest == by_line.latest
