"""A folder of an S3 bucket, through boto3."""

from __future__ import annotations

import random
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeGuard, TypeVar

from hpsearch.config.import_paths import installing, is_installed
from hpsearch.errors import HpsearchError, StorageError, causes

T = TypeVar("T")

_URL = re.compile(r"s3://(?P<bucket>[^/]+)(?:/(?P<prefix>.*?))?/*")

_THREADS = 8
"""Number of concurrent transfers."""

_PART = 64 * 1024**2
"""Bytes of a part of a large object."""

_CONNECT_SECONDS, _READ_SECONDS = 10, 60

_PAUSES = (0.2, 0.4, 0.8, 1.6)
"""Mean seconds between attempts."""

_PASSING = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Status codes that may pass: throttled, overloaded, or another request on the same name is under way."""

_ADVICE = (
    "Check the credentials that boto3 finds (AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), the name of "
    "the bucket, and AWS_ENDPOINT_URL for a store that isn't Amazon's"
)


def is_url(place: str | Path) -> TypeGuard[str]:
    """Return whether this is the URL of something in an object store, and no path."""
    return isinstance(place, str) and "://" in place


class Bucket:
    """The objects below a URL. Names are relative to it. Its methods may be called by several threads.

    Args:
        url: `s3://bucket/folder`.

    Raises:
        HpsearchError: The URL is wrong, or boto3 isn't installed.
    """

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise HpsearchError(f"{url}: expected s3://bucket/folder. Other stores work through their S3 interface.")
        self.url = url.rstrip("/")
        if not is_installed("boto3"):
            raise HpsearchError(f"{url}: needs boto3, which isn't installed: {installing('s3')}")
        self._name: str = match["bucket"]
        self._prefix: str = f"{match['prefix']}/" if match["prefix"] else ""
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        # botocore's own retries draw from Python's global generator, which a trainable in this process may use.
        self._random = random.Random()
        config = Config(
            retries={"total_max_attempts": 1},
            # Stores other than Amazon's may not know the newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=_CONNECT_SECONDS,
            read_timeout=_READ_SECONDS,
            max_pool_connections=2 * _THREADS,
        )
        self._transfer = TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART, use_threads=False)
        self._client: Any = self._tried(lambda: boto3.session.Session().client("s3", config=config))

    def check(self) -> bool:
        """Return whether the store creates objects conditionally, after writing, reading and deleting one.

        Raises:
            StorageError: It can't be written or read.
        """
        name = f".hpsearch-{secrets.token_hex(8)}"
        self.create(name, b"1")
        is_conditional = not self.create(name, b"2") and self.read(name) == b"1"
        self.delete(name)
        return is_conditional

    def create(self, name: str, content: bytes) -> bool:
        """Create an object; return False if it exists already.

        Raises:
            StorageError: It may have been created, or not.
        """
        from botocore.exceptions import ClientError

        def put() -> bool:
            try:
                self._client.put_object(Bucket=self._name, Key=self._prefix + name, Body=content, IfNoneMatch="*")
            except ClientError as error:
                if _status(error) != 412:
                    raise
                return False
            return True

        return self._tried(put)

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes; None if there is none.

        Raises:
            StorageError: The store can't be read.
        """
        from botocore.exceptions import ClientError

        def get() -> bytes | None:
            try:
                content: bytes = self._client.get_object(Bucket=self._name, Key=self._prefix + name)["Body"].read()
            except ClientError as error:
                if _code(error) != "NoSuchKey":
                    raise
                return None
            return content

        return self._tried(get)

    def upload(self, name: str, file: IO[bytes]) -> None:
        """Write an object from a file, in parts if it is large; replace an existing one.

        Raises:
            StorageError: The store can't be written.
        """

        def put() -> None:
            file.seek(0)
            self._client.upload_fileobj(file, self._name, self._prefix + name, Config=self._transfer)

        self._tried(put)

    def download(self, name: str, file: IO[bytes]) -> None:
        """Write an object's bytes to a file, and go to its beginning.

        Raises:
            StorageError: There is none, or the store can't be read.
        """

        def get() -> None:
            file.seek(0)
            file.truncate()
            self._client.download_fileobj(self._name, self._prefix + name, file, Config=self._transfer)

        self._tried(get)
        file.seek(0)

    def names(self, folder: str = "") -> dict[str, str]:
        """Return the names of the objects below a folder, in order, and of each a tag that changes with its content.

        Raises:
            StorageError: The store can't be read.
        """
        entries = (entry for page in self._pages(folder) for entry in page.get("Contents", ()))
        return {entry["Key"][len(self._prefix) :]: entry["ETag"].strip('"') for entry in entries}

    def folders(self) -> list[str]:
        """Return the names of the folders in this one, in order.

        Raises:
            StorageError: The store can't be read.
        """
        pages = self._pages("", Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        return [prefix[len(self._prefix) :].rstrip("/") for prefix in found]

    def delete(self, name: str) -> None:
        """Delete an object, if it exists.

        Raises:
            StorageError: The store can't be written.
        """
        self._tried(lambda: self._client.delete_object(Bucket=self._name, Key=self._prefix + name))

    def _pages(self, folder: str, **how: str) -> list[dict[str, Any]]:
        pages = self._client.get_paginator("list_objects_v2")
        return self._tried(lambda: list(pages.paginate(Bucket=self._name, Prefix=self._prefix + folder, **how)))

    def _tried(self, call: Callable[[], T]) -> T:
        """Call a function, up to five times with exponential backoff if the store is throttled or can't be reached.

        Raises:
            StorageError: It failed.
        """
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        for pause in (*_PAUSES, None):
            try:
                return call()
            except (BotoCoreError, Boto3Error, ClientError) as error:
                cause = next((e for e in causes(error) if isinstance(e, ClientError)), error)
                is_passing = isinstance(cause, HTTPClientError) or _status(cause) in _PASSING
                if pause is None or not is_passing:
                    text = f"{self.url}: expected a bucket that answers, got: {error}. {_ADVICE}."
                    raise StorageError(text) from error
                time.sleep(pause * (0.5 + self._random.random()))
        raise AssertionError("the last call returns or raises")


def in_parallel(call: Callable[[T], object], items: Sequence[T]) -> None:
    """Call a function for each item, on a few threads. No item is begun after a call has raised.

    The threads don't keep the process alive: a slow store must not.

    Raises:
        Exception: What the first failed call raised.
    """
    remaining = deque(items)
    errors: list[BaseException] = []

    def work() -> None:
        while not errors:
            try:
                item = remaining.popleft()
            except IndexError:
                return
            try:
                call(item)
            except BaseException as error:
                errors.append(error)

    count = min(_THREADS, len(remaining))
    threads = [threading.Thread(target=work, name=f"hpsearch-transfer-{n}", daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
