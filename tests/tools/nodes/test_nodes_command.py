"""`llmbench nodes`: which node makes jobs slow, through the command, from the store
that sessions write."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from support.node_histories import (
    KEYS,
    add_job,
    make_sessions,
    store_sessions,
    write_sessions,
)
from support.remembered import START, outcome

from pytest_llmbench.cli.main import main

SAFE = re.compile(r"[\x20-\x7e\n]*")


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMB_HISTORY", raising=False)


def search(
    capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[str, dict[str, Any]]:
    """Return what the command prints, never wider than a terminal, and the document
    that it writes."""
    assert main(["nodes", "--history=h.db", "--json=out.json", *words]) == code
    out = capsys.readouterr().out
    assert SAFE.fullmatch(out)
    assert max(map(len, out.splitlines())) < 80
    described: dict[str, Any] = json.loads(Path("out.json").read_text())
    assert described["exit_code"] == code
    return out, described


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code = main(["nodes", *words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_a_slow_node_is_named_from_30_nights(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its slowness, the runs that show it, and what leaves it out."""
    store_sessions(Path("h.db"), {7: 0.1})
    out, described = search(capsys, code=1)
    lines = out.splitlines()
    assert (
        lines[0]
        == "h.db: 30 days, 2025-11-01 to 2025-11-30; 32 nodes; nodes known for 60 of"
    )
    assert re.fullmatch(
        r"n07 is slow: \+10\.0 % \(\+9\.\d % to \+10\.\d %\), confidence 99\.9 %",
        lines[3],
    )
    assert lines[4] == "  shown by  15 of 15 runs with it were slow"
    assert lines[5] == f"            2025-11-30  +10.4 %  run 60  {KEYS[1].id}"
    assert lines[-2:] == [
        "  cleared   31 nodes of 32, by fast runs with them",
        "  exclude   --llmb-exclude=n07, in Slurm --exclude=n07",
    ]
    (named,) = described["named"]
    assert (described["answer"], named["nodes"], named["exclude"]) == (
        "named",
        ["n07"],
        "--llmb-exclude=n07",
    )
    assert named["low"] < 0.1 < named["high"]
    assert len(named["slow_runs"]) == 15
    assert all(
        "n07" in run["nodes"] and run["difference"] > 0.05 for run in named["slow_runs"]
    )


@pytest.mark.slow
def test_a_run_of_the_answer_is_one_that_history_show_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_sessions(Path("h.db"), {7: 0.1})
    _, described = search(capsys, code=1)
    run = described["named"][0]["slow_runs"][0]
    assert main(["history", "show", str(run["number"]), "--history=h.db"]) == 0
    assert run["configuration"] in capsys.readouterr().out


@pytest.mark.slow
def test_nodes_that_are_always_together_are_named_as_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_sessions(Path("h.db"), {5: 0.05}, together=(5, 6, 7))
    out, described = search(capsys, code=1)
    assert "one of n[05-07], always in the same runs, is slow: +" in out
    assert described["named"][0]["low"] < 0.05 < described["named"][0]["high"]
    assert "--llmb-exclude=n05,n06,n07, of Slurm --exclude=n05,n06,n07" in out


@pytest.mark.slow
def test_what_is_evident_and_cannot_be_named_lists_suspects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Evident is a note: nobody is told to leave a node out."""
    store_sessions(Path("h.db"), {7: 0.1}, days=10)
    out, described = search(capsys)
    assert described["answer"] == "evident"
    assert re.search(
        r"at least one node is slow, not yet identified yet: \d suspects?, \d+ cleared",
        " ".join(out.split()),
    )
    assert re.search(
        r"^  n07  \d\d[.\d]* %, \+\d+\.\d % .*; \d of \d runs with it were",
        out,
        re.MULTILINE,
    )
    assert "exclude" not in out
    assert "n07" in {
        node for suspect in described["suspects"] for node in suspect["nodes"]
    }


@pytest.mark.slow
def test_node_is_not_named_if_only_its_runs_had_a_container(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The container may be slow, and not the node."""
    sessions = list(make_sessions({7: 0.1}))
    for _, outcomes in sessions:
        for described in outcomes:
            slow = "n07" in described["jobs"][0]["nodes"]
            described["environment"] = {"container": "new" if slow else "old"}
    write_sessions(Path("h.db"), iter(sessions))
    out, answer = search(capsys)
    assert answer["named"] == []
    assert ("one-software", ["n07"]) in [
        (suspect["doubt"], suspect["nodes"]) for suspect in answer["suspects"]
    ]
    assert "its slow runs had software that no fast run had" in " ".join(out.split())


@pytest.mark.slow
def test_sound_nodes_are_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {})
    out, described = search(capsys)
    assert described["named"] == []
    assert "no node is evident; that does not mean that all are sound" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nights", "looked"),
    [(30, "no run with nodes to look at"), (7, "are known of 0 of 0 runs")],
)
def test_without_nodes_or_nights_there_is_nothing_to_tell(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    nights: int,
    looked: str,
) -> None:
    """Without any node no other run is read."""
    if nights == 30:
        monkeypatch.delattr("pytest_llmbench.history.details.list_measured_runs")
    store_sessions(Path("h.db"), {7: 0.1}, days=nights, unknown=nights == 30)
    out, described = search(capsys, code=3)
    flat = " ".join(out.split())
    assert looked in flat
    assert "no answer: no run has known nodes to compare" in flat
    assert ("of fewer than 8 nights, and not looked at: grok1_314b" in flat) is (
        nights == 7
    )
    assert described["answer"] == "nothing-to-tell"


@pytest.mark.slow
def test_a_repair_that_was_acknowledged_begins_the_search_anew(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the file that was typed, or that pytest's configuration names."""
    write_sessions(
        Path("h.db"),
        chain(islice(make_sessions({7: 0.1}), 24), islice(make_sessions({}), 24, None)),
    )
    repair = "{nodes: n07, since: 2025-11-25, reason: a new HCA, by: A. Person}"
    Path("done.yaml").write_text(f"schema: 1\nacknowledged: []\nrepaired: [{repair}]\n")
    assert search(capsys, code=1)[1]["since"] is None
    out, described = search(capsys, "--acknowledged=done.yaml")
    assert "6 nights, 2025-11-25 to 2025-11-30" in out
    assert (described["since"], described["named"]) == ("2025-11-25", [])
    assert (
        search(capsys, "--acknowledged=done.yaml", "--since=2025-11-01")[1]["since"]
        == "2025-11-25"
    )
    Path("pytest.ini").write_text("[pytest]\nllmb_acknowledged = done.yaml\n")
    assert search(capsys)[1]["since"] == "2025-11-25"
    assert "none.yaml" in refuse(capsys, "--history=h.db", "--acknowledged=none.yaml")


@pytest.mark.slow
def test_repeats_of_a_launch_are_runs_on_their_own_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store keeps the newest run of a launch; what its first one was on the slow
    node tells all the same."""

    def with_repeats() -> Any:
        for (began, fast), (_, slow) in zip(
            make_sessions({}), make_sessions({7: 0.1}), strict=True
        ):
            outcomes = []
            for newest, first in zip(fast, slow, strict=True):
                job = {**first["jobs"][0], "job_id": f"{newest['run']['job_id']}0"}
                again = {
                    **newest["jobs"][0],
                    "nodes": [f"m{number}" for number in range(8)],
                    "repeat": 2,
                }
                outcomes.append({**newest, "jobs": [job, again]})
            yield began, outcomes

    write_sessions(Path("h.db"), with_repeats())
    out, described = search(capsys, code=1)
    assert "nodes known for 120 of 120 runs" in " ".join(out.split())
    assert [suspect["nodes"] for suspect in described["named"]] == [["n07"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"requeued": 0.5}, {"attempts": 2}, {"job_id": "7"}, {"purpose": "profile"}],
)
def test_nodes_that_may_be_those_of_another_attempt_are_not_known(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    def changed() -> Any:
        for began, outcomes in make_sessions({7: 0.1}, days=10):
            for described in outcomes:
                job = described["jobs"][0]
                job["gpu_hours"] = {
                    **job["gpu_hours"],
                    "requeued": change.get("requeued", 0.0),
                }
                job |= {
                    "job_id": change.get("job_id", job["job_id"]),
                    "step_seconds": None,
                }
                job["purpose"] = change.get("purpose", "measure")
                described["run"] = {
                    **described["run"],
                    "attempts": change.get("attempts", 1),
                }
            yield began, outcomes

    write_sessions(Path("h.db"), changed())
    assert search(capsys, code=3)[1]["runs_with_nodes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("later", [True, False])
def test_nodes_stay_known_where_others_judge_the_same_runs(
    capsys: pytest.CaptureFixture[str], later: bool
) -> None:
    """Sessions that launched nothing, stored before or after the one that did."""
    launched = list(make_sessions({7: 0.1}))
    others = [
        (began + timedelta(hours=5), [{**each, "jobs": []} for each in told])
        for began, told in launched
    ]
    write_sessions(
        Path("h.db"), chain(launched, others) if later else chain(others, launched)
    )
    out, described = search(capsys, code=1)
    assert "nodes known for 60 of" in out
    assert described["runs"] == 60  # each counts once
    assert "n07 is slow: +10" in out


@pytest.mark.slow
def test_job_ids_may_begin_anew_each_night(capsys: pytest.CaptureFixture[str]) -> None:
    def renumber(night: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for number, told in enumerate(night):
            (job,) = told["jobs"]
            yield {
                **told,
                "run": {**told["run"], "job_id": str(number)},
                "jobs": [{**job, "job_id": str(number)}],
            }

    write_sessions(
        Path("h.db"),
        ((began, list(renumber(night))) for began, night in make_sessions({7: 0.1})),
    )
    out, _ = search(capsys, code=1)
    assert "nodes known for 60 of" in out
    assert "n07 is slow: +10" in out


@pytest.mark.slow
def test_a_store_of_version_3_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {7: 0.1})
    with closing(sqlite3.connect("h.db")) as connection:
        connection.execute("UPDATE llmb_version SET version = 3")
        connection.execute("CREATE TABLE llmb_digest (id INTEGER)")
        connection.commit()
    assert search(capsys, code=1)[1]["answer"] == "named"


@pytest.mark.slow
def test_what_no_session_stored_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {}, days=9)
    for jobs in (
        '[{"job_id": "1000", "purpose": "measure", "nodes": "n1"}]',
        "{}",
        "[1]",
    ):
        with closing(sqlite3.connect("h.db")) as connection:
            connection.execute("UPDATE llmb_run SET jobs = ? WHERE id = 1", (jobs,))
            connection.commit()
        assert "h.db: contains an invalid value (" in refuse(capsys, "--history=h.db")


@pytest.mark.slow
def test_control_characters_in_node_names_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sessions = list(make_sessions({7: 0.1}))
    for _, outcomes in sessions:
        for described in outcomes:
            (job,) = described["jobs"]
            job["nodes"] = [node.replace("n07", "\x1b[31m") for node in job["nodes"]]
    write_sessions(Path("h.db"), iter(sessions))
    assert "\\x1b[31m is slow" in search(capsys, code=1)[0]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "no history is known: give --history, set LLMB_HISTORY"),
        (("--history=none.db",), "none.db"),
        (
            ("--history=h.db", "--since=tonight"),
            "argument --since: found 'tonight': expected a day such as 2025-11-20",
        ),
        (
            ("--history=h.db", "--json=h.db"),
            "--json h.db: found the history itself, which it would replace",
        ),
        (("--history=h.db", "--json=folder"), "it cannot be written"),
    ],
)
def test_bad_input_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str
) -> None:
    store_sessions(Path("h.db"), {}, days=9)
    Path("folder").mkdir()
    assert error in " ".join(refuse(capsys, *words).split())


@pytest.mark.slow
def test_invalid_run_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {}, days=20)
    invalid = {
        **outcome(9.9, 20, key=KEYS[0]),
        "verdict": "INVALID",
        "reason": "diverged",
    }
    write_sessions(
        Path("h.db"),
        iter([(START + timedelta(days=20), [add_job(invalid, {"n07"}, 9.9)])]),
    )
    assert search(capsys)[1]["runs"] == 40
