"""The token of a local Ray, and the cluster that this machine belongs to; no Ray runs."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hpsearch.backends.ray.access import is_loopback, known_cluster, make_private_token


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".ray" / "auth_token"


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_where_there_is_no_token_one_is_made_that_the_user_alone_can_read(token: Path) -> None:
    make_private_token()
    assert (len(token.read_text()), mode(token)) == (64, 0o600)


def test_one_that_is_there_stays_and_is_closed_to_others(token: Path) -> None:
    token.parent.mkdir()
    token.write_text("mine")
    token.chmod(0o644)
    make_private_token()
    assert (token.read_text(), mode(token)) == ("mine", 0o600)


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "t"), ("RAY_AUTH_TOKEN_PATH", "/nowhere")]
)
def test_where_ray_uses_none_or_another_one_there_is_none(
    token: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    make_private_token()
    assert not token.parent.exists()


def test_the_cluster_of_this_machine_is_the_one_that_is_named_or_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert known_cluster() is None
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379\n")
    assert known_cluster() == "10.0.0.1:6379"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
    assert known_cluster() == "10.0.0.2:6379"


def test_loopback_addresses_are_known() -> None:
    assert all(map(is_loopback, ["127.0.0.1:1", "localhost:1", "[::1]:1"]))
    assert not any(map(is_loopback, ["10.0.0.1:6379", "ray-head:6379"]))
