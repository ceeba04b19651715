"""Requests that real clients send wrong, and that must be understood all the same (after decoding failed)."""

from tierlog.protocol.api import Api
from tierlog.protocol.codec import decode
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Message

METADATA_KEY = 3


def decode_quirk(api: Api, version: int, body: bytes, fault: MalformedFrame) -> Message:
    """The request that was meant; raises the fault again if this is no known quirk.

    librdkafka (seen in 2.16.0) asks for the metadata of all topics with the four zero bytes that it reserved
    for a classic array length, where a flexible version has one. Brokers that ignore what is left over never
    notice.
    """
    if api.key == METADATA_KEY and api.is_flexible(version) and body[:4] == bytes(4):
        return decode(api.request, version, body[3:])
    raise fault
