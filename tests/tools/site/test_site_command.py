"""`llmbench site`: the pages of a history, what they say, where they may be written,
and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support import builders
from support.monthly_history import FP8, LAST, fill_history, make_outcome, store_session
from support.remembered import ID, document

from pytest_llmbench.cli import main as cli
from pytest_llmbench.core.baseline_records import Key
from pytest_llmbench.history.record import write
from pytest_llmbench.history.store import StoreLocation
from pytest_llmbench.tools.site.site_folder import name_page

HOSTILE = "<script>alert(1)</script>"

Site = Callable[..., str]


class Links(HTMLParser):
    """The links, loaded resources and ids of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if tag == "a" else []
        self.loads += [
            str(values[name]) for name in ("src", "srcset", "data") if name in values
        ]
        self.loads += (
            [tag] if tag in ("link", "img", "iframe", "object", "base") else []
        )


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoreLocation:
    """A history of 30 days: one of two configurations fails on the last ten, 8 % slower."""
    monkeypatch.chdir(tmp_path)
    location = StoreLocation("history.db", tmp_path / "history.db")
    fill_history(location)
    return location


@pytest.fixture
def site(history: StoreLocation, capsys: pytest.CaptureFixture[str]) -> Site:
    """A function that runs `llmbench site`, checks the exit code and returns the output."""

    def run(*arguments: str, code: int = 0) -> str:
        assert (
            cli.main(["site", "--history", history.shown, "-o", "site", *arguments])
            == code
        )
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err if code else out

    return run


def read(name: str = "index.html") -> str:
    return Path("site", name).read_text(encoding="utf-8")


def page(key: Key = builders.KEY) -> str:
    return read(f"configurations/{key.id}.html")


def rows() -> dict[str, str]:
    """Return the text of each row of the index page, by configuration."""
    elements = re.findall(r"<tr data-colour.*?</tr>", read(), re.DOTALL)
    texts = [" ".join(re.sub("<[^>]*>", " ", row).split()) for row in elements]
    return {
        next(word for word in text.split() if "-25.05-" in word): text for text in texts
    }


@pytest.mark.slow
def test_index_lists_failed_configurations_first(
    site: Site,
) -> None:
    assert site() == "2 configurations, 30 days: site/index.html\n"
    assert list(rows()) == [ID, FP8.id]
    assert re.match(
        rf"✕ REGRESSION {ID} \+8\.\d % \+8\.\d % {(LAST - timedelta(days=9)).date()} 8\.0",
        rows()[ID],
    )
    assert rows()[ID].endswith("✓ ✓ ✓ ✓ ✕ ✕ ✕ ✕ ✕ ✕ ✕ ✕ ✕ ✕")
    assert rows()[FP8.id].endswith(" ★" * 14)
    assert "<b>1</b> red" in read()
    assert f"{LAST.date()} REGRESSION" in read()
    drawn = re.findall('class="strip" role="img" aria-label="([^"]*)"', read())
    assert drawn[0].startswith("30 days: 10 red, 20 green; 7.3")
    assert drawn[1].startswith("30 days: 30 green; 4.9")


@pytest.mark.slow
def test_configuration_page_lists_all_days(site: Site) -> None:
    """The failed run is compared with the last good run."""
    site()
    assert page().count("<tr id=n") == 30
    assert "30, 30 with a valid step time" in page()
    good, red = (LAST - timedelta(days=10)).date(), LAST.date()
    assert page().index(f"id=n{red}>") < page().index(
        f"id=n{(LAST - timedelta(days=29)).date()}>"
    )
    assert f'<a href="../compare/{good}_{red}.html#{ID}">' in page()
    compared = read(f"compare/{good}_{red}.html")
    assert "B is slower" in compared
    assert FP8.id not in compared
    for heading in ("Changes of level", "Last good run"):
        assert heading in page()
        assert heading not in page(FP8)


@pytest.mark.slow
def test_every_link_has_an_existing_target(site: Site) -> None:
    site()
    files = {path: Links(path.read_text()) for path in Path("site").rglob("*.html")}
    assert len(files) == 4
    for path, links in files.items():
        assert links.loads == []
        assert len(links.ids) == len(set(links.ids))
        for link in links.links:
            name, _, anchor = link.partition("#")
            target = (
                (path.parent / name).resolve().relative_to(Path.cwd()) if name else path
            )
            assert target in files
            assert not anchor or anchor in files[target].ids, link


@pytest.mark.slow
def test_site_marks_configurations_that_the_newest_session_did_not_judge(
    site: Site, history: StoreLocation
) -> None:
    """One configuration has no run; the last session only judges an old run of the other."""
    store_session(history, -1, make_outcome(0, 5.0, FP8), make_outcome(-1, None))
    site()
    assert rows()[ID].startswith("○ MISSING")
    assert rows()[FP8.id].startswith("○ NO RUN")
    assert "1 configuration without a verdict of the newest sessions" in read()
    assert "the newest sessions did not judge this configuration" in page(FP8)


@pytest.mark.slow
def test_site_shows_the_most_severe_of_several_items_of_a_configuration(
    site: Site, history: StoreLocation
) -> None:
    """The order of the items in the session does not matter."""
    for minutes, order in ((1, 1), (2, -1)):  # the second session is the newer one
        items = [
            make_outcome(0, 5.0, FP8),
            make_outcome(
                0,
                5.0,
                FP8,
                status="failed",
                verdict="TEST_FAILED",
                reason="test-failed",
            ),
        ]
        write(
            history,
            document(*items[::order], began=LAST + timedelta(hours=3, minutes=minutes)),
        )
        site()
        assert rows()[FP8.id].startswith("✕ TEST_FAILED")


@pytest.mark.slow
def test_invalid_newest_run_is_shown_in_the_index_but_not_charted(
    site: Site, history: StoreLocation
) -> None:
    invalid = make_outcome(
        0,
        5.0,
        FP8,
        status="failed",
        verdict="INVALID",
        reason="diverged",
        problems=[{"code": "diverged", "text": "", "line": 0}],
    )
    run = {
        **invalid["run"],
        "job_id": "77",
        "started": (LAST + timedelta(hours=1)).isoformat(),
    }
    store_session(history, 0, {**invalid, "run": {**run, "log_fingerprint": ["77-77"]}})
    site()
    assert rows()[FP8.id].startswith("! INVALID")
    assert "30, 30 with a valid step time" in page(FP8)
    assert "Compare it" not in page(FP8)  # a diverged run has no usable step time


@pytest.mark.slow
def test_site_prints_a_caution_if_the_newest_session_is_days_old(
    site: Site, history: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    site()
    assert "ago: these pages are out of date" not in read()
    Path("history.db").unlink()
    store_session(history, 7, make_outcome(7, 7.4))
    site()
    assert "the newest session of this history started" in read()


@pytest.mark.slow
def test_days_option_limits_the_site_to_the_last_days(site: Site) -> None:
    oldest = datetime.now(UTC) - timedelta(days=5)
    days = sum(
        LAST - timedelta(days=ago) > oldest for ago in range(30)
    )  # days on which a run started
    assert days in (4, 5)  # depends on the time of day
    assert site("--days", "5").startswith(f"2 configurations, {days} days")
    assert page().count("<tr id=n") == days
    assert rows()[ID].split()[3] == "-"  # too few days for a level change


@pytest.mark.slow
def test_untrusted_names_are_escaped(site: Site, history: StoreLocation) -> None:
    """Covers ids, jobs, nodes, environment, messages and the file name of a page."""
    hostile = make_outcome(
        0, 6.0, reason=HOSTILE, text=HOSTILE, environment={HOSTILE: HOSTILE}
    )
    hostile["configuration"] = {**hostile["configuration"], "id": f"../../{HOSTILE}"}
    hostile["run"] = {**hostile["run"], "job_id": HOSTILE, "nodes": [HOSTILE]}
    write(
        history,
        document(
            hostile,
            host=HOSTILE,
            options=[HOSTILE],
            began=LAST + timedelta(hours=3, seconds=1),
        ),
    )
    site()
    for path in Path("site").rglob("*.html"):
        assert HOSTILE not in path.read_text()
    names = [path.name for path in Path("site/configurations").iterdir()]
    assert name_page(f"../../{HOSTILE}") in names
    assert len(names) == 3
    assert "&lt;script&gt;" in read()


def test_pages_contain_no_secrets(
    site: Site, history: StoreLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_correcthorsebatterystaple")
    text = "--token hf_correcthorsebatterystaple"
    store_session(
        history, -1, make_outcome(-1, 7.4, text=text, environment={"argument": text})
    )
    site()
    assert all(
        "correcthorse" not in path.read_text() for path in Path("site").rglob("*.html")
    )


@pytest.mark.slow
def test_regenerating_a_site_keeps_files_that_the_user_added(
    site: Site,
) -> None:
    site()
    before = page()
    Path("site/notes.txt").write_text("mine")
    Path("site/configurations/other.html").write_text("mine")
    site()
    assert page()[:2000] == before[:2000]
    assert (
        Path("site/notes.txt").read_text()
        == Path("site/configurations/other.html").read_text()
        == "mine"
    )
    assert not list(Path("site").rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index.html", f"configurations/{ID}.html"])
def test_foreign_file_prevents_writing_any_page(site: Site, name: str) -> None:
    """The page of a session is a foreign file, too."""
    path = Path("site", name)
    path.parent.mkdir(parents=True)
    path.write_text("<!DOCTYPE html><title>1 red - llmbench</title>")
    error = site(code=2)
    assert (
        f"{path}: an existing file of another kind (expected: page of llmbench site)"
        in error.replace("'", "")
    )
    assert [entry for entry in Path("site").rglob("*") if entry.is_file()] == [path]


OUTPUT_ERRORS = {
    "site/file": "expected a folder",
    "in the way": "-o in the way: some pages cannot be written",
    "s3://bucket/site": "expected a folder on this machine",
}


@pytest.mark.parametrize("output", OUTPUT_ERRORS)
def test_invalid_output_folder_is_refused(site: Site, output: str) -> None:
    Path("site").mkdir()
    Path("site/file").write_text("mine")
    Path("in the way").mkdir()
    Path("in the way/configurations").write_text("mine")
    assert OUTPUT_ERRORS[output] in site("-o", output, code=2)
    assert Path("site/file").read_text() == "mine"


RECENT_CHANGE = r"<li>.*: \+8\.\d % \(.*\) since"

ENTRY = """schema: 1
acknowledged:
  - {{configuration: "{name}", slower: 9%, since: {since}, expires: {expires}, reason: "driver <555>", by: A. Person}}
"""


def accept(name: str = ID, days: int = 30) -> str:
    """Acknowledge the slowdown of a configuration for `days`. Returns the option."""
    since = (LAST - timedelta(days=9)).date()
    text = ENTRY.format(
        name=name, since=since, expires=datetime.now(UTC).date() + timedelta(days=days)
    )
    Path("acknowledged.yaml").write_text(text)
    return "--acknowledged=acknowledged.yaml"


@pytest.mark.slow
def test_acknowledged_change_is_not_listed_among_recent_changes(site: Site) -> None:
    site()
    assert re.search(RECENT_CHANGE, read())
    assert "<td>persists</td>" in page()
    accept()
    Path("pytest.ini").write_text("[pytest]\nllmb_acknowledged = acknowledged.yaml\n")
    site()
    assert not re.search(RECENT_CHANGE, read())
    assert "<p>1 acknowledged change not listed</p>" in read()
    assert re.search(
        r"<td>acknowledged by A\. Person until \d{4}-\d\d-\d\d: driver &lt;555&gt;</td>",
        page(),
    )
    assert re.search(r"\+8\.\d % known", page())  # in the chart
    assert rows()[ID].startswith(
        f"✕ REGRESSION {ID} +8"
    )  # the total includes it, and the verdict of the day stays


def test_change_with_expired_acknowledgement_is_listed_among_recent_changes(
    site: Site,
) -> None:
    site(accept(days=-1))
    assert re.search(f"{RECENT_CHANGE}.*the acknowledgement expired on", read())
    assert "<td>persists; was acknowledged by A. Person until" in page()


def test_invalid_acknowledgements_are_a_usage_error(
    site: Site,
) -> None:
    Path("acknowledged.yaml").write_text("schema: 1\nacknowledged: [{}]\n")
    assert "acknowledged.yaml:2" in site("--acknowledged=acknowledged.yaml", code=2)
    assert not Path("site").exists()


def test_history_without_recent_verdict_is_refused(
    site: Site, history: StoreLocation, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("history.db").unlink()
    store_session(history, 90, make_outcome(90, 7.4))
    assert "give more --days" in site("--days", "30", code=2)
    assert not Path("site").exists()


@pytest.mark.parametrize(
    "arguments", [["--days", "0"], ["--days", "-1"], ["--days", "x"], []]
)
def test_invalid_options_are_a_usage_error(
    history: StoreLocation, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """Without arguments, the required -o is missing."""
    output = ["-o", "site"] if arguments else []
    with pytest.raises(SystemExit) as ended:
        cli.main(["site", "--history", history.shown, *output, *arguments])
    assert ended.value.code == 2
    assert "usage: llmbench site" in capsys.readouterr().err


def test_missing_jinja2_is_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "jinja2" else name
    )
    assert "pip install 'pytest-llmbench[html]'" in site(code=2)
    assert not Path("site").exists()
