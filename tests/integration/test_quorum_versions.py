"""Versions in a quorum over real HTTP: what nodes learn of each other, and when a format may be finalised."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from connection_harness import until
from metadata_quorum import CLUSTER_ID, SECRET, Quorum, register
from msgspec.structs import replace
from structlog.testing import capture_logs

from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.features import FORMAT
from tierlog.metadata.quorum import peer_versions
from tierlog.metadata.quorum.api import STEP_PATH, at_version
from tierlog.metadata.quorum.auth import SENDER, VERSIONS, Envelope
from tierlog.metadata.versions import SUPPORTED_FORMATS, WIRE_VERSIONS, announced, own_versions
from tierlog.protocol.errors import ErrorCode

NEWEST = SUPPORTED_FORMATS[1]
LATER = WIRE_VERSIONS[1] + 1


@pytest.fixture
async def quorum(tmp_path: Path) -> AsyncIterator[Quorum]:
    quorum = Quorum(tmp_path)
    try:
        yield quorum
    finally:
        await quorum.close()
    assert quorum.failures == []


def finalize(version: int) -> c.UpdateFeatures:
    return c.UpdateFeatures(levels={FORMAT: version})


async def test_a_format_is_finalised_only_if_every_member_supports_it(quorum: Quorum) -> None:
    for node in (1, 2):
        await quorum.start(node)
    leader = quorum.running[await quorum.leader()].client
    await leader.submit(register())  # as a new cluster of an older version
    await leader.submit(replace(register(), formats=(1, NEWEST)))
    assert leader.image.format_version == 1
    refused = await leader.submit(finalize(NEWEST))
    assert refused.error == ErrorCode.INVALID_UPDATE_VERSION
    assert "node 3 of the quorum has announced no versions" in (refused.message or "")
    assert leader.image.format_version == 1

    await quorum.start(3)
    await until(lambda: leader.versions_of(3) is not None)
    above = await leader.submit(finalize(NEWEST + 1))
    assert "which supports 1 to" in (above.message or "")
    assert (await leader.submit(finalize(NEWEST))).error == ErrorCode.NONE
    assert leader.image.format_version == NEWEST


async def test_a_format_is_not_finalised_while_a_member_does_not_respond(
    quorum: Quorum, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been rolled back since it announced its versions. `tierlog cluster finalize` asks all
    nodes, but waits for a confirmation after that, and Kafka's tools do not ask."""
    monkeypatch.setattr(peer_versions, "HEARD_S", 2.0)
    for node in (1, 2, 3):
        await quorum.start(node)
    leader_id = await quorum.leader()
    leader, peers = quorum.running[leader_id].client, quorum.running[leader_id].peers
    await leader.submit(replace(register(), formats=(1, NEWEST)))
    others = {1, 2, 3} - {leader_id}
    await until(lambda: all(leader.versions_of(node) is not None for node in others))
    level = leader.image.format_version
    assert (await leader.submit(finalize(level))).error == ErrorCode.NONE
    gone = min(others)
    await quorum.kill(gone)
    await until(lambda: not peers.responds(gone))
    refused = await leader.submit(finalize(level))
    assert refused.error == ErrorCode.INVALID_UPDATE_VERSION
    assert f"node {gone} of the quorum does not respond" in (refused.message or "")
    await quorum.start(gone)
    await until(lambda: peers.responds(gone))
    assert (await leader.submit(finalize(level))).error == ErrorCode.NONE


async def test_members_and_observers_learn_each_others_versions(quorum: Quorum) -> None:
    for node in (1, 2, 3):
        await quorum.start(node)
    leader = await quorum.leader()
    seen = quorum.running[leader].client
    await until(lambda: all(seen.versions_of(node) == own_versions() for node in (1, 2, 3)))
    observer = (await quorum.observe(4, 1, 2, 3)).client
    await until(lambda: any(observer.versions_of(node) == own_versions() for node in (1, 2, 3)))
    assert seen.version_problems == {}


async def test_an_unknown_wire_version_is_refused_and_logged_once(quorum: Quorum) -> None:
    await quorum.start(1)
    path = at_version(STEP_PATH, LATER)
    headers = Envelope(CLUSTER_ID, 2, 1).headers(SECRET, path, b"")
    with capture_logs() as logs:
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                async with session.post(quorum.urls[1] + path, data=b"", headers=headers) as response:
                    assert response.status == 505
                    assert f"not {LATER}" in await response.text()
                    assert announced(response.headers[VERSIONS]) == own_versions()
    refusals = [line for line in logs if line["event"] == "quorum.version.refused"]
    assert [(line["log_level"], line["sender"]) for line in refusals] == [("error", headers[SENDER])]


async def test_an_unknown_request_of_a_known_wire_version_is_not_taken_for_another_version(
    quorum: Quorum,
) -> None:
    await quorum.start(1)
    with capture_logs() as logs:
        async with aiohttp.ClientSession() as session:
            for path in (STEP_PATH, STEP_PATH.replace("step", "later")):
                async with session.get(quorum.urls[1] + path) as response:
                    assert response.status == 404 and VERSIONS not in response.headers
    assert not [line for line in logs if line["event"] == "quorum.version.refused"]
