"""Where the shipped baseline files are."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.core.errors import BaselineError

PACKAGE = Path(__file__).resolve().parents[1]


def shipped_baselines(package: Path = PACKAGE) -> Path:
    """Return the folder of the shipped files: inside the package (wheel) or beside it (checkout, editable install).

    Raises BaselineError where neither is there: an installation that lost its data must not judge nothing.
    """
    inside, beside = package / "baselines", package.parent / "baselines"
    if inside.is_dir():
        return inside
    # The parent of an installed package is site-packages, where a folder of that name would be somebody else's.
    if beside.is_dir() and (package.parent / "pyproject.toml").is_file():
        return beside
    raise BaselineError(f"{inside}: no such folder, expected the shipped baseline files; install pytest-llmbench again")
