"""`tierlog log` on the directory of a real broker process: after a stop, after a kill, and while it runs."""

from pathlib import Path

import pytest
from cli_inline import json_output, run
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tierlog.testing import TierlogBroker, TierlogBrokerFactory

TIMEOUT_S = 90.0
COUNT = 400
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def broker(tierlog_broker_factory: TierlogBrokerFactory) -> TierlogBroker:
    """A broker with one partition that has records in all codecs in several segments."""
    broker = tierlog_broker_factory({})
    configs = {"segment.bytes": "60000", "index.interval.bytes": "1000"}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("orders", 1, 1, config=configs)])["orders"].result(TIMEOUT_S)
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "batch.size": 4000,
                "log_level": 0,
            }
        )
        for number in range(COUNT):
            producer.produce("orders", b"value %d " % number * 20, b"%d" % number, headers=[("h", b"\xff")])
        assert producer.flush(TIMEOUT_S) == 0
    return broker


def partition(broker: TierlogBroker) -> Path:
    return broker.data_dir / "orders-0"


def test_logs_are_intact_after_a_stop(broker: TierlogBroker) -> None:
    broker.stop()
    [found] = json_output("log", "verify", broker.data_dir, "--records")
    assert (found["damaged"], found["problems"], found["records"]) == (False, [], COUNT * len(CODECS))
    assert found["segments"] > 2
    documents = json_output("log", "dump", broker.data_dir, "--records", "--from", "10", "--to", "1990")
    records = [each for each in documents if each["kind"] == "record"]
    assert [each["offset"] for each in records] == list(range(10, 1990))
    assert (records[0]["key"], records[0]["value"]) == ("10", "value 10 " * 20)
    assert records[0]["headers"] == [["h", {"base64": "/w=="}]]
    assert {each["codec"] for each in documents if each["kind"] == "batch"} == set(CODECS)
    kinds = {each["kind"] for each in documents}
    assert kinds >= {"offset-index", "time-index", "producer", "leader-epoch", "checkpoint", "property"}


def test_human_readable_output(broker: TierlogBroker) -> None:
    broker.stop()
    said = run("log", "dump", partition(broker), "--keys", "--to", "1").stdout
    assert "leader-epoch: epoch 0, start offset 0" in said
    assert "batch: offsets 0 to " in said and "key='0'" in said and "value=" not in said
    ended = run("log", "verify", partition(broker))
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "1 partition, " in ended.stderr and ended.stderr.rstrip().endswith("no damage")
    assert run("log", "dump", broker.directory / "broker.log").returncode == 2
    assert run("log", "verify", broker.data_dir / "nothing").returncode == 2


def test_after_a_kill_nothing_is_damaged(broker: TierlogBroker) -> None:
    broker.kill()
    [found] = json_output("log", "verify", broker.data_dir)
    assert (found["damaged"], found["records"]) == (False, COUNT * len(CODECS))


def test_exit_code_reports_damage(broker: TierlogBroker) -> None:
    broker.stop()
    path = sorted(partition(broker).glob("*.log"))[1]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    [found] = json_output("log", "verify", broker.data_dir, code=1)
    assert found["damaged"]
    assert [Path(problem["path"]).name for problem in found["problems"]] == [path.name]
    ended = run("log", "verify", path)
    assert ended.returncode == 1 and "DAMAGE" in ended.stdout and "CRC-32C" in ended.stdout
    refused = run("log", "rebuild-index", broker.data_dir)
    assert refused.returncode == 1 and "CRC-32C" in refused.stderr


def test_indexes_are_rebuilt_and_the_broker_serves_from_them(broker: TierlogBroker) -> None:
    refused = run("log", "rebuild-index", partition(broker))
    assert refused.returncode == 1 and "a broker runs on" in refused.stderr
    assert "a broker runs on" in run("log", "verify", broker.data_dir).stderr
    broker.stop()
    words = ("log", "rebuild-index", broker.data_dir, "--index-interval-bytes", "1000")
    assert json_output(*words)[0]["changed"] == []
    sound = {path: path.read_bytes() for path in partition(broker).iterdir() if "index" in path.suffix}
    for path in sound:
        path.write_bytes(b"not an index")
    assert json_output("log", "verify", broker.data_dir, code=1)[0]["damaged"]
    assert {Path(name) for name in json_output(*words)[0]["changed"]} == set(sound)
    assert {path: path.read_bytes() for path in sound} == sound
    assert json_output("log", "verify", broker.data_dir)[0]["problems"] == []
    broker.start()
    assert "log.truncated.start" not in broker.log_tail()
