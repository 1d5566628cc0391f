"""Every target holds for what fuzzing starts from and for all that it found; no atheris is needed."""

from __future__ import annotations

import pytest
from fuzz.run import dictionary, summary
from fuzz.seeds import FINDINGS, findings, seeds, words
from fuzz.targets import TARGETS, Finding, Target

from pytest_llmbench.core.errors import BaselineError, LogError
from pytest_llmbench.ingest.parse.read import parse_blocks


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_and_findings_break_nothing(name: str) -> None:
    for data in seeds(name):
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_cut_off_break_nothing(name: str) -> None:
    for data in seeds(name):
        for part in range(1, 8):
            TARGETS[name](data[: len(data) * part // 8])


def test_seeds_of_logs_hold_steps() -> None:
    assert sum(bool(parse_blocks([data]).segments) for data in seeds("log")) >= len(seeds("log")) // 2


@pytest.mark.parametrize("name", TARGETS)
def test_words_are_what_inputs_are_made_of(name: str) -> None:
    text = b"".join(seeds(name))
    assert sum(word in text for word in words(name)) >= 5
    assert len(dictionary(words(name)).splitlines()) == len(words(name))


def test_every_finding_belongs_to_a_target() -> None:
    assert sum(len(findings(name)) for name in TARGETS) == len(list(FINDINGS.glob("*.bin")))


def test_strange_bytes_in_a_dictionary_are_hexadecimal() -> None:
    assert dictionary([b'a"\\\r', b"", b"\xff"]) == '"a\\x22\\x5c\\x0d"\n"\\xff"\n'


def test_the_summary_says_how_many_inputs_were_tried() -> None:
    output = "stat::number_of_executed_units: 1234\nstat::peak_rss_mb:              99\n"
    assert summary("log", output, []) == "log: 1234 inputs tried, peak memory 99 MiB, 0 findings: none"


@pytest.mark.parametrize(
    ("target", "error"), [("metadata", LogError("a\x00b")), ("baseline", BaselineError("no file"))]
)
def test_messages_are_looked_at(target: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr("fuzz.targets.parse", fail)
    monkeypatch.setattr("fuzz.targets.read_recipe", fail)
    check: Target = TARGETS[target]
    with pytest.raises(Finding):
        check(b"anything")
