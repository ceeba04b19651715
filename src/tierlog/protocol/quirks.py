"""Quirks: malformed requests of real clients that are accepted nevertheless. Called when decoding fails."""

from tierlog.protocol.api import Api
from tierlog.protocol.codec import decode
from tierlog.protocol.primitives import MalformedFrame
from tierlog.protocol.schema import Message

METADATA_KEY = 3


def decode_quirk(api: Api, version: int, body: bytes, fault: MalformedFrame) -> Message:
    """The intended request. Raises the fault again if this is no known quirk.

    librdkafka (seen in 2.16.0) requests the metadata of all topics with four zero bytes, reserved for a
    classic array length, where a flexible version has one. Brokers that ignore bytes left over do not notice.
    """
    if api.key == METADATA_KEY and api.is_flexible(version) and body[:4] == bytes(4):
        return decode(api.request, version, body[3:])
    raise fault
