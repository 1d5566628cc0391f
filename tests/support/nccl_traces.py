"""Lines of NCCL traces."""

from __future__ import annotations

from collections.abc import Iterator


def record(operation: str = "AllReduce", number: int = 0, **changed: object) -> str:
    """Format the line of one record."""
    values = {
        "before": "",
        "host": "n1",
        "pid": 7,
        "gpu": 0,
        "send": f"0x7fa92{number:05x}",
        "receive": "(nil)",
        "acc": "",
        "count": 1024,
        "datatype": 7,
        "comm": "0x55fca23fc0f0",
        "nranks": 2,
        **changed,
    }
    return (
        "{before}{host}:{pid}:{pid} [{gpu}] NCCL INFO {operation}: opCount {number:x} sendbuff {send} recvbuff "
        "{receive} {acc}count {count} datatype {datatype} op 0 root 0 comm {comm} [nranks={nranks}] stream 0x55fca19\n"
    ).format(operation=operation, number=number, **values)


def run(steps: int = 10, ranks: int = 2, **changed: object) -> Iterator[str]:
    """Yield the lines of a small run.

    Every rank does two reductions and one gathering per step.
    """
    for number in range(steps):
        for rank in range(ranks):
            fields = {
                "gpu": rank,
                "comm": f"0x{rank + 1:x}",
                "nranks": ranks,
                **changed,
            }
            yield record("AllReduce", 3 * number, **fields)
            yield record("AllReduce", 3 * number + 1, **fields)
            yield record("AllGather", 3 * number + 2, **{**fields, "count": 4096})
