"""Variable-length numbers: seven bits a byte, the lowest first; signed ones in zigzag form."""

from headwater.errors import ProtocolError

__all__ = ["read_varint", "read_zigzag", "varint", "zigzag"]

Buffer = bytes | bytearray | memoryview

VARINT_BYTES_MAX, VARLONG_BYTES_MAX = 5, 10
_BYTES = [bytes([number]) for number in range(0x80)]


def varint(number: int) -> bytes:
    """Encodes a number that is not negative."""
    if number < 0x80:
        return _BYTES[number]
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def zigzag(number: int) -> bytes:
    """Encodes a signed number of up to 64 bits."""
    return varint((number << 1) ^ (number >> 63))


def read_varint(buffer: Buffer, position: int, bytes_max: int = VARINT_BYTES_MAX) -> tuple[int, int]:
    """The number at a position, which is not negative, and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * bytes_max:
            raise ProtocolError(f"a variable-length number has more than {bytes_max} bytes")


def read_zigzag(buffer: Buffer, position: int) -> tuple[int, int]:
    """The signed number of up to 64 bits at a position, and the position after it."""
    value = buffer[position]
    if value < 0x80:
        return (value >> 1) ^ -(value & 1), position + 1
    second = buffer[position + 1]
    if second < 0x80:  # most numbers of a record have one byte or two
        value = value & 0x7F | second << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value, position = read_varint(buffer, position, VARLONG_BYTES_MAX)
    return (value >> 1) ^ -(value & 1), position
