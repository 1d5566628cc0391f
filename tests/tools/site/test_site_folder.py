"""The names of the pages of a site, and how they come into its folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.report.output_files import HTML, find_obstacle
from pytest_llmbench.tools.site.site_folder import PAGE, name_page, write_site

OWN = "<!DOCTYPE html>\n<html><head><title>1 red - llmbench site</title>"


@pytest.mark.parametrize("name", ["grok1_314b-25.05-gb200-bf16-128", "a", "0.1_x"])
def test_a_plain_id_is_the_name_of_its_page(name: str) -> None:
    assert name_page(name) == f"{name}.html"


@pytest.mark.slow
@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_every_id_has_a_name_of_its_own_that_stays_in_its_folder(
    ids: list[str],
) -> None:
    """Also on a disk that takes one case for the other, and where names have 255
    bytes."""
    names = [name_page(each) for each in ids]
    assert len({name.lower() for name in names}) == 2
    for name in names:
        assert len(name.encode()) <= 255
        assert Path(name).name == name
        assert not name.startswith(".")
        assert name == name_page(ids[names.index(name)])


@pytest.mark.parametrize(
    "name", ["../index", "..", "", "A", "a" * 200, "con/fig", "é", "x\ny", "-o"]
)
def test_an_id_that_is_no_plain_name_has_a_digest(name: str) -> None:
    assert "~" in name_page(name)


def test_a_page_of_a_site_and_one_of_a_session_do_not_replace_each_other(
    tmp_path: Path,
) -> None:
    site, session = tmp_path / "site.html", tmp_path / "session.html"
    site.write_text(OWN)
    session.write_text(OWN.replace(" site<", "<"))
    assert find_obstacle(site, PAGE) == find_obstacle(session, HTML) == ""
    assert find_obstacle(site, HTML)
    assert find_obstacle(session, PAGE)


def test_the_first_page_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full before that, it links to nothing that is not there."""
    written = []

    def write(path: Path, *_: object) -> None:
        written.append(path.name)

    monkeypatch.setattr(
        "pytest_llmbench.tools.site.site_folder.write_atomically", write
    )
    write_site(
        tmp_path, {"index.html": OWN, "configurations/z.html": OWN, "a.html": OWN}
    )
    assert written[-1] == "index.html"
    assert len(written) == 3
