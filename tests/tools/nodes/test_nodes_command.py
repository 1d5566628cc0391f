"""`llmbench nodes`, run on stored histories with slow nodes."""

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
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LLMB_HISTORY", raising=False)


def search(
    capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[str, dict[str, Any]]:
    """Run the command and return its output (79 columns) and its JSON document."""
    assert main(["nodes", "--history=h.db", "--json=out.json", *words]) == code
    out = capsys.readouterr().out
    assert SAFE.fullmatch(out)
    assert max(map(len, out.splitlines())) < 80
    document: dict[str, Any] = json.loads(Path("out.json").read_text())
    assert document["exit_code"] == code
    return out, document


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    try:
        code = main(["nodes", *words])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_slow_node_is_named_after_30_days(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The output contains the slowdown, the slow runs and the option to exclude it."""
    store_sessions(Path("h.db"), {7: 0.1})
    out, document = search(capsys, code=1)
    lines = out.splitlines()
    assert (
        lines[0]
        == "h.db: 30 days, 2025-11-01 to 2025-11-30; 32 nodes; nodes known for 60 of 60"
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
    (named,) = document["named"]
    assert (document["answer"], named["nodes"], named["exclude"]) == (
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
def test_history_show_accepts_the_run_numbers_printed_by_the_node_search(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_sessions(Path("h.db"), {7: 0.1})
    _, document = search(capsys, code=1)
    run = document["named"][0]["slow_runs"][0]
    assert main(["history", "show", str(run["number"]), "--history=h.db"]) == 0
    assert run["configuration"] in capsys.readouterr().out


@pytest.mark.slow
def test_nodes_that_always_run_together_are_named_as_one_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store_sessions(Path("h.db"), {5: 0.05}, together=(5, 6, 7))
    out, document = search(capsys, code=1)
    assert "one of n[05-07], always in the same runs, is slow: +" in out
    assert document["named"][0]["low"] < 0.05 < document["named"][0]["high"]
    assert "--llmb-exclude=n05,n06,n07, in Slurm --exclude=n05,n06,n07" in out


@pytest.mark.slow
def test_unidentified_slow_node_lists_suspects(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without a named node, no option to exclude nodes is printed."""
    store_sessions(Path("h.db"), {7: 0.1}, days=10)
    out, document = search(capsys)
    assert document["answer"] == "evident"
    assert re.search(
        r"at least one node is slow, not yet identified: \d suspects?, \d+ cleared",
        " ".join(out.split()),
    )
    assert re.search(
        r"^  n07  \d\d[.\d]* %, \+\d+\.\d % .*; \d of \d runs with it were",
        out,
        re.MULTILINE,
    )
    assert "exclude" not in out
    assert "n07" in {
        node for suspect in document["suspects"] for node in suspect["nodes"]
    }


@pytest.mark.slow
def test_node_remains_a_suspect_if_its_container_may_explain_slow_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The container may be slow instead of the node."""
    sessions = list(make_sessions({7: 0.1}))
    for _, outcomes in sessions:
        for document in outcomes:
            slow = "n07" in document["jobs"][0]["nodes"]
            document["environment"] = {"container": "new" if slow else "old"}
    write_sessions(Path("h.db"), iter(sessions))
    out, answer = search(capsys)
    assert answer["named"] == []
    assert ("one-software", ["n07"]) in [
        (suspect["doubt"], suspect["nodes"]) for suspect in answer["suspects"]
    ]
    assert "its slow runs used software that no fast run used" in " ".join(out.split())


@pytest.mark.slow
def test_healthy_nodes_are_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {})
    out, document = search(capsys)
    assert document["named"] == []
    assert "no slow node found; that does not prove that all nodes are sound" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("nights", "message"),
    [(30, "no run has known nodes to compare"), (7, "nodes known for 0 of 0 runs")],
)
def test_exit_code_is_3_if_nodes_are_unknown_or_days_too_few(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    nights: int,
    message: str,
) -> None:
    """Runs are not read at all if the history contains no nodes."""
    if nights == 30:
        monkeypatch.delattr("pytest_llmbench.history.details.list_measured_runs")
    store_sessions(Path("h.db"), {7: 0.1}, days=nights, unknown=nights == 30)
    out, document = search(capsys, code=3)
    flat = " ".join(out.split())
    assert message in flat
    assert "no answer: no run has known nodes to compare" in flat
    assert ("skipped, fewer than 8 daily runs: grok1_314b" in flat) is (nights == 7)
    assert document["answer"] == "nothing-to-tell"


@pytest.mark.slow
def test_slow_node_search_ignores_runs_before_the_last_acknowledged_repair(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file is typed or named by pytest's configuration."""
    write_sessions(
        Path("h.db"),
        chain(islice(make_sessions({7: 0.1}), 24), islice(make_sessions({}), 24, None)),
    )
    repair = "{nodes: n07, since: 2025-11-25, reason: a new HCA, by: A. Person}"
    Path("done.yaml").write_text(f"schema: 1\nacknowledged: []\nrepaired: [{repair}]\n")
    assert search(capsys, code=1)[1]["since"] is None
    out, document = search(capsys, "--acknowledged=done.yaml")
    assert "6 days, 2025-11-25 to 2025-11-30" in out
    assert (document["since"], document["named"]) == ("2025-11-25", [])
    assert (
        search(capsys, "--acknowledged=done.yaml", "--since=2025-11-01")[1]["since"]
        == "2025-11-25"
    )
    Path("pytest.ini").write_text("[pytest]\nllmb_acknowledged = done.yaml\n")
    assert search(capsys)[1]["since"] == "2025-11-25"
    assert "none.yaml" in refuse(capsys, "--history=h.db", "--acknowledged=none.yaml")


@pytest.mark.slow
def test_slow_first_run_is_not_blamed_on_the_nodes_of_its_repeat(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The store keeps only the newest run of a launch, but the jobs of all repeats."""

    def with_repeats() -> Any:
        for (began, fast), (_, slow) in zip(
            make_sessions({}), make_sessions({7: 0.1}), strict=True
        ):
            outcomes = []
            for newest, first in zip(fast, slow, strict=True):
                job = {**first["jobs"][0], "job_id": f"{newest['run']['job_id']}0"}
                repeat = {
                    **newest["jobs"][0],
                    "nodes": [f"m{number}" for number in range(8)],
                    "repeat": 2,
                }
                outcomes.append({**newest, "jobs": [job, repeat]})
            yield began, outcomes

    write_sessions(Path("h.db"), with_repeats())
    out, document = search(capsys, code=1)
    assert "nodes known for 120 of 120 runs" in " ".join(out.split())
    assert [suspect["nodes"] for suspect in document["named"]] == [["n07"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"requeued": 0.5}, {"attempts": 2}, {"job_id": "7"}, {"purpose": "profile"}],
)
def test_nodes_of_a_requeued_or_mismatched_job_are_unknown(
    capsys: pytest.CaptureFixture[str], change: dict[str, Any]
) -> None:
    def make_changed_sessions() -> Any:
        for began, outcomes in make_sessions({7: 0.1}, days=10):
            for document in outcomes:
                job = document["jobs"][0]
                job["gpu_hours"] = {
                    **job["gpu_hours"],
                    "requeued": change.get("requeued", 0.0),
                }
                job |= {
                    "job_id": change.get("job_id", job["job_id"]),
                    "step_seconds": None,
                }
                job["purpose"] = change.get("purpose", "measure")
                document["run"] = {
                    **document["run"],
                    "attempts": change.get("attempts", 1),
                }
            yield began, outcomes

    write_sessions(Path("h.db"), make_changed_sessions())
    assert search(capsys, code=3)[1]["runs_with_nodes"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("later", [True, False])
def test_judging_a_run_again_without_launching_keeps_its_nodes_known(
    capsys: pytest.CaptureFixture[str], later: bool
) -> None:
    """The other sessions launched nothing; they are stored before or after."""
    launched = list(make_sessions({7: 0.1}))
    others = [
        (began + timedelta(hours=5), [{**entry, "jobs": []} for entry in outcomes])
        for began, outcomes in launched
    ]
    write_sessions(
        Path("h.db"), chain(launched, others) if later else chain(others, launched)
    )
    out, document = search(capsys, code=1)
    assert "nodes known for 60 of" in out
    assert document["runs"] == 60  # each run counts once
    assert "n07 is slow: +10" in out


@pytest.mark.slow
def test_slow_node_is_found_although_job_ids_repeat_every_day(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def renumber(outcomes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for number, entry in enumerate(outcomes):
            (job,) = entry["jobs"]
            yield {
                **entry,
                "run": {**entry["run"], "job_id": str(number)},
                "jobs": [{**job, "job_id": str(number)}],
            }

    write_sessions(
        Path("h.db"),
        (
            (began, list(renumber(outcomes)))
            for began, outcomes in make_sessions({7: 0.1})
        ),
    )
    out, _ = search(capsys, code=1)
    assert "nodes known for 60 of" in out
    assert "n07 is slow: +10" in out


@pytest.mark.slow
def test_store_of_version_3_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    store_sessions(Path("h.db"), {7: 0.1})
    with closing(sqlite3.connect("h.db")) as connection:
        connection.execute("UPDATE llmb_version SET version = 3")
        connection.execute("CREATE TABLE llmb_digest (id INTEGER)")
        connection.commit()
    assert search(capsys, code=1)[1]["answer"] == "named"


@pytest.mark.slow
def test_invalid_stored_jobs_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
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
        for document in outcomes:
            (job,) = document["jobs"]
            job["nodes"] = [node.replace("n07", "\x1b[31m") for node in job["nodes"]]
    write_sessions(Path("h.db"), iter(sessions))
    assert "\\x1b[31m is slow" in search(capsys, code=1)[0]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            (),
            "no history is named: give --history, set the environment variable LLMB_HISTORY",
        ),
        (("--history=none.db",), "none.db"),
        (
            ("--history=h.db", "--since=tonight"),
            "argument --since: found 'tonight': expected a day such as 2025-11-20",
        ),
        (
            ("--history=h.db", "--json=h.db"),
            "--json h.db: this file is the history and would be replaced",
        ),
        (("--history=h.db", "--json=folder"), "cannot write the result"),
    ],
)
def test_invalid_input_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str
) -> None:
    store_sessions(Path("h.db"), {}, days=9)
    Path("folder").mkdir()
    assert error in " ".join(refuse(capsys, *words).split())


@pytest.mark.slow
def test_slow_node_search_excludes_invalid_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
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
