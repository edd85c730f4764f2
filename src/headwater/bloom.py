"""Bloom: the Bloom filters that Spark writes, read and united without Spark.

    version (2), hashes, seed, words    four 32-bit numbers, big-endian
    words                               64 bits each, big-endian; bit i of the filter is bit i % 64 of word i // 64

A value is hashed twice with Spark's own variant of Murmur3; the bits that stand for it lie an equal step apart.
"""

import math
import struct

from headwater.errors import UsageError

__all__ = ["Bloom"]

HEADER = struct.Struct(">iiii")
VERSION = 2
U32 = 0xFFFF_FFFF
STEP = 0x7FFF_FFFF


class Bloom:
    """A filter, to which others of the same size can be added. It may hold a value that was never put in, but misses none."""

    def __init__(self, data: bytes) -> None:
        if len(data) < HEADER.size:
            raise UsageError("this is no Bloom filter", got=f"{len(data)} bytes")
        numbers: tuple[int, int, int, int] = HEADER.unpack_from(data)
        version, self.hashes, self.seed, words = numbers
        self._header = data[: HEADER.size]
        self._bits = int.from_bytes(data[HEADER.size :])
        self._size = words * 64
        if version != VERSION or self.hashes < 1 or words < 1 or len(data) != HEADER.size + words * 8:
            raise UsageError("this is no Bloom filter", got=f"{words} words in {len(data)} bytes")

    def add(self, data: bytes) -> None:
        if data[: HEADER.size] != self._header or len(data) != HEADER.size + self._size // 8:
            raise UsageError(
                "Bloom filters of different sizes cannot be merged", hint="one capacity, one error"
            )
        self._bits |= int.from_bytes(data[HEADER.size :])

    def has(self, text: str) -> bool:
        """Whether the filter holds a value; False is certain, True is wrong as often as `error` says."""
        data = text.encode()
        first = _murmur(data, self.seed)
        step = _murmur(data, first)
        at = first * STEP
        for _ in range(self.hashes):
            at = _signed(at + step, 64)
            place = (~at if at < 0 else at) % self._size
            word, bit = divmod(place, 64)
            if not self._bits >> (self._size - 64 - word * 64 + bit) & 1:
                return False
        return True

    @property
    def estimate(self) -> int:
        """About how many different values there are, as the share of bits tells that are set."""
        free = 1 - min(self._fill, 1 - 1 / self._size)
        return round(-self._size / self.hashes * math.log(free))

    @property
    def error(self) -> float:
        """How often a value that was never put in is found, with the bits that are set now."""
        return self._fill**self.hashes

    @property
    def _fill(self) -> float:
        return self._bits.bit_count() / self._size


def _murmur(data: bytes, seed: int) -> int:
    """Murmur3 with 32 bits as Spark has it: the bytes behind the last whole word are mixed in one by one, with their sign."""
    words, rest = divmod(len(data), 4)
    found = seed & U32
    for part in struct.unpack(f"<{words}I{rest}b", data):
        mixed = part * 0xCC9E2D51 & U32
        mixed = _turned(mixed, 15) * 0x1B873593 & U32
        found = (_turned(found ^ mixed, 13) * 5 + 0xE6546B64) & U32
    found ^= len(data)
    found = (found ^ found >> 16) * 0x85EBCA6B & U32
    found = (found ^ found >> 13) * 0xC2B2AE35 & U32
    return _signed(found ^ found >> 16, 32)


def _turned(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & U32


def _signed(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
