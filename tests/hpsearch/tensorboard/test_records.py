from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as tensorboard_crc32c
from tensorboard.summary.writer.record_writer import RecordWriter

from hpsearch.tensorboard.records import crc32c, frame


def test_checksum_is_the_one_of_rfc_3720():
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"123456789") == 0xE3069283


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=300))
def test_checksum_and_frame_are_tensorboards(record: bytes):
    written = io.BytesIO()
    RecordWriter(written).write(record)
    assert crc32c(record) == tensorboard_crc32c(record)
    assert frame(record) == written.getvalue()
