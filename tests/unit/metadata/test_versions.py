"""Versions that nodes announce, the wire version that two of them share, and metadata of a newer node."""

import pytest
from structlog.testing import capture_logs

from tierlog.metadata.image import ClusterImage
from tierlog.metadata.image_codec import VERSION, encode_image
from tierlog.metadata.quorum.peer_versions import PeerVersions
from tierlog.metadata.quorum.replay import image_of, replay
from tierlog.metadata.raft.messages import CONFIGURATION, Entry
from tierlog.metadata.records import FormatVersion, NoOp, encode_records
from tierlog.metadata.versions import (
    SUPPORTED_FORMATS,
    NodeVersions,
    UnreadableMetadata,
    announced,
    check_format,
    common_version,
    have_common_version,
    own_versions,
)

THIS = NodeVersions("0.2.0", "46ccc503", formats=(1, 4), wire=(1, 2))
NEWEST = SUPPORTED_FORMATS[1]


def test_a_node_reads_what_another_announces() -> None:
    assert announced(THIS.announcement()) == THIS
    assert announced(own_versions().announcement()) == own_versions()
    without_commit = THIS._replace(commit="")
    assert announced(without_commit.announcement()) == without_commit


@pytest.mark.parametrize(
    "text", ["", "after=3&wait_ms=5", "wire=1-2", "wire=1&formats=1-3", "wire=x-y&formats=1-3"]
)
def test_what_is_no_announcement_has_no_versions(text: str) -> None:
    assert announced(text) is None


def test_a_later_release_may_announce_more() -> None:
    assert announced(f"after=3&{THIS.announcement()}&clouds=7") == THIS


def test_an_announcement_needs_no_escapes() -> None:
    odd = THIS._replace(version="0.2.0+g1 &wire=9-9\r\n")
    assert announced(odd.announcement()) == THIS._replace(version="0.2.0g1wire99")


@pytest.mark.parametrize(
    ("own", "other", "version"),
    [
        ((1, 1), None, 1),
        ((1, 2), None, 1),
        ((1, 2), (1, 1), 1),
        ((1, 2), (1, 2), 2),
        ((1, 2), (2, 3), 2),
        ((1, 1), (2, 3), 1),
        ((2, 3), (1, 1), 2),
    ],
)
def test_two_nodes_use_the_highest_version_that_both_support(
    own: tuple[int, int], other: tuple[int, int] | None, version: int
) -> None:
    assert common_version(own, other) == version
    if other is not None:
        assert have_common_version(own, other) is (other[0] <= version <= other[1])


async def test_requests_have_the_lowest_wire_version_until_a_node_has_signed_a_higher_one() -> None:
    peers = PeerVersions(THIS)
    assert peers.path(2, "/raft/v1/step") == f"/raft/v1/step?{THIS.announcement()}"
    peers.on_response(2, THIS.announcement())
    assert peers.path(2, "/metadata/v1/log?after=0").startswith("/metadata/v2/log?after=0&build=")
    assert peers.of(2) == THIS
    peers.on_response(2, None)  # rolled back to a version that announces none
    assert (peers.of(2), peers.wire_version(2)) == (None, 1)


async def test_a_refusal_selects_a_wire_version_and_announces_nothing() -> None:
    peers = PeerVersions(THIS)
    peers.on_response(2, THIS.announcement())
    older = THIS._replace(wire=(1, 1))
    assert peers.on_refusal(2, 505, older.announcement()) is False
    assert (peers.of(2), peers.wire_version(2)) == (None, 1)
    newer = THIS._replace(wire=(2, 5))
    assert peers.on_refusal(2, 505, newer.announcement()) is False
    assert peers.wire_version(2) == 2
    peers.on_response(2, THIS.announcement())
    assert peers.on_refusal(2, 404, None) is False  # before 0.1.0, there is no route of version 2
    assert peers.wire_version(2) == 1


async def test_nodes_without_a_common_wire_version_are_a_problem_that_is_logged_once() -> None:
    peers = PeerVersions(THIS)
    with capture_logs() as logs:
        for _ in range(3):
            assert peers.on_refusal(3, 505, THIS._replace(wire=(3, 4)).announcement()) is True
    why = peers.problems[3]
    assert "wire version 3 to 4" in why and "wire version 1 to 2" in why
    assert [(line["log_level"], line["node"], line["why"]) for line in logs] == [("error", 3, why)]


def test_a_finalised_version_that_this_node_does_not_know_stops_it() -> None:
    image = ClusterImage(cluster_id="c")
    known = replay(image, Entry(1, 1, encode_records((FormatVersion(version=NEWEST),))))
    assert known.format_version == NEWEST
    newer = Entry(1, 2, encode_records((FormatVersion(version=NEWEST + 1),)))
    with pytest.raises(UnreadableMetadata, match=f"finalised at {NEWEST + 1}.*supports 1 to {NEWEST}"):
        replay(known, newer)


def test_a_record_of_a_newer_version_is_not_skipped() -> None:
    unknown = encode_records((NoOp(),)).replace(b"\x00", b"\x7f")  # the number of the record
    with pytest.raises(UnreadableMetadata, match=r"cannot read entry 1 of the metadata log.*newer version"):
        replay(ClusterImage(cluster_id="c"), Entry(1, 1, unknown))


def test_configurations_of_the_quorum_are_no_records() -> None:
    assert replay(ClusterImage(cluster_id="c"), Entry(1, 1, b"", CONFIGURATION)).index == 1


def test_a_snapshot_of_a_newer_version_is_refused() -> None:
    image = ClusterImage(cluster_id="c", index=5)
    data = encode_image(image)
    assert image_of(data) == image
    newer = data[:1] + bytes([VERSION + 1]) + data[2:]
    with pytest.raises(UnreadableMetadata, match=f"snapshot version {VERSION + 1}"):
        image_of(newer)
    with pytest.raises(UnreadableMetadata, match="cannot read a snapshot"):
        image_of(b"\xc1")
    with pytest.raises(UnreadableMetadata, match=r"tierlog\.format was finalised"):
        check_format(ClusterImage(cluster_id="c", format_version=NEWEST + 1))
