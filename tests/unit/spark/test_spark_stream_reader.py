"""Driver and task of a stream, on a broker that responds as a script says: lost records and limits."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType
from scripted_broker import broker
from spark_bucket import BucketWriter

from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tierlog.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tierlog.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tierlog.records.writer import NewRecord, encode_batch
from tierlog.spark import offsets, stream
from tierlog.spark.history.plan import OffsetRange, OffsetsUnavailable, Source, unpack_split
from tierlog.spark.history.positions import BucketPositions
from tierlog.spark.jobs import replay_stream
from tierlog.spark.jobs.replay_stream import InOrder, ReplayReader, UnlimitedReplayReader, replay_reader
from tierlog.spark.live import connection
from tierlog.spark.live.fetch import fetch_range
from tierlog.spark.options.stream import parse_stream_options

FLIGHTS = Source("flights", uuid.UUID(int=1), 0)
CHECKPOINT = offsets.encode({FLIGHTS: 1_000})


SHORT = {"kafka.request.timeout.ms": "2000"}
"""For a log that stays short: how long the reader waits. The broker's responses have as long."""


def given(address: str, **options: str) -> dict[str, str]:
    return {"topic": "flights", "kafka.bootstrap.servers": address, **options}


def respond(api: str, port: int, ends: list[int]) -> Any:
    """A leader without records. `ends`: of the log, one for each look-up, and the last one for all others."""
    if api == "Metadata":
        partition = MetadataResponsePartition(partition_index=0, leader_id=1)
        topic = MetadataResponseTopic(name="flights", topic_id=FLIGHTS.topic_id, partitions=[partition])
        node = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)
        return MetadataResponse(brokers=[node], topics=[topic])
    if api == "Fetch":
        data = PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        topic_data = FetchableTopicResponse(topic_id=FLIGHTS.topic_id, partitions=[data])
        return FetchResponse(responses=[topic_data])
    end = ends.pop(0) if len(ends) > 1 else ends[0]
    row = ListOffsetsPartitionResponse(partition_index=0, offset=end)
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="flights", partitions=[row])])


def latest(*ends: int, **options: str) -> dict[str, Any]:
    """The end of the micro-batch after the checkpoint."""
    return batches(*ends, **options)[0]


def batches(*ends: int, count: int = 1, **options: str) -> list[dict[str, Any]]:
    """The ends of successive micro-batches after the checkpoint."""
    reported, found = list(ends), [CHECKPOINT]
    with broker(lambda api, port: respond(api, port, reported)) as address:
        reader = stream.TierlogStreamReader(parse_stream_options(given(address, **options)), StructType())
        try:
            for _ in range(count):
                found.append(reader.latestOffset(found[-1], None))
        finally:
            reader.stop()
    return found[1:]


def test_log_that_ends_before_the_checkpoint_is_an_error() -> None:
    lost = r"read up to offset 1000, but the log ends at 900: offsets 900 to 999 were lost.*=false"
    with pytest.raises(OffsetsUnavailable, match=lost):
        latest(900, **SHORT)


def test_stream_continues_at_the_end_of_such_a_log_if_the_user_accepts_it() -> None:
    with pytest.warns(UserWarning, match="The stream continues at 900"):
        assert latest(900, failOnDataLoss="false", **SHORT) == offsets.encode({FLIGHTS: 900})


def test_new_leader_may_report_a_lower_end_for_a_moment() -> None:
    assert latest(900, 900, 1_000) == CHECKPOINT
    assert latest(900, 1_005) == offsets.encode({FLIGHTS: 1_005})


def test_engine_that_does_not_say_where_a_micro_batch_starts_learns_of_the_loss_when_it_is_planned() -> None:
    with broker(lambda api, port: respond(api, port, [900])) as address:
        for fails in (False, True):
            options = parse_stream_options(given(address, failOnDataLoss=str(fails).lower(), **SHORT))
            reader = stream.UnlimitedStreamReader(options, StructType())  # after a restart
            end = reader.latestOffset()
            if fails:
                with pytest.raises(OffsetsUnavailable, match="the log ends at 900"):
                    reader.partitions(CHECKPOINT, end)
            else:
                with pytest.warns(UserWarning, match="The stream continues at 900"):
                    assert reader.partitions(CHECKPOINT, end) == []
            reader.stop()


def test_accepted_loss_after_such_a_restart_skips_no_later_record() -> None:
    """The log has 900 records for a moment at the restart, then those of the checkpoint and more, until it
    loses those from 950 on."""
    ends = [900, 1_000]
    with broker(lambda api, port: respond(api, port, ends)) as address:
        options = parse_stream_options(given(address, failOnDataLoss="false", **SHORT))
        reader = stream.UnlimitedStreamReader(options, StructType())
        low = reader.latestOffset()
        assert reader.partitions(CHECKPOINT, low) == []
        ends[:] = [1_005]
        newest = reader.latestOffset()
        assert planned(reader, low, newest) == [OffsetRange(1_000, 1_005)]
        assert planned(reader, low, newest) == [OffsetRange(1_000, 1_005)], "planned again"
        ends[:] = [950]
        with pytest.warns(UserWarning, match="The stream continues at 950"):
            lost = reader.latestOffset()
        assert planned(reader, newest, lost) == []
        ends[:] = [970]
        assert planned(reader, lost, reader.latestOffset()) == [OffsetRange(950, 970)]
        reader.stop()


def test_accepted_loss_right_after_such_a_restart_skips_no_later_record() -> None:
    """The engine starts the micro-batch below the offsets that the stream has read."""
    ends = [900, 1_000]
    with broker(lambda api, port: respond(api, port, ends)) as address:
        options = parse_stream_options(given(address, failOnDataLoss="false", **SHORT))
        reader = stream.UnlimitedStreamReader(options, StructType())
        low = reader.latestOffset()
        assert reader.partitions(CHECKPOINT, low) == []
        ends[:] = [950]
        with pytest.warns(UserWarning, match="The stream continues at 950"):
            lost = reader.latestOffset()
        assert planned(reader, low, lost) == [], "it has read those that are left"
        ends[:] = [970]
        assert planned(reader, lost, reader.latestOffset()) == [OffsetRange(950, 970)]
        reader.stop()


def planned(reader: stream.TierlogStreamReader, start: Any, end: Any) -> list[OffsetRange]:
    return [task.value.offsets for task in reader.partitions(start, end)]


@pytest.mark.parametrize("start", [800, 950])
@pytest.mark.parametrize("reader_class", [ReplayReader, UnlimitedReplayReader])
def test_replay_whose_source_loses_records_before_its_end_fails(
    start: int, reader_class: type[InOrder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log had 1,000 records when the run began, and 900 later."""
    monkeypatch.setattr(replay_stream, "ENGINE_LIMITS", reader_class is ReplayReader)
    ends = [1_000, 900]
    begin = offsets.encode({FLIGHTS: start})
    with broker(lambda api, port: respond(api, port, ends)) as address:
        reader = replay_reader(given(address, **SHORT), StructType())
        if reader_class is ReplayReader:
            reader.prepareForTriggerAvailableNow()
            arguments = (begin, None)
        else:
            reader._begin, arguments = begin, ()
        lost = "offsets 900 to 999" if start < 900 else "offsets 900 to 949"
        with pytest.raises(OffsetsUnavailable, match=rf"but the log ends at 900: {lost} were lost"):
            reader.latestOffset(*arguments)
        reader.stop()


def test_replay_that_accepts_the_loss_ends_where_its_source_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_stream, "ENGINE_LIMITS", True)
    ends = [1_000, 900]
    with broker(lambda api, port: respond(api, port, ends)) as address:
        reader = replay_reader(given(address, failOnDataLoss="false", **SHORT), StructType())
        reader.prepareForTriggerAvailableNow()
        begin = offsets.encode({FLIGHTS: 800})
        with pytest.warns(UserWarning, match="offsets 900 to 999 were lost"):
            end = reader.latestOffset(begin, None)
        assert offsets.decode(end) == {FLIGHTS: 900}
        assert reader.latestOffset(end, None) == end
        reader.stop()


def test_engine_that_does_not_say_where_a_micro_batch_starts_waits_for_the_upload(tmp_path: Path) -> None:
    """The checkpoint is at 10. At the restart the bucket ends at 5, which is in the checkpoint, too."""
    writer = BucketWriter(tmp_path)
    source = Source("flights", writer.topic("flights", 1), 0)
    for base in (0, 5, 10):
        records = [NewRecord(0, None, b"v")] * 5
        writer.segment("flights", 0, [encode_batch(records, base_offset=base)])
    options = parse_stream_options({"topic": "flights", "path": str(tmp_path)})
    checkpoint = offsets.encode({source: 10})
    writer.commit("flights", 0, uncommitted=2)
    reader = stream.UnlimitedStreamReader(options, StructType())
    end = reader.latestOffset()
    assert offsets.decode(end) == {source: 5}
    with pytest.raises(OffsetsUnavailable, match="10, and the bucket ends at 5: start the query again"):
        reader.partitions(checkpoint, end)
    writer.commit("flights", 0, uncommitted=1)
    reader = stream.UnlimitedStreamReader(options, StructType())  # the next run plans the same micro-batch
    assert reader.partitions(checkpoint, end) == []
    assert offsets.decode(reader.latestOffset()) == {source: 10}
    writer.commit("flights", 0)
    newest = reader.latestOffset()
    (task,) = reader.partitions(end, newest)
    assert [part.offsets for part in unpack_split(task.value)] == [OffsetRange(10, 15)]


class Uploaded(BucketPositions):
    """Positions in a bucket without the newest segment."""

    def __init__(self, end: int) -> None:
        self._end = end

    def sources(self) -> list[Source]:
        return [FLIGHTS]

    def committed(self, source: Source) -> OffsetRange:
        return OffsetRange(0, self._end)


def test_stream_that_loses_its_brokers_waits_for_the_upload() -> None:
    """Its checkpoint may have an offset of the brokers, which is not in the bucket yet."""
    reader = stream.TierlogStreamReader(parse_stream_options({"topic": "flights", "path": "."}), StructType())
    reader._opened = Uploaded(900)
    assert reader.latestOffset(CHECKPOINT, None) == CHECKPOINT
    reader._opened = Uploaded(1_005)
    assert reader.latestOffset(CHECKPOINT, None) == offsets.encode({FLIGHTS: 1_005})


def test_rest_of_a_range_that_the_log_has_lost_is_an_error_unless_waived() -> None:
    with broker(lambda api, port: respond(api, port, [0])) as address:
        live = parse_stream_options(given(address)).live
        assert live is not None
        lost = OffsetRange(950, 1_000)
        with pytest.raises(OffsetsUnavailable, match=r"the log of the leader ends before it.*=false"):
            list(fetch_range(live, FLIGHTS, lost, fail_on_data_loss=True))
        with pytest.warns(UserWarning, match=r"ends before it.*records were lost"):
            assert list(fetch_range(live, FLIGHTS, lost, fail_on_data_loss=False)) == []
        for idle in connection._IDLE.pop(live):
            idle.close()


def test_few_records_wait_for_others_until_the_longest_delay() -> None:
    ends = [offsets.encode({FLIGHTS: end}) for end in (1_005, 1_005, 1_020)]
    assert batches(1_005, 1_008, 1_020, count=3, minOffsetsPerTrigger="10") == ends
    ends[1] = offsets.encode({FLIGHTS: 1_008})
    assert batches(1_005, 1_008, 1_020, count=3, minOffsetsPerTrigger="10", maxTriggerDelay="0ms") == ends


def test_micro_batch_has_no_more_records_than_its_limit() -> None:
    ends = [offsets.encode({FLIGHTS: end}) for end in (1_400, 1_800, 1_900)]
    assert batches(1_900, count=3, maxOffsetsPerTrigger="400") == ends
