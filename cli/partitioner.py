"""Which partition a key belongs to: murmur2 as Java's default partitioner hashes it, so that keys meet."""

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def partition_of(key: bytes, count: int) -> int:
    """The partition of a key among `count`."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def murmur2(data: bytes) -> int:
    """Murmur2, 32 bits, unsigned, with the seed of Kafka's Utils.murmur2."""
    whole = len(data) & ~3
    h = (_SEED ^ len(data)) & _MASK
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15
