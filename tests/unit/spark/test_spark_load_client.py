"""Client of bulk loads: what it repeats, and how a commit whose outcome was lost is found again."""

import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from remote_segments import remote_segment

from tierlog.base.types import TopicIdPartition
from tierlog.client.admin import AdminRefused, AdminUnreachable
from tierlog.records.codecs import Codec
from tierlog.spark.bulk_load import Topic, _Load, check_columns, find_topic
from tierlog.spark.jobs import load_client
from tierlog.spark.jobs.arguments import InvalidArgument, JobFailed, NoProgress, parse
from tierlog.spark.jobs.load import JOB
from tierlog.spark.jobs.load_client import LoadBegun, LoadClient, Loaded, LoadLeases, NotLoaded
from tierlog.spark.jobs.loading import PartitionWritten
from tierlog.spark.options.table import InvalidOption

LOADED = {"loaded": {"base_offset": 5, "end_offset": 9}}
BEGUN = {
    "loaded": None,
    "base_offset": 5,
    "leader_epoch": 2,
    "leader_epochs": [[0, 0], [2, 3]],
    "producer_snapshot": "cA==",
    "segment_bytes": 1,
    "index_interval_bytes": 2,
    "max_message_bytes": 3,
    "compression_type": "uncompressed",
    "message_timestamp_type": "CreateTime",
    "retention_ms": -1,
    "retention_bytes": -1,
}
BUSY, GONE = AdminRefused(503, "busy"), AdminRefused(409, "the lease has ended")
Script = Callable[..., list[str]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Sets the responses, in order. Returns the list of the requests, which grows."""

    def play(*responses: Any) -> list[str]:
        left, sent = list(responses), list[str]()

        class Admin:
            def __init__(self, urls: str, timeout_s: float = 0) -> None:
                assert urls == "http://a"

            def refresh(self) -> None:
                sent.append("refresh")

            def post(self, where: TopicIdPartition, path: str, body: dict[str, Any]) -> Any:
                assert (where.partition, body["partition"]) == (1, 1)
                sent.append(path.rpartition("/")[2])
                response = left.pop(0)
                if isinstance(response, Exception):
                    raise response
                return response

        monkeypatch.setattr(load_client, "ClusterAdmin", Admin)
        monkeypatch.setattr(load_client, "PAUSE_S", 0.0)
        return sent

    return play


@pytest.fixture
def client() -> LoadClient:
    return LoadClient("http://a", uuid.UUID(int=1), uuid.UUID(int=2), 60)


def test_begin_says_where_the_load_begins_or_is(script: Script, client: LoadClient) -> None:
    script(BEGUN, LOADED)
    begun = client.begin(1)
    assert isinstance(begun, LoadBegun)
    assert (begun.base_offset, begun.producer_snapshot, begun.codec) == (5, b"p", Codec.NONE)
    assert client.begin(1) == Loaded(5, 9)


def test_busy_and_unreachable_leaders_are_asked_again(script: Script, client: LoadClient) -> None:
    sent = script(BUSY, AdminUnreachable("down"), LOADED)
    assert client.commit(1, ()) == Loaded(5, 9)
    assert sent == ["commit", "refresh", "commit", "refresh", "commit"]


def test_commit_that_was_refused_may_have_succeeded_before(script: Script, client: LoadClient) -> None:
    sent = script(GONE, LOADED)
    assert client.commit(1, ()) == Loaded(5, 9)
    assert sent == ["commit", "begin"]


def test_refused_commit_gives_its_new_lease_back(script: Script, client: LoadClient) -> None:
    sent = script(GONE, BEGUN, {})
    with pytest.raises(NotLoaded, match="the lease has ended"):
        client.commit(1, ())
    assert sent == ["commit", "begin", "cancel"]


def test_reason_of_a_refused_commit_is_reported_although_the_leader_is_busy(
    script: Script, client: LoadClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_client, "WAIT_S", -1.0)
    script(AdminRefused(409, "records were written to it"), BUSY, {})
    with pytest.raises(NotLoaded, match="records were written to it"):
        client.commit(1, ())


def test_leases_of_a_load_that_fails_while_it_begins_are_given_back(
    script: Script, client: LoadClient
) -> None:
    sent = script({}, {})
    with LoadLeases(client) as leases:
        leases.add(1)
        leases.add(1)
    assert sent == ["refresh", "cancel"]


def test_columns_whose_names_differ_in_case_are_refused() -> None:
    frame: Any = SimpleNamespace(
        schema=StructType([StructField("Key", BinaryType()), StructField("value", BinaryType())])
    )
    with pytest.raises(InvalidArgument, match="the column Key must be named key"):
        check_columns(frame)


def test_columns_that_exist_twice_are_refused() -> None:
    frame: Any = SimpleNamespace(schema=StructType([StructField("value", BinaryType())] * 2))
    with pytest.raises(InvalidArgument, match="several columns value"):
        check_columns(frame)


@pytest.mark.parametrize(
    ("responses", "state", "failures"),
    [
        ([LOADED], ["loaded before"], []),
        ([BEGUN, {}], [], ["partition 1: the lease has ended"]),
        ([AdminRefused(404, "there is no topic")], [], ["partition 1: the lease has ended"]),
    ],
)
def test_partition_that_could_not_be_written_may_have_been_loaded_by_another_run(
    script: Script, client: LoadClient, responses: list[Any], state: list[str], failures: list[str]
) -> None:
    script(*responses)
    job = object.__new__(_Load)
    job._client, job._rows, job._failures = client, [], []
    job._commit(1, PartitionWritten(1, (), "the lease has ended"), LoadLeases(client))
    assert ([row["state"] for row in job._rows], job._failures) == (state, failures)


def test_loads_that_retention_deletes_at_once_are_refused() -> None:
    job = object.__new__(_Load)
    job._topic = Topic("c", "t", uuid.UUID(int=1), 1)
    begun = {0: LoadBegun(5, 2, (), b"", 1, 2, 3, None, "CreateTime", 1_000, 100)}
    large, old = remote_segment(5, 9, log_bytes=101), remote_segment(5, 9, log_bytes=100, max_timestamp=5)
    for segment, message in ((large, "retention.bytes"), (old, "retention.ms")):
        with pytest.raises(JobFailed, match=f"nothing is loaded: {message}"):
            job._require_kept(begun, {0: PartitionWritten(0, (segment,))})


def test_request_is_given_up_after_a_while(script: Script, client: LoadClient) -> None:
    script(BUSY, BUSY)
    with pytest.raises(NotLoaded, match="busy"):
        client.begin(1, wait_s=-1)


def test_leases_are_renewed_quietly(script: Script, client: LoadClient) -> None:
    sent = script(GONE, AdminUnreachable("down"))
    client.renew(1, load_client.ClusterAdmin("http://a"))
    client.cancel(1)
    assert sent == ["renew", "cancel"]


def test_topic_and_arguments_are_checked_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="Check --admin"):
        find_topic("http://127.0.0.1:1", "t")
    arguments = ["--topic", "t", "--name", "n", "--path", str(tmp_path), "--admin", "http://127.0.0.1:1"]
    with pytest.raises(JobFailed, match="give --input"):
        JOB.run(parse(JOB, arguments), NoProgress())
    missing = ["--path", str(tmp_path / "missing")]
    with pytest.raises(InvalidOption, match="is not a directory"):
        JOB.run(parse(JOB, [*arguments, "--input", "/x", *missing]), NoProgress())
    with pytest.raises(JobFailed, match="Check --admin"):
        JOB.run(parse(JOB, [*arguments, "--input", "/x"]), NoProgress())
