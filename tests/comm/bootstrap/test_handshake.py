from __future__ import annotations

import hashlib
import hmac
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpsearch_comm.bootstrap.handshake import (
    ANSWER_BYTES,
    NONCE_BYTES,
    PAYLOAD_BYTES,
    PROOF_BYTES,
    Challenge,
    ConnectionKind,
    Credentials,
    HandshakeReply,
    Hello,
    Judgement,
    Proof,
    Refusal,
)
from hpsearch_comm.errors import ConfigurationError, RefusedError
from tests.comm.forming import new_credentials

CREDENTIALS = new_credentials("group", 3)
HELLO = Hello(1, 0, ConnectionKind.STREAM, 2)


def shake(
    client: Credentials = CREDENTIALS, server: Credentials = CREDENTIALS, hello: Hello = HELLO
) -> tuple[Proof, Judgement]:
    challenge = Challenge(server, rank=0)
    proof = Proof(client, hello)
    return proof, challenge.judge(proof.message(challenge.nonce))


def test_two_sides_that_share_the_secret_accept_each_other():
    proof, judgement = shake()
    assert (judgement.verdict, judgement.hello) == (HandshakeReply.ACCEPTED, HELLO)
    proof.check(judgement.answer)


@pytest.mark.parametrize(
    ("client", "hello", "verdict"),
    [
        (new_credentials("group", 3), HELLO, HandshakeReply.WRONG_SECRET),
        (Credentials(CREDENTIALS.secret, "other", 3), HELLO, HandshakeReply.WRONG_GROUP),
        (Credentials(CREDENTIALS.secret, "group", 4), HELLO, HandshakeReply.WRONG_EPOCH),
        (CREDENTIALS, Hello(1, 2, ConnectionKind.CONTROL), HandshakeReply.WRONG_RANK),
        (CREDENTIALS, Hello(-1, 0, ConnectionKind.CONTROL), HandshakeReply.UNEXPECTED),
        (CREDENTIALS, Hello(1, 0, ConnectionKind.STREAM, 1024), HandshakeReply.UNEXPECTED),
        (CREDENTIALS, Hello(1, 0, 9), HandshakeReply.UNEXPECTED),  # type: ignore[arg-type]
    ],
)
def test_what_does_not_belong_is_refused_and_told_why(client, hello, verdict):
    proof, judgement = shake(client, hello=hello)
    assert judgement.verdict is verdict
    with pytest.raises(Refusal, match=f"rank {hello.target} refused the connection: {verdict.reason}") as caught:
        proof.check(judgement.answer)
    assert isinstance(caught.value, RefusedError)
    assert caught.value.verdict is verdict


def test_the_last_word_is_the_servers():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    asked: list[Hello] = []

    def admit(hello: Hello) -> HandshakeReply:
        asked.append(hello)
        return HandshakeReply.DUPLICATE

    judgement = challenge.judge(proof.message(challenge.nonce), admit)
    assert (asked, judgement.verdict) == ([HELLO], HandshakeReply.DUPLICATE)
    with pytest.raises(Refusal, match="connected already"):
        proof.check(judgement.answer)


def test_a_proof_is_worth_nothing_for_another_nonce():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    recorded = proof.message(challenge.nonce)
    assert challenge.judge(recorded).verdict is HandshakeReply.ACCEPTED
    assert Challenge(CREDENTIALS, 0).judge(recorded).verdict is HandshakeReply.WRONG_SECRET


def test_a_recorded_answer_is_worth_nothing_for_another_hello():
    challenge, first = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    recorded = challenge.judge(first.message(challenge.nonce)).answer
    second = Proof(CREDENTIALS, HELLO)
    second.message(challenge.nonce)
    with pytest.raises(Refusal, match="doesn't know the group's secret"):
        second.check(recorded)


def test_a_message_sent_back_to_its_author_proves_nothing():
    challenge, proof = Challenge(CREDENTIALS, 0), Proof(CREDENTIALS, HELLO)
    message = proof.message(challenge.nonce)
    with pytest.raises(Refusal, match="doesn't know the group's secret"):
        proof.check(bytes([HandshakeReply.ACCEPTED]) + message[-32:])
    answer = challenge.judge(message).answer
    assert challenge.judge(message[:-32] + answer[-32:]).verdict is HandshakeReply.WRONG_SECRET


@pytest.mark.parametrize("index", range(PROOF_BYTES))
def test_a_proof_with_a_changed_byte_is_refused(index):
    challenge = Challenge(CREDENTIALS, 0)
    message = bytearray(Proof(CREDENTIALS, HELLO).message(challenge.nonce))
    message[index] ^= 1
    assert challenge.judge(bytes(message)).verdict is HandshakeReply.WRONG_SECRET


@pytest.mark.parametrize("index", range(ANSWER_BYTES))
def test_an_answer_with_a_changed_byte_is_refused(index):
    proof, judgement = shake()
    answer = bytearray(judgement.answer)
    answer[index] ^= 1
    with pytest.raises(Refusal):
        proof.check(bytes(answer))


def test_the_signed_bytes_are_those_of_the_description():
    challenge = Challenge(CREDENTIALS, 0)
    message = Proof(CREDENTIALS, HELLO).message(challenge.nonce)
    fields = struct.unpack("<32sqiiHHI32s", message[:88])
    assert fields[:-1] == (hashlib.sha256(b"group").digest(), 3, 1, 0, ConnectionKind.STREAM, 2, 0)
    key = hmac.digest(CREDENTIALS.secret, b"hpsearch_comm handshake 2", "sha256")
    assert message[88:] == hmac.digest(key, b"client" + challenge.nonce + message[:88], "sha256")
    answer = challenge.judge(message).answer
    assert answer == b"\0" + hmac.digest(key, b"server" + challenge.nonce + message[:88] + b"\0", "sha256")


@given(st.binary(max_size=PAYLOAD_BYTES))
def test_a_payload_comes_with_the_hello_and_is_signed(payload):
    challenge, hello = Challenge(CREDENTIALS, 0), Hello(1, 0, ConnectionKind.RENDEZVOUS, 0, payload)
    proof = Proof(CREDENTIALS, hello)
    message = proof.message(challenge.nonce)
    assert len(message) == PROOF_BYTES + len(payload)
    assert Challenge.missing_bytes(message[:PROOF_BYTES]) == len(payload)
    assert Challenge.missing_bytes(message) == 0
    judgement = challenge.judge(message)
    assert (judgement.verdict, judgement.hello) == (HandshakeReply.ACCEPTED, hello)
    assert judgement.hello is not None
    assert judgement.hello.nonce == proof.nonce
    if payload:
        altered = message[:-33] + bytes([message[-33] ^ 1]) + message[-32:]
        assert Challenge(CREDENTIALS, 0).judge(altered).verdict is HandshakeReply.WRONG_SECRET
        assert challenge.judge(altered).verdict is HandshakeReply.WRONG_SECRET


@pytest.mark.parametrize("announced", [1, PAYLOAD_BYTES + 1, 2**32 - 1])
def test_a_length_that_is_not_that_of_the_payload_is_refused(announced):
    challenge = Challenge(CREDENTIALS, 0)
    hello = bytearray(Proof(CREDENTIALS, HELLO).message(challenge.nonce)[:88])
    hello[52:56] = announced.to_bytes(4, "little")
    proof = bytes(hello) + CREDENTIALS.mac(b"client", challenge.nonce, bytes(hello))
    # Of one too long not a byte is read; the other would be waited for.
    assert Challenge.missing_bytes(proof) == (announced if announced == 1 else 0)
    assert challenge.judge(proof).verdict is HandshakeReply.UNEXPECTED


@given(st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES))
def test_random_bytes_are_no_proof(proof):
    judgement = Challenge(CREDENTIALS, 0).judge(proof)
    assert (judgement.verdict, judgement.hello) == (HandshakeReply.WRONG_SECRET, None)
    assert judgement.answer == bytes([HandshakeReply.WRONG_SECRET]).ljust(ANSWER_BYTES, b"\0")


@given(st.binary(min_size=48, max_size=48), st.booleans(), st.booleans())
def test_any_hello_of_one_who_knows_the_secret_is_read_within_bounds(rest, right_group, right_epoch):
    challenge = Challenge(CREDENTIALS, 0)
    group = CREDENTIALS.digest if right_group else bytes(32)
    epoch = (3 if right_epoch else -1).to_bytes(8, "little", signed=True)
    hello = (group + epoch + rest)[:88].ljust(88, b"\0")
    judgement = challenge.judge(hello + CREDENTIALS.mac(b"client", challenge.nonce, hello))
    assert judgement.verdict is not HandshakeReply.WRONG_SECRET
    if judgement.verdict is HandshakeReply.ACCEPTED:
        assert right_group
        assert right_epoch
        assert judgement.hello is not None
        assert judgement.hello.target == 0
        assert 0 <= judgement.hello.sender < 2**31
        assert 0 <= judgement.hello.stream < 1024


@given(st.binary(min_size=ANSWER_BYTES, max_size=ANSWER_BYTES))
def test_random_bytes_are_no_answer(answer):
    proof = Proof(CREDENTIALS, HELLO)
    proof.message(bytes(NONCE_BYTES))
    with pytest.raises(Refusal):
        proof.check(answer)


def test_an_unknown_verdict_of_one_who_knows_the_secret_is_a_refusal():
    proof = Proof(CREDENTIALS, HELLO)
    hello = proof.message(bytes(NONCE_BYTES))[:88]
    answer = b"\xff" + CREDENTIALS.mac(b"server", bytes(NONCE_BYTES), hello, b"\xff")
    with pytest.raises(Refusal, match="same version"):
        proof.check(answer)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((b"short",), "must be 32 bytes, got 5 bytes"),
        (("0" * 32,), "must be 32 bytes, got str"),
        ((bytes(32), 5), "must be text, got int"),
        ((bytes(32), "", -1), "from 0 to .*, got -1"),
        ((bytes(32), "", 2**63), "from 0 to"),
        ((bytes(32), "", "1"), "from 0 to .*, got '1'"),
    ],
)
def test_credentials_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Credentials(*arguments)


def test_the_secret_is_not_shown():
    secret = b"do not show this to anybody, ok?"
    assert "show" not in repr(Credentials(secret, "group", 1))
