"""Subscription: decodes the topics in the metadata which a consumer sends with JoinGroup.

The coordinator needs them only because OffsetDelete and expiry must keep offsets of topics that members
consume. Every version of ConsumerProtocolSubscription begins with an int16 version and the array of topic
names. Called by group.py.
"""

PROTOCOL_TYPE = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """None if the bytes are not a subscription: any client may name its own protocol `consumer`."""
    count, at = int.from_bytes(metadata[2:6], "big", signed=True), 6
    if len(metadata) < at or not 0 <= count <= len(metadata):
        return None
    topics = set()
    for _ in range(count):
        length = int.from_bytes(metadata[at : at + 2], "big", signed=True)
        name = metadata[at + 2 : at + 2 + length]
        if length < 0 or len(name) != length:
            return None
        try:
            topics.add(name.decode())
        except UnicodeDecodeError:
            return None
        at += 2 + length
    return frozenset(topics)
