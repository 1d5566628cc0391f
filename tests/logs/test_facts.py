"""Statements of a log about its run, and similar lines that state nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.shared_data import shared
from support.written_logs import nemo2_run, parse

from pytest_llmbench.core.baseline_records import RegexDialect
from pytest_llmbench.logs import recognisers
from pytest_llmbench.logs.facts import drop_unmatched
from pytest_llmbench.logs.growing import Growing
from pytest_llmbench.logs.log_collector import ALL_MARKERS
from pytest_llmbench.logs.log_reader import BLOCK, LARGE, parse_blocks, read_log
from pytest_llmbench.logs.scan import MarkerSearch

SMI = "| NVIDIA-SMI 570.133.20             Driver Version: 570.133.20     CUDA Version: 12.8     |\n"
NCCL = "NCCL version 2.26.6+cuda12.8\n"
GREETING = "== PyTorch ==\n\nNVIDIA Release 25.01 (build 134983853)\nPyTorch Version 2.6.0a0+ecf3bae\n"
PYXIS = "pyxis: importing docker image: nvcr.io#nvidia/nemo:25.07.02\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"9: [default3]: {NCCL}", {"nccl": "2.26.6+cuda12.8"}),
        (f"(Worker pid=71, ip=10.0.0.1) (pid=2) {NCCL}", {"nccl": "2.26.6+cuda12.8"}),
        (f"mew0:64904:64904 [0] NCCL INFO {NCCL}", {"nccl": "2.26.6+cuda12.8"}),
        (
            "NCCL version 2.12.12.MSCCL.0.7.3+cuda11.6 \r\n",
            {"nccl": "2.12.12.MSCCL.0.7.3+cuda11.6"},
        ),
        (SMI, {"driver": "570.133.20", "cuda_driver": "12.8"}),
        (
            "INFO:datasets:PyTorch version 2.11.0a0+eb65.nv26.2 available.\n",
            {"pytorch": "2.11.0a0+eb65.nv26.2"},
        ),
        (
            "torch version .................... 2.9.1+cu128\n",
            {"pytorch": "2.9.1+cu128"},
        ),
        (
            "I1 max_utils.py:750] System Information: Jax Version: 0.9.1\n",
            {"jax": "0.9.1"},
        ),
        (GREETING, {"nvidia_release": "25.01 (build 134983853)"}),
        (f"0: {PYXIS}", {"container": "nvcr.io#nvidia/nemo:25.07.02"}),
        ("0: llmb environment: power_limit: 700.00 W \n", {"power_limit": "700.00 W"}),
        *(
            (f"llmb environment: {name}: 1.0\n", {name: "1.0"})
            for name in ("device", "clocks", "driver", "cuda", "nccl", "pytorch")
        ),
        ("llmb environment: nccl: 2.27.3\n" + NCCL, {"nccl": "2.26.6+cuda12.8"}),
    ],
)
def test_version_is_read_anywhere_in_the_log(
    text: str, expected: dict[str, str]
) -> None:
    for log in (
        text,
        text + nemo2_run(0, 9),
        nemo2_run(0, 9) + text,
        text + nemo2_run(0, 9) + "\r" + text,
    ):
        assert dict(parse(log).environment) == expected


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: unhandled system error (run with NCCL_DEBUG=INFO for details),NCCL version 2.20.5\n",
        "NCCL version 2.27.5 or newer is needed\n",
        "NCCL version 2.27.7+cudNCCL version 2.27.7+cuda12.9\n",
        "NCCL version 2\n",
        NCCL.rstrip("\n"),
        SMI.replace(" |\n", "\n"),
        SMI[: SMI.index("CUDA")] + "\n",
        "Driver Version: 570.133.20     CUDA Version: 12.8     |\n",
        "sparse_attn requires a torch version >= 1.5 and < 2.0 but detected 2.9\n",
        "a PyTorch version 2.11.0 is needed\n",
        "System Information: Jaxlib Version: 0.9.1\n",
        "NVIDIA Release notes are at docs.nvidia.com\n",
        "pyxis: importing docker image: an\x1bother\n",
        f"pyxis: importing docker image: {'x' * 300}\n",
        "llmb environment: mood: good\n",
        "llmb environment: device: cut",
        "it prints llmb environment: device: another\n",
    ],
)
def test_similar_or_truncated_statement_is_ignored(text: str) -> None:
    assert parse(text).environment == ()


def test_ambiguous_labels_are_matched_in_linear_time() -> None:
    """Backtracking over all readings would take exponential time: two readings per
    label."""
    labels = "(pid=11 pid=11 pid=11)" * 60
    assert (
        parse(f"{labels}; {NCCL}{labels}; 2026-01-01 00:00:00 begins\n").environment
        == ()
    )


def test_contradicting_statements_are_ignored() -> None:
    """As in a log with two appended runs: the matching value is unknown."""
    other = NCCL.replace("2.26.6", "2.25.1")
    assert parse(NCCL + SMI + other).environment == parse(SMI).environment
    assert parse(NCCL + other + NCCL + NCCL).environment == ()


def test_printed_torch_version_wins_over_package_version() -> None:
    """The package metadata may lack the local part of a version that torch prints."""
    package = "PyTorch version 2.9.1 available.\n"
    torch = "torch version .................... 2.9.1+cu128\n"
    assert (
        parse(torch + package).environment
        == parse(package + torch).environment
        == (("pytorch", "2.9.1+cu128"),)
    )
    assert parse(package + torch + torch.replace("9", "8")).environment == (
        ("pytorch", "2.9.1"),
    )


@pytest.mark.slow
def test_statements_across_blocks_are_read_in_large_files(tmp_path: Path) -> None:
    """A statement across the blocks of two threads, and one after the part that is
    searched."""
    path = tmp_path / "log.out"
    for start in range(BLOCK - len(SMI), BLOCK, 17):
        path.write_bytes(b"\n" * start + SMI.encode() + b"." * LARGE)
        assert dict(read_log(path).environment) == {
            "driver": "570.133.20",
            "cuda_driver": "12.8",
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("offset", "expected"), [(99, ("nccl",)), (100, ()), (LARGE, ())]
)
def test_statements_count_only_near_the_beginning(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    offset: int,
    expected: tuple[str, ...],
) -> None:
    """The same in a file, in blocks and in a growing log. Records before and after keep
    the search active."""
    monkeypatch.setattr(recognisers.VERSIONS, "farthest", LARGE + 100)
    steps = nemo2_run(0, 9)
    text = (
        steps
        + "." * (LARGE - len(steps))
        + "\n" * (offset - 3)
        + NCCL
        + nemo2_run(10, 12)
    ).encode()
    assert text.index(b"L version ") == LARGE + offset
    path = tmp_path / "log.out"
    path.write_bytes(text)
    for log in (read_log(path), parse_blocks([text]), Growing(path).read()):
        assert tuple(name for name, _ in log.environment) == expected
        assert len(log.segments[0].steps) == 13


def test_software_versions_are_read_for_every_dialect_that_matches_a_log() -> None:
    own = RegexDialect("regex:own-1", "it ", r"it (?P<step>\d+) (?P<seconds>[\d.]+)")
    log = parse_blocks([(NCCL + nemo2_run(0, 9) + "it 1 2.0\n").encode()], [own])
    assert (
        [reading.environment for reading in log.readings]
        == [log.environment]
        == [(("nccl", "2.26.6+cuda12.8"),)]
    )


def test_search_strings_of_all_dialects_fit_into_one_search_pass() -> None:
    """A second pass would double the search time of every log. There is room for
    markers of further dialects."""
    markers = list(
        {*ALL_MARKERS, *recognisers.TRACE.markers, *recognisers.VERSIONS.markers}
    )
    for more in (0, 3):
        assert (
            MarkerSearch(
                [*markers, *(b"dialect %d: step" % number for number in range(more))]
            ).passes
            == 1
        )
    assert not any(marker.startswith(b" ") for marker in recognisers.VERSIONS.markers)


# grep -aoE 'NCCL version [^ ]+|[Tt]orch version [^ ]+.*|Jax Version: .*|Driver Version:
# .*' FILE | sort | uniq -c
REAL = [
    ("maxtext/nan_loss.out", {"jax": "0.9.1"}),
    ("megatron/2624605.out", {"pytorch": "2.11.0a0+eb65b36914.nv26.2"}),
    (
        "nemo1/stale_bars_dllogger.out",
        {"cuda_driver": "12.8", "driver": "570.133.20", "nccl": "2.26.6+cuda12.8"},
    ),
    ("slurm/time_limit.out", {"nccl": "2.21.5+cuda12.4"}),
    ("nemo2/geneformer_500_steps.out", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "expected"), REAL, ids=[name for name, _ in REAL])
def test_real_logs_state_their_facts(name: str, expected: dict[str, str]) -> None:
    assert dict(read_log(shared(f"logs/{name}")).environment) == expected


def test_setting_is_read_next_to_equal_texts_in_steps() -> None:
    marker, text = b"global_batch_size: ", b""
    for line in (
        b" | global_batch_size: 8 | global_step: 1\n",
        b"  global_batch_size: 8\n",
        b" | global_batch_size: 8 | global_step: 2\n",
        b"  global_batch_size: 8 \t\r",
        b"  global_batch_size: 8               \n",
        b"  global_batch_size: 1234567890\n",
        b"xglobal_batch_size: 8\n",
    ):
        text += line
    offsets = [match.start() for match in re.finditer(marker, text)]
    kept = drop_unmatched(text, [(offset, marker) for offset in offsets])
    assert [offset for offset, _ in kept] == [offsets[row] for row in (1, 3, 4)]
