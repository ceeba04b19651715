"""Subscriptions of a consumer group: its regular expressions, and the hash of its topics.

Regular expressions have RE2's syntax and match whole topic names, as in Kafka. The core checks a member's
expression with `regex_error`. Its driver resolves the expressions of a group, because matching many names
takes longer than a turn may.
"""

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from tierlog.base.patterns import InvalidPattern, compile_pattern
from tierlog.broker.groups.core.topic_view import TopicView

REGEX_LENGTH_MAX = 10_000
"""Characters of a regular expression. Its record has it in the key, and RE2 compiles it at each refresh."""


def regex_error(pattern: str) -> str | None:
    """Why a member may not use this regular expression (INVALID_REGULAR_EXPRESSION); None if it may."""
    if len(pattern) > REGEX_LENGTH_MAX:
        return f"It has {len(pattern)} characters, and {REGEX_LENGTH_MAX} are the most"
    try:
        compile_pattern(pattern)
    except InvalidPattern as fault:
        return str(fault)
    return None


def topics_hash(names: Iterable[str], topics: TopicView, *, with_racks: bool = True) -> int:
    """A hash of the topics that exist: of their names, ids, partition counts and, if asked for, the racks of
    each partition's replicas. 0 without topics, as in Kafka.

    A group whose stored hash (`metadata_hash`, KIP-1101) differs assigns its partitions again. The value is
    not Kafka's. A group that moves from Kafka therefore does so once.
    """
    digest = blake2b(digest_size=8)
    found = False
    encoded = _EncodedRacks()
    for name in sorted(set(names)):
        topic_id = topics.id_of(name)
        if topic_id is None:
            continue
        found = True
        count = topics.partitions_of(name)
        digest.update(msgspec.msgpack.encode((name, topic_id.bytes, count)))
        if with_racks:
            digest.update(b"".join([encoded[racks] for racks in topics.racks_of(name)]))
    return int.from_bytes(digest.digest(), signed=True) if found else 0


class _EncodedRacks(dict[frozenset[str], bytes]):
    """Few of the partitions' sets of racks are different. Each is encoded once."""

    def __missing__(self, racks: frozenset[str]) -> bytes:
        encoded = self[racks] = msgspec.msgpack.encode(sorted(racks))
        return encoded
