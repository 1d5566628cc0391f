"""Patterns that are compiled when they are first used."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pytest_llmbench.core.patterns import compile_on_use


def test_pattern_finds_what_a_compiled_one_finds() -> None:
    """All methods and attributes equal those of `re.compile`."""
    source, text = r"(?P<name>[a-z]+)=(\d)?", "a=1 b= C=3"
    pattern, compiled = compile_on_use(source), re.compile(source)
    assert [match.span() for match in pattern.finditer(text)] == [(0, 3), (4, 6)]
    assert pattern.findall(text) == compiled.findall(text)
    assert pattern.split(text) == compiled.split(text)
    assert pattern.sub("x", text, count=1) == compiled.sub("x", text, count=1)
    assert pattern.subn("x", text) == compiled.subn("x", text)
    match, searched = pattern.match(text), pattern.search(text, 1)
    assert match is not None
    assert match.groupdict() == {"name": "a"}
    assert searched is not None
    assert searched.span() == (4, 6)
    assert pattern.fullmatch(text) is None
    assert pattern.groupindex == compiled.groupindex
    assert (pattern.pattern, pattern.flags, pattern.groups) == (
        compiled.pattern,
        compiled.flags,
        compiled.groups,
    )


@pytest.mark.parametrize("first", ["search", "match", "groups"])
def test_flags_apply_whichever_attribute_is_used_first(first: str) -> None:
    pattern = compile_on_use(rb"A", re.IGNORECASE)
    getattr(pattern, first)
    assert pattern.search(b"xa")


def test_method_that_was_taken_before_the_first_use_still_works() -> None:
    pattern = compile_on_use("b")
    search = pattern.search
    assert pattern.search("ab")
    assert search("ab", 1)
    assert search("ab", 2) is None


def test_fault_is_reported_when_the_pattern_is_used() -> None:
    pattern = compile_on_use("(")
    with pytest.raises(re.error):
        pattern.search("")


COMPILE_ALL = """
import gc, importlib, pkgutil, re
import pytest_llmbench
from pytest_llmbench.core.patterns import LazyPattern

for module in pkgutil.walk_packages(pytest_llmbench.__path__, "pytest_llmbench."):
    importlib.import_module(module.name)
declared = [item for item in gc.get_objects() if type(item) is LazyPattern]
for pattern in declared:
    assert re.compile(pattern.pattern, pattern._flags).groups == pattern.groups
print(len(declared))
"""


@pytest.mark.slow
def test_all_patterns_of_the_package_compile() -> None:
    """A faulty pattern fails here, since it no longer fails when it is imported.

    In a process of its own: sessions in this one hide objects from the collector.
    """
    command = [sys.executable, "-c", COMPILE_ALL]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 250
