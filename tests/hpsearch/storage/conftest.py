"""A real S3 server on loopback, moto's, behind a proxy that fails as a test says."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hpsearch.support.buckets import KEYS, Proxy, proxy_before


@dataclass(frozen=True)
class S3:
    """A bucket of a server."""

    proxy: Proxy
    url: str
    """A folder in the bucket."""
    environment: dict[str, str]
    """What a process needs to reach it."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[tuple[str, int]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from moto.server import ThreadedMotoServer
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()
    server.stop()


_numbers = itertools.count()


@pytest.fixture
def s3(s3_server: tuple[str, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    """A new bucket, which this process can reach."""
    import boto3

    with proxy_before(s3_server) as proxy:
        environment = {**KEYS, "AWS_ENDPOINT_URL": proxy.url, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        name = f"bucket-{next(_numbers)}"
        boto3.session.Session().client("s3").create_bucket(Bucket=name)
        yield S3(proxy, f"s3://{name}/studies", environment)
