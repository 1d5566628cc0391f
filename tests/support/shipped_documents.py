"""The shipped baseline files and their source documents."""

from __future__ import annotations

from pytest_llmbench.baseline.read import find_shipped_baselines, read_recipe
from pytest_llmbench.core.baseline_records import Recipe
from support.shared_data import shared

DOCUMENTS = {
    "grok1/24.11": "000_e0e04c4c085ed8d6.txt",
    "maxtext_llama2/24.11": "001_74aabd83c4a30565.txt",
    "grok1/25.05": "002_e4d1b25d7aef7166.txt",
    "nemotron4/25.01": "003_6c8318a40332ad32.txt",
    "llama3.1/25.04": "004_a73f50c75f1f041c.txt",
}


def recipe(name: str) -> Recipe:
    return read_recipe(find_shipped_baselines() / f"{name}.yaml")


def text_of(name: str) -> str:
    return shared(f"recipes/{DOCUMENTS[name]}").read_text()
