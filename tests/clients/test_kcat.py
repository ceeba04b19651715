"""kcat (librdkafka): produce with keys and headers, consume by offset, by group and by time, list, query."""

import json
import subprocess
import uuid

import pytest

from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.clients, pytest.mark.slow]


def run(kcat: str, broker: TierlogBroker, *arguments: str, text: str | None = None) -> str:
    command = [kcat, "-b", broker.bootstrap, *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_consumes_its_own_records(kcat: str, tierlog_session_broker: TierlogBroker, codec: str) -> None:
    broker, topic = tierlog_session_broker, f"kcat-{codec}-{uuid.uuid4().hex[:6]}"
    lines = [f"key{n % 5}:value {n}" for n in range(2000)]
    run(kcat, broker, "-P", "-t", topic, "-K:", "-z", codec, "-H", "origin=kcat", text="\n".join(lines))

    rows = run(kcat, broker, "-C", "-t", topic, "-o", "beginning", "-e", "-J").splitlines()

    records = [json.loads(row) for row in rows if row.startswith("{")]
    assert sorted(f"{r['key']}:{r['payload']}" for r in records) == sorted(lines)
    assert all(r["headers"] == ["origin", "kcat"] for r in records)


def test_group_continues_from_its_committed_offsets(kcat: str, tierlog_session_broker: TierlogBroker) -> None:
    broker, topic = tierlog_session_broker, f"kcat-group-{uuid.uuid4().hex[:6]}"
    run(kcat, broker, "-P", "-t", topic, text="\n".join(f"first {n}" for n in range(10)))
    group = ("-G", f"group-{topic}", "-X", "auto.offset.reset=earliest", "-e", "-q", topic)
    assert len(run(kcat, broker, *group).splitlines()) == 10

    run(kcat, broker, "-P", "-t", topic, text="second 0\nsecond 1")

    assert sorted(run(kcat, broker, *group).splitlines()) == ["second 0", "second 1"]


def test_metadata_and_offsets_by_time(kcat: str, tierlog_session_broker: TierlogBroker) -> None:
    broker, topic = tierlog_session_broker, f"kcat-meta-{uuid.uuid4().hex[:6]}"
    run(kcat, broker, "-P", "-t", topic, text="a\nb\nc")

    listed = json.loads(run(kcat, broker, "-L", "-J", "-t", topic))
    assert [one["topic"] for one in listed["topics"]] == [topic]
    assert f"{topic} [0] offset 3" in run(kcat, broker, "-Q", "-t", f"{topic}:0:-1")
    assert f"{topic} [0] offset 0" in run(kcat, broker, "-Q", "-t", f"{topic}:0:1")
