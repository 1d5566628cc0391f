"""docs/options.md says what the table of options declares."""

from __future__ import annotations

import runpy
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_page_is_up_to_date() -> None:
    """`python scripts/options_page` writes it anew."""
    page = (CHECKOUT / "docs" / "options.md").read_text(encoding="utf-8")
    script = runpy.run_path(str(CHECKOUT / "scripts" / "options_page"))
    assert page == "\n".join(script["list_lines"]()) + "\n"
