"""Bloom: the Bloom filters that Spark writes, read and united without Spark.

version (2), hashes, seed, words    four 32-bit numbers, big-endian
words                               64 bits each, big-endian; bit i of the filter is bit i % 64 of word i //
                                    64

A value is hashed twice with Spark's own variant of Murmur3; its bits are an equal step apart.
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
    """A filter, to which others of the same size can be added.

    It may find a value that was never added, but misses none.
    """

    def __init__(self, data: bytes) -> None:
        if len(data) < HEADER.size:
            raise UsageError("this is not a Bloom filter", got=f"{len(data)} bytes")
        numbers: tuple[int, int, int, int] = HEADER.unpack_from(data)
        version, self.hashes, self.seed, words = numbers
        self._header = data[: HEADER.size]
        self._bits = int.from_bytes(data[HEADER.size :])
        self._size = words * 64
        if version != VERSION or self.hashes < 1 or words < 1 or len(data) != HEADER.size + words * 8:
            raise UsageError("this is not a Bloom filter", got=f"{words} words in {len(data)} bytes")

    def add(self, data: bytes) -> None:
        if data[: HEADER.size] != self._header or len(data) != HEADER.size + self._size // 8:
            raise UsageError(
                "Bloom filters of different sizes cannot be merged", hint="one capacity, one error"
            )
        self._bits |= int.from_bytes(data[HEADER.size :])

    def has(self, text: str) -> bool:
        """Whether the filter holds a value; False is certain, True is wrong with the probability `error`."""
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
        """The approximate number of different values, from the share of bits that are set."""
        free = 1 - min(self._fill, 1 - 1 / self._size)
        return round(-self._size / self.hashes * math.log(free))

    @property
    def error(self) -> float:
        """The probability that a value that was never added is found, with the bits that are set now."""
        return self._fill**self.hashes

    @property
    def _fill(self) -> float:
        return self._bits.bit_count() / self._size


def _murmur(data: bytes, seed: int) -> int:
    """Spark's 32-bit Murmur3.

    The bytes after the last whole word are mixed in one by one, as signed numbers.
    """
    words, rest = divmod(len(data), 4)
    hashed = seed & U32
    for part in struct.unpack(f"<{words}I{rest}b", data):
        mixed = part * 0xCC9E2D51 & U32
        mixed = _rotate(mixed, 15) * 0x1B873593 & U32
        hashed = (_rotate(hashed ^ mixed, 13) * 5 + 0xE6546B64) & U32
    hashed ^= len(data)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & U32
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & U32
    return _signed(hashed ^ hashed >> 16, 32)


def _rotate(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & U32


def _signed(number: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (number + half) % (2 * half) - half
