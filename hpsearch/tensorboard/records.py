"""The TFRecord framing of TensorBoard's event files: length, its checksum, record, its checksum.

TensorBoard's own `RecordWriter` computes the checksums byte by byte in Python, which was more than half of
the cost of a short trial's run; here it is two bytes at a time.
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache

__all__ = ["crc32c", "frame"]

POLYNOMIAL = 0x82F63B78
"""Castagnoli's, lowest bit first."""


def frame(record: bytes) -> bytes:
    """Wrap a record for an event file."""
    return _header(len(record)) + record + struct.pack("<I", _mask(crc32c(record)))


def crc32c(content: bytes) -> int:
    """Compute the CRC-32C of RFC 3720, appendix B.4."""
    table = _table()
    crc = 0xFFFFFFFF
    for pair in struct.unpack_from(f"<{len(content) // 2}H", content):
        crc = table[(crc ^ pair) & 0xFFFF] ^ (crc >> 16)
    if len(content) % 2:
        crc = _after_bits((crc ^ content[-1]) & 0xFF, 8) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


@lru_cache(maxsize=4096)
def _header(length: int) -> bytes:
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", _mask(crc32c(packed)))


def _mask(crc: int) -> int:
    """Rotate and shift a checksum, so that a record that holds checksums has a sound one of its own."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _table() -> list[int]:
    by_byte = [_after_bits(byte, 8) for byte in range(256)]
    first = [by_byte[pair & 0xFF] for pair in range(1 << 16)]
    return [by_byte[after & 0xFF ^ pair >> 8] ^ after >> 8 for pair, after in enumerate(first)]


def _after_bits(remainder: int, bits: int) -> int:
    for _ in range(bits):
        remainder = remainder >> 1 ^ (POLYNOMIAL if remainder & 1 else 0)
    return remainder
