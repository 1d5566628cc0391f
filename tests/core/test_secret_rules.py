"""Secrets are hidden in every notation and format; harmless texts are not changed.

The texts are in tests/support: secret_texts and harmless_texts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from support.harmless_texts import HARMLESS, SECOND_HARMLESS
from support.secret_texts import (
    draw_key,
    list_assigned,
    list_basic,
    list_blocks,
    list_second,
    list_tokens,
)

from pytest_llmbench.baseline.read import find_shipped_baselines, read_recipes
from pytest_llmbench.core.redaction import Redactor, list_secret_values
from pytest_llmbench.core.secret_rules import (
    RULES,
    TOKENS,
    hide_tokens,
    is_path,
    is_random,
    select_suspects,
)
from pytest_llmbench.core.token_rules import TOKEN_RULES

KNOWN_LEAKS = ("OmegaConf", "mc alias", "smbclient")
"""Texts that are shown according to SECURITY.md, because nothing marks their secret."""


def find_leaks(texts: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the texts in which eight characters of a secret remain."""
    for text, secret in texts:
        hidden = hide_tokens(text)
        if any(secret[index : index + 8] in hidden for index in range(len(secret) - 7)):
            yield text


@pytest.mark.slow
def test_secrets_are_hidden_in_every_notation() -> None:
    texts = list_assigned()
    assert len(texts) > 300
    assert list(find_leaks(texts)) == []


def test_tokens_of_known_services_are_hidden() -> None:
    texts = list_tokens()
    assert len(texts) > 50
    assert list(find_leaks(texts)) == []


@pytest.mark.parametrize("tail", ["-2", "_x9", "=", ".Q7x", "-AB12.cd="])
def test_characters_after_the_usual_length_of_a_token_are_hidden_too(tail: str) -> None:
    # Some rules also hide the full stop of a sentence.
    for text, secret in list_tokens():
        hidden = hide_tokens(text.replace(secret, secret + tail))
        assert hidden.rstrip(".") == hide_tokens(text).rstrip(".")


@pytest.mark.parametrize(
    "text",
    [
        "HF_TOKEN={0}, then {1}",
        "https://bot:{0}@host/{1}?token={0}&key={1}",
        "Authorization: Bearer {0} {1}",
        "{0}:{1}",
        "{0}|{1}",
        "{0} {0}{1}",
    ],
)
def test_overlapping_rules_hide_the_whole_secret(text: str) -> None:
    keys = ["h" + "f_" + "aB3dE5" * 6, "gl" + "pat-" + "x7Yq2Wz9Kd4" * 2 + "-v2"]
    for first, second in (keys, keys[::-1]):
        hidden = hide_tokens(text.format(first, second))
        assert not [
            key[index : index + 4]
            for key in (first, second)
            for index in range(6, len(key) - 3)
            if key[index : index + 4] in hidden
        ]


def test_private_keys_and_encoded_passwords_are_hidden() -> None:
    assert list(find_leaks([*list_blocks(), *list_basic()])) == []


def test_secret_rules_miss_only_the_known_leaks_of_a_second_collection() -> None:
    texts = list_second()
    assert len(texts) > 50
    leaks = list(find_leaks(texts))
    assert len(leaks) == len(KNOWN_LEAKS)
    assert all(any(name in text for name in KNOWN_LEAKS) for text in leaks)


@pytest.mark.slow
def test_harmless_known_texts_are_not_hidden() -> None:
    texts = [text.replace("\\n", "\n") for text in (*HARMLESS, *SECOND_HARMLESS)]
    assert len(texts) > 400
    assert [text for text in texts if hide_tokens(text) != text] == []


@pytest.mark.slow
def test_configuration_ids_are_not_changed() -> None:
    baselines = [
        baseline.key.id
        for recipe in read_recipes([find_shipped_baselines()])
        for baseline in recipe.baselines
    ]
    assert len(baselines) > 300
    notations = (
        "{}",
        "MODEL_KEY={}",
        "sort_key: {}",
        "--key {}",
        "runs/{}/log.out",
        '{{"key": "{}"}}',
        "token {} of",
    )
    texts = [notation.format(name) for name in baselines for notation in notations]
    assert [text for text in texts if hide_tokens(text) != text] == []


def test_secret_values_with_a_leading_slash_are_hidden() -> None:
    value = "/" + draw_key(39)
    environment = {
        "AWS_SECRET_ACCESS_KEY": value,
        "DB_PASSWORD": "/anything",
        "HF_TOKEN_PATH": "/root/.cache/hf/token",
    }
    assert set(list_secret_values(environment)) == {value, "/anything"}
    assert Redactor([value]).redact(f"signed with {value}?") == "signed with ***?"


def test_ordinary_names_in_variables_that_end_with_key_are_not_secrets() -> None:
    environment = {
        "MODEL_KEY": "grok1_314b-25.05-h100",
        "CACHE_KEY": "pip-linux-3.11",
        "SORT_KEY": "step_time",
    }
    assert list_secret_values(environment) == ()
    assert list_secret_values({"X_KEY": draw_key(32)}) != ()


def test_component_of_a_known_id_is_not_hidden() -> None:
    values = ["grok1_314b-25.05-h100", "admin-h100-2024", "314b-25.05-h100x"]
    redactor = Redactor(values).without(["grok1_314b-25.05-h100-fp8-512"])
    redacted = redactor.redact(
        "on grok1_314b-25.05-h100-fp8-512 by admin-h100-2024, 314b-25.05-h100x"
    )
    assert redacted == "on grok1_314b-25.05-h100-fp8-512 by ***, ***"


def test_value_of_a_secret_key_is_hidden() -> None:
    values = {
        "wandb_api_key": draw_key(32),
        "pad_token": "pad_token_128004",
        "text": f"alone: {draw_key(32)}",
    }
    assert Redactor().redact_values([values]) == [{**values, "wandb_api_key": "***"}]


def test_secret_across_lines_of_one_text_is_redacted() -> None:
    body = [draw_key(64) for _ in range(3)]
    lines = [
        "before",
        "-----BEGIN PRIVATE KEY-----",
        *body,
        "-----END PRIVATE KEY-----",
        "after",
    ]
    redacted = Redactor().redact_lines(lines)
    assert len(redacted) == len(lines)
    assert redacted[0] == "before"
    assert redacted[-1] == "after"
    assert not any(line in "\n".join(redacted) for line in body)
    assert Redactor().redact_lines(["before", *body]) == ["before", "***", "***", "***"]


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (
            "{'PATH': '/bin', 'WANDB_API_KEY': 'KEY'}",
            "{'PATH': '/bin', 'WANDB_API_KEY': '***'}",
        ),
        ('"api_key": "KEY", "rank": 3', '"api_key": "***", "rank": 3'),
        ("saw HF_TOKEN=KEY, rank 3", "saw HF_TOKEN=***, rank 3"),
        ("DB_PASSWORD=a;b&c'd,e\nHOME=/root", "DB_PASSWORD=***\nHOME=/root"),
        ("Namespace(hf_token='KEY', lr=0.1)", "Namespace(hf_token='***', lr=0.1)"),
        (
            "srun --export=ALL,HF_TOKEN=KEY,NCCL_DEBUG=INFO x",
            "srun --export=ALL,HF_TOKEN=***,NCCL_DEBUG=INFO x",
        ),
        (
            "AccountName=x;AccountKey=KEY;EndpointSuffix=y",
            "AccountName=x;AccountKey=***;EndpointSuffix=y",
        ),
        ("train.py --hf-token KEY --lr 1", "train.py --hf-token *** --lr 1"),
        ("https://KEY@github.com/a/b", "https://***@github.com/a/b"),
        ("curl -u bot:KEY https://h", "curl -u bot:*** https://h"),
        (
            "\x1b[33mHF_TOKEN\x1b[0m=\x1b[32mKEY\x1b[0m",
            "\x1b[33mHF_TOKEN\x1b[0m=\x1b[32m***\x1b[0m",
        ),
    ],
)
def test_redaction_hides_only_the_value_of_a_key(text: str, redacted: str) -> None:
    key = draw_key(32).replace("/", "x").replace("+", "y")
    assert (
        hide_tokens(
            text.replace("KEY", key)
            .replace(f"API_{key}", "API_KEY")
            .replace(f"Account{key}", "AccountKey")
        )
        == redacted
    )


def test_hiding_secrets_twice_gives_the_same_text_as_once() -> None:
    for text, _ in [*list_assigned()[::5], *list_tokens()[::5]]:
        hidden = hide_tokens(text)
        assert hide_tokens(hidden) == hidden


def test_every_rule_has_lower_case_keywords_and_compiles() -> None:
    for keywords, _ in RULES:
        assert all(keyword and keyword == keyword.lower() for keyword in keywords)
    for keywords, pattern in (*TOKENS, *TOKEN_RULES):
        assert all(keyword and keyword == keyword.lower() for keyword in keywords)
        assert re.compile(pattern).search("") is None


@pytest.mark.parametrize("quantifier", [r"\S*@", r"\S+@", r"[^\s]*", r".*="])
def test_patterns_have_no_unbounded_repetitions(quantifier: str) -> None:
    bound = {
        text
        for finder in RULES
        for text in getattr(finder[1], "args", ())
        if isinstance(text, str)
    }
    assert len(bound) > 15
    assert not [pattern for pattern in bound if quantifier in pattern]


def test_random_values_are_distinguished_from_names_and_paths() -> None:
    assert all(is_random(draw_key(size)) for size in (24, 32, 40, 64))
    assert is_path("/lustre/fsw/team")
    assert not is_path("/" + draw_key(39))
    for name in (
        "grok1_314b-25.05-gb200",
        "GPT2BPETokenizer",
        "nvcr.io/nvidia/nemo:25.04",
        "node-0001-rack-07",
        "2026-11-28",
    ):
        assert not is_random(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        "token=",
        "a:",
        "password: ",
        '"key": ',
        "://a:",
        "-----BEGIN PRIVATE KEY-----",
        "aB3x" * 500 + " ",
    ],
)
def test_redaction_time_grows_linearly_with_length(unit: str) -> None:
    def count_calls(size: int) -> int:
        calls = 0

        def count(*event: object) -> None:
            nonlocal calls
            calls += 1

        text = (unit * (size // len(unit) + 1))[:size]
        sys.setprofile(count)
        try:
            hide_tokens(text)
        finally:
            sys.setprofile(None)
        return calls

    count_calls(4000)  # compiles the patterns
    assert count_calls(16_000) <= 5 * count_calls(4000)


@pytest.mark.parametrize("values", [(), ("s3cr3t-0f-mine", "aB/cD+eF12=="), ("q7",)])
def test_column_is_redacted_like_each_of_its_texts(values: tuple[str, ...]) -> None:
    secrets = [*list_tokens(), *list_assigned(), *list_basic(), *list_blocks()]
    texts = [
        *(text for text, _ in secrets),
        *HARMLESS,
        *SECOND_HARMLESS,
        *("", "key", "ΑΣ", "İ hf_", "\ud800 token=", "a\nb", "x s3cr3t-0f-mine"),
        *("cut s3cr3t-0…", "cut s3cr3t...", "aB%2FcD%2BeF12%3D%3D", "the q7 word"),
    ]
    redactor = Redactor(values)
    redacted = redactor.redact_texts("text", [None, *texts, *texts])
    each = [redactor.redact(text) for text in texts]
    assert redacted == [None, *each, *each]
    assert each != texts


def test_suspects_are_the_texts_with_a_keyword() -> None:
    texts = ["", "plain", "HF_TOKEN=x", "ok", "pass\nword", "password"]
    suspects = select_suspects(texts)
    assert {"HF_TOKEN=x", "password"} <= suspects
    assert not {"", "plain", "ok"} & suspects
    assert select_suspects([]) == set()
