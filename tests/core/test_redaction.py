"""Redaction: tokens and passwords are hidden; words, numbers, paths and names are not."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.redaction import (
    Redactor,
    find_secret_names,
    hide_password_of,
    hide_tokens,
    hide_values,
    is_secret,
    list_secret_values,
)

HF = "hf_" + "aB3" * 11
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


@pytest.mark.parametrize(
    "name",
    [
        "MAX_TOKENS",
        "TOTAL_TOKENS",
        "TOKENIZERS_PARALLELISM",
        "SECRETARY",
        "PWD",
        "KEYS",
    ],
)
def test_name_without_a_secret_word_is_not_secret(name: str) -> None:
    assert find_secret_names({name: "x"}) == ()


@pytest.mark.parametrize(
    "value",
    [
        "short-7",
        "1234567890",
        "2026-11-23 05:00",
        "disabled",
        "/run/user/agent.1",
        "~/.cache/hf/token",
        "config/keys/id_rsa.pem",
    ],
)
def test_ordinary_value_is_not_a_secret(value: str) -> None:
    assert not is_secret(value)
    assert list_secret_values({"MY_TOKEN": value}) == ()


@pytest.mark.parametrize(
    "value", ["s3cr3t-0f", "correcthorse1", "aB/cD+eF12==", "p@ss word", "hf_mine-of"]
)
def test_value_of_a_secret_variable_is_hidden(value: str) -> None:
    assert list_secret_values({"MY_TOKEN": value, "MODEL": "llama3.1-405b"}) == (value,)
    assert Redactor([value]).redact(f"a {value} b") == "a *** b"


@pytest.mark.parametrize(
    "token",
    [
        HF,
        "ghp_" + "a1B2" * 9,
        "AKIAIOSFODNN7EXAMPLE",
        JWT,
        "nvapi-" + "aB-3" * 12,
    ],
)
def test_token_of_a_known_format_is_hidden(token: str) -> None:
    assert hide_tokens(f"url=https://{token}, '{token}'") == "url=https://***, '***'"


@pytest.mark.parametrize(
    "text",
    [
        "hf_model_name",
        "hf_transformers",
        "ghp_short",
        "AKIA",
        "a bearer of bad-news-for-everyone",
        "bearer token",
        "sk-learn",
        "https://host:8080/path@v2",
        "docker://nvcr.io:5000/nvidia/nemo@sha256:ab",
        "user@host: text",
        "github://owner:repository@v1/path",
        "https://h/x?tokenizer=llama&max_tokens=4096",
        "/data:/data:ro a@b",
        "log.out:22: rank 3@n1",
        "grok1_314b-25.05-gb200-bf16-128",
        "eyJust a word.eyJ.x",
        "step 3: 1.5e-08 s",
        "https://registry:5000/img@sha256:ab",
        "http://npm:4873/@scope/pkg",
        "git+https://host:8080/repo@v1.2#egg=x",
        "http://localhost:8080/a@b.org",
        "http://10.0.0.1:8080/a@b.org",
        "postgresql://h:5432/d",
        "EOS_TOKEN=<|endoftext|>",
        "PAD_TOKEN=endoftext",
        "MAX_TOKENS=4096k-and-8",
        "HF_TOKEN=$HF_TOKEN_OF_CI",
        "API_KEY=/run/secrets/key1",
        "eos_token=endoftext2",
    ],
)
def test_harmless_text_is_not_changed(text: str) -> None:
    assert Redactor(["s3cr3t-0f-mine"]).redact(text) == text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("postgresql://u:p@ssX@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@/ssX@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p?#ssX@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@corp:pw@h/d", "postgresql://u@corp:***@h/d"),
        ("postgresql://u:12/ssX@h/d", "postgresql://u:***@h/d"),
        ("mysql://u:123#X@h", "mysql://u:***@h"),
        ("https://u:1234?ssX@proxy:3128", "https://u:***@proxy:3128"),
        ("+ export WANDB_API_KEY=0123456789abcdef0123", "+ export WANDB_API_KEY=***"),
        ("HF_TOKEN='hf_m1ne+a/b==' srun", "HF_TOKEN='***' srun"),
        ("postgresql:u:pw@h/d", "postgresql:u:***@h/d"),
        ("zip://a::https://u:p@h/x.zip", "zip://a::https://u:***@h/x.zip"),
        (
            "https://b/x?sv=1&sig=aB%2F&access_token=q",
            "https://b/x?sv=1&sig=***&access_token=***",
        ),
        ("host=h password=pw dbname=d", "host=h password=*** dbname=d"),
        ("host=h password='p w'", "host=h password='***'"),
        ("Authorization: Bearer abcdefgh12345678xyz", "Authorization: Bearer ***"),
    ],
)
def test_password_is_hidden_in_every_notation(text: str, redacted: str) -> None:
    assert hide_tokens(f"see {text} now") == f"see {redacted} now"
    assert hide_tokens(redacted) == redacted, "hiding twice changes nothing"


def test_url_password_with_spaces_is_hidden() -> None:
    assert (
        hide_password_of("--llmb-history=postgresql://u:pa ssX@h/d")
        == "--llmb-history=postgresql://u:***@h/d"
    )
    assert (
        hide_password_of("--llmb-history=postgresql://u:12/pa ssX@h/d")
        == "--llmb-history=postgresql://u:***@h/d"
    )
    assert hide_tokens("at https://a:1 and me@h") == "at https://a:1 and me@h"


def test_truncated_secret_is_hidden() -> None:
    redactor = Redactor(["s3cr3t-0f-mine"])
    assert (
        redactor.redact("the last line: s3cr3t-0… (log.out:3)")
        == "the last line: ***… (log.out:3)"
    )
    assert redactor.redact("key s3cr3t...") == "key ***..."
    assert redactor.redact("and so on…") == "and so on…"
    assert redactor.redact(f"token {HF[:20]}… (log:3)") == "token ***… (log:3)"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("see k9Xq7Lm2Zr4Tb8Wd!", "see ***!"),  # the end of one begins the other
        ("k9Xq7Lm2Zr4T, Zr4Tb8Wd", "***, ***"),
        ("k9Xq7Lm2Zr4TZr4Tb8Wd", "******"),
    ],
)
def test_overlapping_secrets_are_hidden_completely(text: str, redacted: str) -> None:
    values = ("k9Xq7Lm2Zr4T", "Zr4Tb8Wd")
    assert Redactor(values).redact(text) == redacted
    assert hide_values(text, values) == redacted


def test_mapping_keys_numbers_and_exempted_fields_are_not_redacted() -> None:
    redactor = Redactor(["node0001-a", "s3cr3t-0f-mine"])
    values = {
        "s3cr3t-0f-mine": 1,
        "nodes": ["node0001-a"],
        "text": "on node0001-a",
        "seconds": [1.5, None],
        "of": True,
    }
    expected = {**values, "text": "on ***"}
    assert redactor.redact_values(values, {"nodes"}) == expected


@pytest.mark.slow
@given(
    value=st.text(string.printable, min_size=8, max_size=40).filter(is_secret),
    around=st.text(max_size=20),
)
def test_secret_is_hidden_in_any_text(value: str, around: str) -> None:
    redacted = Redactor([value]).redact_values({"a": [f"{around}{value}{around}"]})[
        "a"
    ][0]
    assert value not in redacted.replace("***", "\0") or value in around
