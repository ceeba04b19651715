"""A secure three-node cluster with a bucket and a load that uses all that dashboards show.

Records of a tiered topic, a group that reads them, transactions, a compacted topic, reads of old offsets from
the bucket, requests that fail, logins that fail, clients with quotas.
"""

import json
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import s3_servers
from canaries import canary
from cli_inline import call
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from havoc.nodes import CONTROL, ControlFile, build_shim
from mounts import tmpfs
from slow_link import SlowLink
from waiting import until

from tierlog.base.clock import SystemClock
from tierlog.cli.certificates import LocalAuthority
from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.local_security import ADMIN, HOSTS, LocalSecurity
from tierlog.cli.process import TierlogBroker

TIMEOUT_S = 60.0
TIERED, COMPACTED = "orders", "accounts"
PARTITIONS = 3
GROUP = "billing"
CERTIFICATE_DAYS = 5
SMALL_DISK, TWO_DISKS, WRONG_CLOCK, SLOW_LINK = 1, 2, 3, 3
"""Nodes whose logs are on a small disk and on two disks, node whose clock can be set and whose fsync can
hang, and node whose link to the bucket can be slow."""

DISK_BYTES, METADATA_DISK_BYTES = 160 << 20, 64 << 20
PREFIX, STORE_USER, STORE_SECRET = "watched", "watched", canary("watched")
DELETE_GRACE_MS = 5_000
LAG_PARTITIONS_MAX = 10
SETTINGS = {"remote.log.manager.task.interval.ms": "200", "offsets.topic.num.partitions": "3",
            "transaction.state.log.num.partitions": "3", "log.cleaner.backoff.ms": "500",
            "group.lag.metrics.max.partitions": str(LAG_PARTITIONS_MAX),
            "remote.log.delete.grace.ms": str(DELETE_GRACE_MS),
            "remote.log.scrub.max.requests.per.second": "1000",
            "remote.log.scrub.max.bytes.per.second": str(1 << 30)}  # fmt: skip
TOPICS = {
    TIERED: {"remote.storage.enable": "true", "segment.bytes": "100000", "local.retention.ms": "1",
             "retention.ms": "-1", "file.delete.delay.ms": "0", "remote.log.copy.max.lag.ms": "20000"},
    COMPACTED: {"cleanup.policy": "compact", "segment.bytes": "100000", "flush.messages": "1"},
}  # fmt: skip


@dataclass
class WatchedCluster:
    cluster: LocalCluster
    store: s3_servers.S3Server
    clock: ControlFile
    disk: Path
    metadata_disk: Path
    link: SlowLink
    load: "Load"

    @property
    def options(self) -> tuple[str, ...]:
        """Options of commands."""
        assert self.cluster.security is not None
        client_file = str(self.cluster.security.client_file)
        return ("--bootstrap", self.cluster.bootstrap, "--client-config", client_file)

    @property
    def clients(self) -> dict[str, Any]:
        """Settings of clients."""
        assert self.cluster.security is not None
        return self.cluster.security.librdkafka_settings(self.cluster.bootstrap)

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(self.clients)

    def issue_certificate(self, days: int) -> None:
        assert self.cluster.security is not None
        _issue_certificate(self.cluster.security, days)

    def get(self, node: int, path: str) -> Any:
        """The JSON that a node's admin API responds with."""
        return self._ask(node, path, None)

    def post(self, node: int, path: str) -> None:
        self._ask(node, path, b"{}")

    def _ask(self, node: int, path: str, body: bytes | None) -> Any:
        assert self.cluster.security is not None
        login = b64encode(f"{ADMIN}:{self.cluster.security.password(ADMIN)}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}"}
        url = self.cluster.nodes[node].admin_url + path
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=TIMEOUT_S
        ) as response:
            return json.load(response)

    def run(self, *words: str) -> None:
        """A command, until it succeeds: the brokers may elect leaders."""
        until(lambda: call(*words, *self.options).code == 0, f"{words} succeeds")

    def create_topic(
        self, undo: ExitStack, topic: str, replicas: list[list[int]], config: dict[str, str] | None = None
    ) -> None:
        """`replicas`: of each partition."""
        new = NewTopic(topic, len(replicas), replica_assignment=replicas, config=config or {})
        self.admin.create_topics([new])[topic].result(TIMEOUT_S)
        undo.callback(lambda: self.admin.delete_topics([topic])[topic].result(TIMEOUT_S))

    def produce(self, topic: str, count: int, size: int) -> None:
        producer = Producer({**self.clients, "batch.num.messages": 10})
        for number in range(count):
            producer.produce(topic, bytes(size), key=b"%d" % number)
        assert producer.flush(TIMEOUT_S) == 0

    def configure(self, kind: ConfigResource.Type, name: str, settings: dict[str, str]) -> None:
        entries = [
            ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
            for setting, value in settings.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def scrub_bucket(self) -> None:
        for node in self.cluster.nodes:
            self.post(node, "/v1/tier/scrub")

    @property
    def login(self) -> tuple[str, Path]:
        """User, and the file with its password."""
        security = self.cluster.security
        assert security is not None
        path = self.cluster.directory / "prometheus.password"
        path.touch(0o600)
        path.write_text(security.password(ADMIN))
        return ADMIN, path


@contextmanager
def running(directory: Path, store: s3_servers.S3Server) -> Iterator[WatchedCluster]:
    shim = build_shim(directory)
    assert shim is not None, "a C compiler is needed, for a node whose clock can be set"
    url, link = store.url(PREFIX), SlowLink(store.address)
    cluster = LocalCluster(
        directory / "cluster",
        settings={**SETTINGS, "object.store.url": url},
        secure=True,
        environment=s3_servers.credentials(STORE_USER, STORE_SECRET),
    )
    small = cluster.nodes[SMALL_DISK]
    metadata_disk = small.directory / "metadata"
    small.settings |= {
        "metadata.log.dir": str(metadata_disk),
        "audit.log.dir": str(small.data_dir / "audit"),
        "audit.log.repeat.ms": "1000",
    }
    two = cluster.nodes[TWO_DISKS]
    two.settings |= {
        "log.dirs": f"{two.data_dir},{second_disk(two)}",
        "metadata.log.dir": str(two.directory / "metadata"),
        "log.flush.offset.checkpoint.interval.ms": "1000",
    }
    clock = ControlFile(directory / "clock")
    late = cluster.nodes[WRONG_CLOCK]
    late.environment |= {"LD_PRELOAD": str(shim), CONTROL: str(clock.path)}
    cluster.nodes[SLOW_LINK].settings["object.store.url"] = url.replace(store.address, link.address)
    assert cluster.security is not None
    _issue_certificate(cluster.security, CERTIFICATE_DAYS)
    store.create_user(STORE_USER, STORE_SECRET)
    set_rights(store)
    disks = tmpfs(small.data_dir, DISK_BYTES), tmpfs(metadata_disk, METADATA_DISK_BYTES)
    with disks[0], disks[1], link, cluster:
        load = Load(cluster)
        try:
            yield WatchedCluster(cluster, store, clock, small.data_dir, metadata_disk, link, load)
        finally:
            load.stop()


def set_rights(store: s3_servers.S3Server, denied: str = "", key: str = "*") -> None:
    """The brokers may do everything in the bucket, but not what is denied: an action, with these keys."""
    bucket = f"arn:aws:s3:::{s3_servers.BUCKET}"
    who = {"AWS": [STORE_USER]}
    rights = [
        {"Effect": "Allow", "Principal": who, "Action": "s3:*", "Resource": [bucket, f"{bucket}/*"]},
    ]
    if denied:
        rights.append({"Effect": "Deny", "Principal": who, "Action": denied, "Resource": [f"{bucket}/{key}"]})
    policy = {"Version": "2012-10-17", "Statement": rights}
    store.minio_client().set_bucket_policy(s3_servers.BUCKET, json.dumps(policy))


def in_background(undo: ExitStack, work: Callable[[threading.Event], None]) -> None:
    """`work`: runs until its argument is set."""
    ends = threading.Event()
    working = threading.Thread(target=work, args=(ends,))
    undo.callback(working.join)
    undo.callback(ends.set)
    working.start()


def paused_repeatedly(
    undo: ExitStack, pause: Callable[[], None], resume: Callable[[], None], *, pause_s: float, run_s: float
) -> None:
    def work(ends: threading.Event) -> None:
        while not ends.wait(run_s):
            pause()
            ends.wait(pause_s)
            resume()

    in_background(undo, work)


def flip(path: Path) -> None:
    """Change a bit in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def second_disk(broker: TierlogBroker) -> Path:
    return broker.directory / "second"


def _issue_certificate(security: LocalSecurity, days: int) -> None:
    LocalAuthority(security.directory, SystemClock().now_ms() // 1000, days).issue("broker", HOSTS)


class Load:
    """Clients in one thread, until `stop`. `consumes`: whether the group reads."""

    def __init__(self, cluster: LocalCluster) -> None:
        assert cluster.security is not None
        self._settings = cluster.security.librdkafka_settings(cluster.bootstrap)
        self._client_file = str(cluster.security.client_file)
        self._bootstrap = cluster.bootstrap
        self.consumes = threading.Event()
        self.consumes.set()
        self._ends = threading.Event()
        self._prepare()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._read_history)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _prepare(self) -> None:
        admin = AdminClient(self._settings)
        topics = [NewTopic(name, PARTITIONS, 3, config=config) for name, config in TOPICS.items()]
        for created in admin.create_topics(topics).values():
            created.result(TIMEOUT_S)
        quota = ("producer_byte_rate=100000000", "consumer_byte_rate=100000000", "--user", ADMIN)
        at = ("--bootstrap", self._bootstrap, "--client-config", self._client_file)
        ended = call("quota", "set", *quota, *at)
        assert ended.code == 0, ended.stderr

    def _produce(self) -> None:
        """Records and transactions, and a group that reads all but the last."""
        producer = Producer({**self._settings, "client.id": "shop"})
        transactional = Producer({**self._settings, "client.id": "ledger", "transactional.id": "ledger"})
        consumer = Consumer({**self._settings, "client.id": "billing", "group.id": GROUP,
                             "auto.offset.reset": "earliest", "enable.auto.commit": False})  # fmt: skip
        consumer.subscribe([TIERED])
        number, initialized = 0, False
        while not self._ends.wait(0.05):
            for _ in range(30):
                number += 1
                producer.produce(TIERED, b"%d %01000d" % (number, number), partition=number % PARTITIONS)
                producer.produce(COMPACTED, b"%0500d" % number, key=b"%d" % (number % 20))
            producer.flush(1)
            with suppress(KafkaException):  # its coordinator may just change
                if not initialized:
                    transactional.init_transactions(TIMEOUT_S)
                    initialized = True
                _transaction(transactional, number)
            if self.consumes.is_set() and consumer.consume(500, timeout=0.2):
                with suppress(KafkaException):
                    consumer.commit(asynchronous=False)
        consumer.close()

    def _read_history(self) -> None:
        """Read from the first offset again, ask for a missing topic, and log in with a wrong password."""
        wrong = AdminClient({**self._settings, "sasl.password": "wrong", "log_level": 0})
        while not self._ends.wait(0.5):
            reader = Consumer({**self._settings, "client.id": "audit", "group.id": "audit",
                               "enable.auto.commit": False})  # fmt: skip
            reader.assign([TopicPartition(TIERED, partition, 0) for partition in range(PARTITIONS)])
            reader.consume(2000, timeout=2)
            with suppress(KafkaException):
                reader.get_watermark_offsets(TopicPartition("nosuch", 0), timeout=0.5)
            reader.close()
            with suppress(KafkaException):
                wrong.list_topics(timeout=0.5)


def _transaction(producer: Producer, number: int) -> None:
    """A transaction that may fail while brokers do."""
    try:
        producer.begin_transaction()
        producer.produce(COMPACTED, b"%d" % number, key=b"ledger")
        producer.commit_transaction(TIMEOUT_S)
    except KafkaException:
        with suppress(KafkaException):
            producer.abort_transaction(TIMEOUT_S)
