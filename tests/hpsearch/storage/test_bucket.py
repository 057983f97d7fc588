"""What all buckets do: those of a real server, and those in memory with which the mirror is tested."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from hpsearch.errors import HpsearchError, StorageError
from hpsearch.storage.bucket import Bucket, in_parallel
from tests.hpsearch.support.buckets import Memory, MemoryBucket


@pytest.fixture(params=["s3", "memory"])
def open_bucket(request: pytest.FixtureRequest) -> Callable[[str], Bucket]:
    if request.param == "s3":
        url = request.getfixturevalue("s3").url
        return lambda name: Bucket(f"{url}/{name}")
    memory = Memory()
    return lambda name: MemoryBucket(f"s3://bucket/studies/{name}", memory)


def test_what_is_created_stays_and_what_is_uploaded_is_replaced(open_bucket):
    bucket = open_bucket("digits-1/")
    assert bucket.check()
    assert bucket.names() == {}
    assert bucket.create("journal/1", b"one")
    assert not bucket.create("journal/1", b"two")
    assert bucket.read("journal/1") == b"one"
    assert bucket.read("journal/2") is None
    for content in (b"old", b"new" * 1000):
        bucket.upload("checkpoints/a b/ü.tar", io.BytesIO(content))
    bucket.download("checkpoints/a b/ü.tar", file := io.BytesIO())
    assert file.getvalue() == b"new" * 1000
    assert list(bucket.names()) == ["checkpoints/a b/ü.tar", "journal/1"]
    assert list(bucket.names("journal/")) == ["journal/1"]
    assert open_bucket("").folders() == ["digits-1"]
    assert bucket.folders() == ["checkpoints", "journal"]
    for _ in range(2):
        bucket.delete("journal/1")
    assert bucket.names("journal/") == {}


def test_wrong_keys_are_named_with_what_to_check(s3):
    s3.proxy.decide = lambda *_: "refuse"
    with pytest.raises(StorageError, match=r"s3://bucket-\d+/studies: .*InvalidAccessKeyId.*Check the credentials"):
        Bucket(s3.url).check()


def test_a_bucket_that_is_not_there_is_named(s3):
    with pytest.raises(StorageError, match=r"s3://nowhere/x: .*NoSuchBucket.*the name of the bucket"):
        Bucket("s3://nowhere/x").check()


def test_a_store_that_is_throttled_for_a_while_is_tried_again(s3):
    answers = iter(["slow down", "slow down"])
    s3.proxy.decide = lambda *_: next(answers, "pass")
    assert Bucket(s3.url).create("x", b"1")


def test_a_store_that_ignores_conditions_is_known(s3):
    def ignore(method: str, path: str, headers: dict[str, str]) -> str:
        headers.pop("if-none-match", None)
        return "pass"

    s3.proxy.decide = ignore
    assert not Bucket(s3.url).check()


@pytest.mark.parametrize("url", ["gs://bucket/x", "s3://", "s3:///x"])
def test_only_urls_of_s3_are_taken(url):
    with pytest.raises(HpsearchError, match="expected s3://bucket/folder"):
        Bucket(url)


def test_an_error_of_parallel_calls_is_raised_once_those_that_had_begun_are_over():
    done = []

    def call(item: int) -> None:
        if item == 20:
            raise ValueError("no")
        done.append(item)

    with pytest.raises(ValueError, match="no"):
        in_parallel(call, range(100))
    assert set(done) >= set(range(20))
