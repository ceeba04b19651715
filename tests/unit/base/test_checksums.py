"""Combined checksums, against those of the joined bytes."""

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tierlog.base.checksums import crc32c_combine


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_combined_checksum_is_that_of_the_joined_bytes(first: bytes, second: bytes) -> None:
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)


def test_checksums_of_long_parts_are_combined() -> None:
    first, second = bytes(range(256)) * 5, b"\x5a" * ((8 << 20) + 3)
    assert crc32c_combine(crc32c(first), crc32c(second), len(second)) == crc32c(first + second)
