"""Deviations from the protocol that real clients send are accepted, and no others."""

import pytest

from tierlog.broker.net.dispatch import decode_quirk
from tierlog.protocol.api import BY_NAME
from tierlog.protocol.messages.metadata import MetadataRequest
from tierlog.protocol.primitives import MalformedFrame

FAULT = MalformedFrame("as decoded first")


def test_librdkafkas_request_for_all_topics_is_understood() -> None:
    """The body of a frame captured from librdkafka 2.16.0."""
    request = decode_quirk(BY_NAME["Metadata"], 13, bytes.fromhex("00000000010000"), FAULT)
    assert request == MetadataRequest(topics=None, allow_auto_topic_creation=True)


def test_librdkafkas_change_of_a_user_is_understood() -> None:
    """The body of a frame captured from librdkafka 2.16.0."""
    request = decode_quirk(
        BY_NAME["AlterUserScramCredentials"], 0, bytes.fromhex("02046576650100010000"), FAULT
    )
    assert [(one.name, one.mechanism) for one in request.deletions] == [("eve", 1)]
    assert not request.upsertions


@pytest.mark.parametrize(
    ("name", "version", "body"),
    [
        ("Metadata", 13, "0000000001000000"),
        ("Metadata", 13, "00000001010000"),
        ("Metadata", 8, "00000000010000"),
        ("AlterUserScramCredentials", 0, "0204657665010001000000"),
        ("AlterUserScramCredentials", 0, "02046576650100010001"),
        ("Heartbeat", 4, "00000000010000"),
    ],
)
def test_anything_else_stays_malformed(name: str, version: int, body: str) -> None:
    with pytest.raises(MalformedFrame):
        decode_quirk(BY_NAME[name], version, bytes.fromhex(body), FAULT)
