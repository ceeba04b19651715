"""Responses to followers have the same bytes as the codec's."""

import uuid
from pathlib import Path

from hypothesis import given, strategies

from tierlog.base.files import FileSlice, OsFiles
from tierlog.base.open_files import SharedFile
from tierlog.base.slices import LogSlice
from tierlog.broker.handlers.fetch_response import FetchPartitionData, plain_response
from tierlog.protocol.codec import encode
from tierlog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

TOPICS = [uuid.UUID(int=number) for number in (1, 2, 3)]
VERSIONS = range(15, 19)
OFFSETS = strategies.integers(0, 2**63 - 1)


@strategies.composite
def partition_data(draw: strategies.DrawFn) -> tuple[uuid.UUID, FetchPartitionData]:
    records = draw(strategies.binary(max_size=300))
    found = LogSlice((records[:1], records[1:]), len(records), 0, 1) if records else None
    offsets = draw(strategies.tuples(OFFSETS, OFFSETS, OFFSETS))
    data = FetchPartitionData(draw(strategies.integers(0, 300)), records=found)
    data.high_watermark, data.last_stable_offset, data.log_start_offset = offsets
    return draw(strategies.sampled_from(TOPICS)), data


@given(strategies.integers(0, 2**31 - 1), strategies.lists(partition_data(), max_size=200))
def test_response_equals_the_codecs(
    session_id: int, reported: list[tuple[uuid.UUID, FetchPartitionData]]
) -> None:
    message = FetchResponse(session_id=session_id)
    for topic, one in reported:
        if not message.responses or message.responses[-1].topic_id != topic:
            message.responses.append(FetchableTopicResponse(topic_id=topic))
        message.responses[-1].partitions.append(
            PartitionData(
                partition_index=one.partition,
                high_watermark=one.high_watermark,
                last_stable_offset=one.last_stable_offset,
                log_start_offset=one.log_start_offset,
                aborted_transactions=None,
                records=b"" if one.records is None else b"".join(map(bytes, one.records.parts)),  # type: ignore[arg-type]
            )
        )
    plain = plain_response(session_id, [*reported])
    assert plain is not None
    written = b"".join(map(bytes, plain.parts))  # type: ignore[arg-type]
    assert {encode(message, version) for version in VERSIONS} == {written}


def test_slices_of_files_stay_slices(tmp_path: Path) -> None:
    file = SharedFile(OsFiles(), tmp_path / "log", create=True)
    part = FileSlice(file, 3, 5)
    reply = plain_response(7, [(TOPICS[0], FetchPartitionData(0, records=LogSlice((part,), 5, 0, 1)))])
    assert reply is not None and reply.parts[1] is part
    assert len(reply.parts) == 3
