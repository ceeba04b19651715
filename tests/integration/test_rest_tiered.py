"""The REST gateway streams history that is only in the object store."""

from pathlib import Path

import s3_servers
from cli_inline import json_output
from rest_process import RestProcess
from waiting import until

from tierlog.cli.admin import AdminApi
from tierlog.testing import TierlogBroker

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "65536",
    "local.retention.ms": "0",
    "retention.ms": "-1",
}
RECORDS = 3_000


def test_stream_has_tiered_history_and_local_records(
    tierlog_broker_factory, s3: s3_servers.S3Server, tmp_path: Path
) -> None:
    broker: TierlogBroker = tierlog_broker_factory(
        {"remote.log.manager.task.interval.ms": 200},
        object_store=s3.url("rest"),
        environment=s3_servers.CREDENTIALS,
    )
    admin = AdminApi(broker.admin_url)
    with RestProcess(tmp_path, broker.bootstrap) as rest:
        configs = [{"name": name, "value": value} for name, value in TIERED.items()]
        body = {"topic_name": "history", "partitions_count": 1, "configs": configs}
        assert rest.post(f"{rest.cluster_path()}/topics", body).status == 201
        for first in range(0, RECORDS, 500):
            numbers = range(first, first + 500)
            records = [{"value": {"n": n, "pad": "x" * 100}, "timestamp": 1000 + n} for n in numbers]
            assert rest.post("/v1/topics/history/produce", {"records": records}).status == 200
        admin.post("/v1/tier/flush", {"topic": "history"})

        def local_start() -> int:
            (row,) = admin.get("/v1/tier/status", topic="history")["partitions"]
            return int(row["local_log_start_offset"])

        until(lambda: local_start() == RECORDS, "all records are only in the bucket")
        assert rest.post("/v1/topics/history/produce", {"records": [{"value": {"n": RECORDS}}]}).status == 200
        *rows, end = rest.get("/v1/topics/history/consume").body
        assert [(row["offset"], row["value"]["n"]) for row in rows] == [(n, n) for n in range(RECORDS + 1)]
        assert end["next_offsets"] == {"0": RECORDS + 1}
        *rows, _ = rest.get("/v1/topics/history/consume?timestamp=2500&max_records=5").body
        assert [row["offset"] for row in rows] == [1500, 1501, 1502, 1503, 1504]
    options = ("--since", "1000", "--keys", "--bootstrap", broker.bootstrap)
    [found] = json_output("topic", "analyze", "history", *options)
    assert found["records"] == found["keys"]["records"] == RECORDS + 1, "history in the bucket is read"
    assert found["partition_loads"][0]["sampled"] == 1 and not found["keys"]["undecoded_batches"]
