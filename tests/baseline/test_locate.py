"""The shipped files are found in a wheel, a checkout and an editable install, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_llmbench.baseline.read import find_shipped_baselines
from pytest_llmbench.core.errors import BaselineError


def package(root: Path) -> Path:
    path = root / "pytest_llmbench"
    path.mkdir(parents=True)
    return path


def test_the_installed_package_has_them() -> None:
    assert (find_shipped_baselines() / "grok1" / "24.11.yaml").is_file()


def test_a_wheel_has_them_inside(tmp_path: Path) -> None:
    inside = package(tmp_path) / "baselines"
    inside.mkdir()
    (tmp_path / "baselines").mkdir()
    assert find_shipped_baselines(tmp_path / "pytest_llmbench") == inside


def test_a_checkout_has_them_beside(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert find_shipped_baselines(package(tmp_path)) == tmp_path / "baselines"


def test_a_folder_of_that_name_in_site_packages_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    with pytest.raises(BaselineError, match="expected the shipped baseline files"):
        find_shipped_baselines(package(tmp_path))
