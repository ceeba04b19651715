"""Kafka's default partitioner for records with a key: murmur2 of the key."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """Partition of a key in a topic with `count` partitions, as Kafka's default partitioner chooses it."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Unsigned 32-bit murmur2 with the seed of Kafka's Utils.murmur2."""
    aligned = len(data) & ~3
    h = (_SEED ^ len(data)) & _MASK
    for at in range(0, aligned, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if aligned < len(data):
        h = (h ^ int.from_bytes(data[aligned:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
