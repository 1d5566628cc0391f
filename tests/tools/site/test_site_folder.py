"""Naming and writing the pages of a site."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.report.output_files import HTML, find_obstacle
from pytest_llmbench.tools.site.site_folder import PAGE, name_page, write_site

SITE_PAGE = "<!DOCTYPE html>\n<html><head><title>1 red - llmbench site</title>"


@pytest.mark.parametrize("name", ["grok1_314b-25.05-gb200-bf16-128", "a", "0.1_x"])
def test_page_of_a_configuration_is_named_after_its_id(name: str) -> None:
    assert name_page(name) == f"{name}.html"


@pytest.mark.slow
@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_page_names_are_unique_and_safe(
    ids: list[str],
) -> None:
    """Names differ even if case is ignored, and have at most 255 bytes."""
    names = [name_page(identifier) for identifier in ids]
    assert len({name.lower() for name in names}) == 2
    for name in names:
        assert len(name.encode()) <= 255
        assert Path(name).name == name
        assert not name.startswith(".")
        assert name == name_page(ids[names.index(name)])


@pytest.mark.parametrize(
    "name", ["../index", "..", "", "A", "a" * 200, "con/fig", "é", "x\ny", "-o"]
)
def test_page_name_of_an_unusual_id_contains_a_digest(name: str) -> None:
    assert "~" in name_page(name)


def test_site_and_session_pages_never_replace_each_other(
    tmp_path: Path,
) -> None:
    site, session = tmp_path / "site.html", tmp_path / "session.html"
    site.write_text(SITE_PAGE)
    session.write_text(SITE_PAGE.replace(" site<", "<"))
    assert find_obstacle(site, PAGE) == find_obstacle(session, HTML) == ""
    assert find_obstacle(site, HTML)
    assert find_obstacle(session, PAGE)


def test_index_page_is_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index never links to pages that could not be written."""
    written = []

    def write(path: Path, *_: object) -> None:
        written.append(path.name)

    monkeypatch.setattr(
        "pytest_llmbench.tools.site.site_folder.write_atomically", write
    )
    pages = dict.fromkeys(("index.html", "configurations/z.html", "a.html"), SITE_PAGE)
    write_site(tmp_path, pages, pages.items())
    assert written[-1] == "index.html"
    assert len(written) == 3
