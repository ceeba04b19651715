"""CRC-32C of concatenated bytes, from the checksums of their parts."""

from functools import cache

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected: bit 31 is the coefficient of x^0
_ONE = 1 << 31


def crc32c_combine(first: int, second: int, second_bytes: int) -> int:
    """The CRC-32C of A + B, given those of A and B, and the length of B.

    Appending n bytes multiplies the checksum of A by x^(8n), modulo the polynomial (as zlib's crc32_combine).
    """
    return _multiply(_power_of_x(8 * second_bytes), first) ^ second


@cache
def _square(exponent_log2: int) -> int:
    """x to the power of 2^exponent_log2."""
    if exponent_log2 == 0:
        return _ONE >> 1
    root = _square(exponent_log2 - 1)
    return _multiply(root, root)


def _power_of_x(exponent: int) -> int:
    power = _ONE
    for bit in range(exponent.bit_length()):
        if exponent >> bit & 1:
            power = _multiply(_square(bit), power)
    return power


def _multiply(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ (_POLYNOMIAL if b & 1 else 0)
    return product
