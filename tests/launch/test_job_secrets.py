"""Secrets are recognised by name, and masked in all output."""

from __future__ import annotations

import json
import shlex
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.shipped_specs import CALLER, spec

from pytest_llmbench.core.log_records import Quote
from pytest_llmbench.core.redaction import find_secret_names, mask_environment
from pytest_llmbench.launch.job_secrets import (
    WITHHELD,
    find_secret_values,
    hide_in_quote,
    make_digest,
    redact,
)

HARD = "a'b c;$(d)\n\"/+?&=é"


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "MY_SECRET",
        "DB_PASSWORD",
        "PGPASSWD",
        "WANDB_API_KEY",
        "apikey",
        "AWS_ACCESS_KEY_ID",
        "X_KEY",
    ],
)
def test_secret_is_recognised_by_its_name(name: str) -> None:
    assert find_secret_names({name: "x", "DTYPE": "fp8"}) == (name,)


@pytest.mark.parametrize(
    "name",
    ["PWD", "OLDPWD", "PATH", "DTYPE", "TOKENIZERS_PARALLELISM", "KEYBOARD", "AUTHOR"],
)
def test_similar_name_is_no_secret(name: str) -> None:
    assert find_secret_names({name: "x"}) == ()


def test_variables_listed_as_secret_are_secret() -> None:
    assert find_secret_names({"A": "1", "HF_TOKEN": "2"}, ("A", "B")) == (
        "A",
        "B",
        "HF_TOKEN",
    )


@pytest.mark.parametrize(
    "form",
    [
        HARD,
        shlex.quote(HARD),
        quote(HARD),
        quote(HARD, safe=""),
        quote_plus(HARD),
        json.dumps(HARD),
        json.dumps(HARD, ensure_ascii=False),
        repr(HARD),
    ],
)
def test_secret_is_masked_in_every_quoting(form: str) -> None:
    for line in redact(f"before {form} after", [HARD]).splitlines():
        assert not [
            fragment
            for fragment in ("b c", "$(d)", "d%29", "%28d", "b%20c", "b+c")
            if fragment in line
        ]


@pytest.mark.slow
@given(value=st.text(min_size=1, max_size=30), around=st.text(max_size=10))
def test_no_secret_value_remains_in_text(value: str, around: str) -> None:
    if len(value) >= 4 and value not in "***":
        assert value not in redact(f"{around}{value}{around}", [value]).replace(
            "***", "\0"
        )


def test_short_secret_is_masked_only_as_a_word() -> None:
    assert redact("token=ab, cabbage ab.", ["ab"]) == "token=***, cabbage ***."


def test_longer_secret_is_masked_first() -> None:
    assert redact("abcdefgh", ["abcd", "abcdefgh"]) == "***"


def test_job_secrets_are_masked_in_text() -> None:
    job = spec("llama3.1/25.04", "8b-25.04-h100-bf16-8")
    assert "HF_TOKEN" in job.secrets
    assert find_secret_values(job) == (CALLER["HF_TOKEN"],)
    assert (
        redact(f"curl -H 'Bearer {CALLER['HF_TOKEN']}'", job) == "curl -H 'Bearer ***'"
    )
    assert redact("nothing to hide", replace(job, secrets=())) == "nothing to hide"


@pytest.mark.parametrize(
    "quoted", ["hf_secret-of-mine", "hf_secret-of-m", "hf_secret-of-m…", "hf_s"]
)
def test_truncated_secret_is_hidden_in_a_quote(quoted: str) -> None:
    job = replace(
        spec("llama3.1/25.04", "8b-25.04-h100-bf16-8"),
        environment=(("HF_TOKEN", "hf_secret-of-mine"),),
    )
    assert hide_in_quote(Quote(f"token: {quoted}"), job) == "token: ***"
    assert hide_in_quote(Quote("other text…"), job) == "other text…"


def test_log_is_not_quoted_if_the_token_has_changed() -> None:
    fresh = replace(
        spec("llama3.1/25.04", "8b-25.04-h100-bf16-8"),
        environment=(("HF_TOKEN", "hf_new"),),
    )
    for old_token, expected in (("hf_new", "token: ***"), ("hf_old", WITHHELD)):
        job = replace(fresh, digests=(("HF_TOKEN", make_digest(old_token)),))
        assert hide_in_quote(Quote(f"token: {old_token}"), job) == expected
    assert make_digest("hf_new") != make_digest("hf_new"), (
        "equal secrets of two jobs are not seen to be equal"
    )
    removed = replace(
        fresh, environment=(), digests=(("HF_TOKEN", make_digest("hf_old")),)
    )
    assert hide_in_quote(Quote("token: hf_old"), removed) == WITHHELD


def test_digests_do_not_distinguish_job_specs() -> None:
    job = spec("llama3.1/25.04", "8b-25.04-h100-bf16-8")
    digested = replace(job, digests=(("HF_TOKEN", make_digest("hf_old")),))
    assert (digested, hash(digested)) == (job, hash(job))
    assert replace(digested, nodes=job.nodes + 1) != job


def test_log_is_not_quoted_without_the_secrets_of_the_job() -> None:
    job = replace(
        spec("llama3.1/25.04", "8b-25.04-h100-bf16-8"),
        environment=(("HF_TOKEN", "***"),),
    )
    assert hide_in_quote(Quote("token: hf_secret"), job) == WITHHELD


def test_masked_environment_keeps_its_order() -> None:
    environment = {
        "A": "1",
        "HF_TOKEN": "hf_secret",
        "URL": "https://me:hf_secret@host",
        "EMPTY_TOKEN": "",
    }
    assert mask_environment(environment, ["HF_TOKEN", "EMPTY_TOKEN"]) == (
        ("A", "1"),
        ("HF_TOKEN", "***"),
        ("URL", "https://me:***@host"),
        ("EMPTY_TOKEN", ""),
    )
