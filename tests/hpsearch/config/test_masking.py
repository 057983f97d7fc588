from __future__ import annotations

import pytest

from hpsearch.config.masking import looks_secret, mask_words


@pytest.mark.parametrize(
    "key",
    [
        *(
            "password",
            "DB_PASSWD",
            "smtp.pwd",
            "api_key",
            "--api-key",
            "apiKey",
            "wandb.apikey",
            "AWS_SECRET_ACCESS_KEY",
        ),
        *("token", "hf_token", "--auth-token", "credentials.user", "private_key.value", "passphrase"),
        *("openai_key", "--wandb-key", "licenseKey", "smtp_pw", "bearer"),
    ],
)
def test_keys_of_secrets_are_known_by_their_names(key: str) -> None:
    assert looks_secret(key)


@pytest.mark.parametrize(
    "key", ["lr", "max_tokens", "token_dropout", "tokens", "key", "num_keys", "keyframes", "pass", "passes", "author"]
)
def test_names_of_hyperparameters_are_none(key: str) -> None:
    assert not looks_secret(key)


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        ("hpsearch run s.yaml --set parameters.api_key.value=x", "parameters.api_key.value=***"),
        ("hpsearch run s.yaml --set=password=x", "--set=password=***"),
        ("python train.py --api-key x", "***"),
        ("python train.py --token=x", "--token=***"),
        ("python train.py token=x", "token=***"),
    ],
)
def test_their_values_are_masked_in_a_command_line(words: str, masked: str) -> None:
    *before, last = words.split()
    assert mask_words([*before, last, "--lr=0.1"]) == [*before, masked, "--lr=0.1"]


def test_so_is_a_mapping_that_holds_one() -> None:
    assert mask_words(["--set", 'parameters={"api_key": {value: x}, lr: {value: 1}}']) == ["--set", "parameters=***"]


def test_all_else_stays() -> None:
    words = [
        "python",
        "-c",
        "import x; f(token)",
        "--auth-token",
        "--set",
        "max_tokens=5",
        "--set",
        "a={min: 0, max: 1}",
    ]
    assert mask_words(words) == words
