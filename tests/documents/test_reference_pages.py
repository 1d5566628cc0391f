"""The generated pages of docs/reference are up to date."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(CHECKOUT / "scripts" / "reference_pages"))


@pytest.mark.parametrize("name", SCRIPT["PAGES"])
def test_generated_reference_page_is_up_to_date(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python scripts/reference_pages` writes the pages again."""
    if name == "commands.md" and sys.version_info >= (3, 13):
        pytest.skip("argparse formats help otherwise since Python 3.13")
    monkeypatch.setenv("COLUMNS", "100")
    page = (SCRIPT["FOLDER"] / name).read_text(encoding="utf-8")
    assert page == SCRIPT["make_page"](name)
