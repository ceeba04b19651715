"""Records requests.json.zst again: real clients use a broker through a proxy that records their frames.

    .venv/bin/python tests/golden/traffic/record.py [CLIENT ...]

Clients: librdkafka, consumer_protocol (librdkafka with KIP-848), kafka_python, aiokafka, and, if their
programs are installed, java with its tools, java_transactions, franz_go and kafkajs. The frames of clients
that are not named stay. The fuzzer of the net layer (tests/fuzz) mutates these frames. Its findings do not
depend on this recording.
"""

import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from traffic import RecordingProxy, Traffic, selected  # noqa: E402

from tierlog.cli.process import TierlogBroker  # noqa: E402

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLIENTS = ROOT / "tests" / "clients"
COPIED = 120
TIMEOUT_S = 30.0
SHORT_SESSION_MS = 6000


def values(count: int = 12) -> Iterable[tuple[bytes, bytes]]:
    return ((b"key-%d" % (n % 4), b"value %d " % n * 3) for n in range(count))


def librdkafka(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka import admin as a

    admin = a.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([a.NewTopic(topic, 3, 1, config={"retention.ms": "-1"})])[topic].result(TIMEOUT_S)
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": True,
                "linger.ms": 20,
            }
        )
        for key, value in values():
            producer.produce(topic, value * 5, key, headers=[("h", b"1"), ("none", None)])
        producer.flush(TIMEOUT_S)
    for group in (f"{topic}-a", f"{topic}-b"):
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([topic])
        seen = 0
        while seen < 60:
            seen += len(consumer.consume(100, 1.0))
        consumer.commit(asynchronous=False)
        consumer.offsets_for_times([TopicPartition(topic, 0, 1)], TIMEOUT_S)
        consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
        consumer.close()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-c"})
    consumer.assign([TopicPartition(topic, 0, 2, leader_epoch=0)])  # it asks where that epoch ends
    consumer.consume(1, TIMEOUT_S)
    consumer.close()
    _transactions(bootstrap, topic)
    resource = a.ConfigResource(a.ResourceType.TOPIC, topic)
    admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    entry = a.ConfigEntry("retention.ms", "1000000", incremental_operation=a.AlterConfigOpType.SET)
    change = a.ConfigResource(a.ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(TIMEOUT_S)
    admin.create_partitions([a.NewPartitions(topic, 4)])[topic].result(TIMEOUT_S)
    place = TopicPartition(topic, 0)
    for spec in (a.OffsetSpec.earliest(), a.OffsetSpec.latest(), a.OffsetSpec.max_timestamp()):
        admin.list_offsets({place: spec})[place].result(TIMEOUT_S)
    admin.delete_records([TopicPartition(topic, 0, 3)])
    admin.describe_cluster().result(TIMEOUT_S)
    groups = [f"{topic}-a", f"{topic}-b"]
    admin.list_consumer_groups().result(TIMEOUT_S)
    for each in admin.describe_consumer_groups(groups).values():
        each.result(TIMEOUT_S)
    admin.delete_consumer_groups(groups[1:])[groups[1]].result(TIMEOUT_S)
    doomed = f"{topic}-doomed"
    admin.create_topics([a.NewTopic(doomed, 1, 1)])[doomed].result(TIMEOUT_S)
    admin.delete_topics([doomed])[doomed].result(TIMEOUT_S)


def _transactions(bootstrap: str, topic: str) -> None:
    """Two transactions with offsets: one is committed, one aborted."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"{topic}-a"})
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for key, value in values():
            producer.produce(topic, value, key)
        offsets = [TopicPartition(topic, 0, 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), TIMEOUT_S)
        end(TIMEOUT_S)
    consumer.close()


def consumer_protocol(bootstrap: str, topic: str) -> None:
    """Members of a group of KIP-848: by name, by a regular expression and static. One commits its offset in a
    transaction."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka import admin as a

    admin = a.AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([a.NewTopic(topic, 4, 1)])[topic].result(TIMEOUT_S)
    group = f"{topic}-g"
    common = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    members = [
        Consumer(common),
        Consumer({**common, "client.rack": "a", "group.remote.assignor": "range"}),
        Consumer({**common, "group.instance.id": "static"}),
    ]
    for member, name in zip(members, (topic, f"^{topic}$", topic), strict=True):
        member.subscribe([name])
        _consume_until(members, lambda member=member: len(member.assignment()) > 0)
    members[0].subscribe([topic, f"{topic}-absent"])
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "enable.idempotence": True}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for key, value in values():
            producer.produce(topic, value, key)
        place = [TopicPartition(topic, each.partition, 1) for each in members[0].assignment()]
        producer.send_offsets_to_transaction(place, members[0].consumer_group_metadata(), TIMEOUT_S)
        end(TIMEOUT_S)
    _consume_until(members, lambda: all(member.assignment() for member in members))
    members[1].commit(offsets=[TopicPartition(*_first(members[1]), 1)], asynchronous=False)
    admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
    states = {a.ConsumerGroupState.STABLE} if hasattr(a, "ConsumerGroupState") else None
    admin.list_consumer_groups(states=states).result(TIMEOUT_S)
    for member in members:
        member.close()


def _first(member: Any) -> tuple[str, int]:
    each = member.assignment()[0]
    return each.topic, each.partition


def _consume_until(members: list[Any], reached: Callable[[], bool]) -> None:
    """Members follow their assignments only while they are polled."""
    ends = time.monotonic() + TIMEOUT_S
    while not reached():
        for member in members:
            member.poll(0.1)
        if time.monotonic() > ends:
            raise TimeoutError("a member got no partition")


def kafka_python(bootstrap: str, topic: str) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    admin.create_topics([NewTopic(topic, 2, 1)])
    for codec in CODECS:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap, compression_type=None if codec == "none" else codec, linger_ms=20
        )
        for key, value in values():
            producer.send(topic, value, key, headers=[("h", b"1")])
        producer.flush(TIMEOUT_S)
        producer.close()
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"{topic}-g", auto_offset_reset="earliest"
    )
    for _ in range(60):
        next(consumer)
    consumer.commit()
    place = TopicPartition(topic, 0)
    consumer.offsets_for_times({place: 5})
    consumer.end_offsets([place])
    consumer.close()
    admin.describe_topics([topic])
    admin.describe_log_dirs()
    admin.create_partitions({topic: 3})
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "-1"})])
    admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    admin.delete_records({place: 2})
    admin.list_groups()
    admin.list_group_offsets([f"{topic}-g"])
    admin.describe_groups([f"{topic}-g"])
    admin.delete_groups([f"{topic}-g"])
    admin.create_topics([NewTopic(f"{topic}-doomed", 1, 1)])
    admin.delete_topics([f"{topic}-doomed"])
    admin.close()


def aiokafka(bootstrap: str, topic: str) -> None:
    asyncio.run(_aiokafka(bootstrap, topic))


async def _aiokafka(bootstrap: str, topic: str) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
    from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
    from aiokafka.admin.records_to_delete import RecordsToDelete

    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 2, 1)])
    for codec in CODECS:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=codec != "none",
            linger_ms=20,
        ) as producer:
            for sent in [await producer.send(topic, value, key) for key, value in values()]:
                await sent
    async with AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-g",
        auto_offset_reset="earliest",
        heartbeat_interval_ms=100,
        session_timeout_ms=SHORT_SESSION_MS,
    ) as consumer:
        for _ in range(60):
            await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
        await consumer.commit()
        await asyncio.sleep(0.3)  # some heartbeats
        await consumer.offsets_for_times({TopicPartition(topic, 0): 3})
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=topic) as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait(topic, b"value", b"key", partition=0)
        await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 1}, f"{topic}-g")
    await admin.create_partitions({topic: NewPartitions(3)})
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete"})
    await admin.describe_topics([topic])
    await admin.alter_configs([resource])
    await admin.describe_configs([resource])
    await admin.describe_cluster()
    await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(3)})
    await admin.list_consumer_groups()
    await admin.list_consumer_group_offsets(f"{topic}-g")
    await admin.describe_consumer_groups([f"{topic}-g"])
    await admin.create_topics([NewTopic(f"{topic}-doomed", 1, 1)])
    await admin.delete_topics([f"{topic}-doomed"])
    await admin.close()


def java(bootstrap: str, topic: str) -> None:
    here = ROOT / "tests" / "clients"
    jars = subprocess.run([here / "fetch-java.sh"], capture_output=True, text=True, check=True).stdout.strip()

    def run(*arguments: str) -> None:
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, input=b"")

    run(str(here / "java" / "RoundTrip.java"), bootstrap, topic, "lz4", "60", "classic")
    tools, server = "org.apache.kafka.tools", ("--bootstrap-server", bootstrap)
    run(f"{tools}.TopicCommand", *server, "--describe", "--topic", topic)
    run(f"{tools}.TopicCommand", *server, "--alter", "--topic", topic, "--partitions", "4")
    run(f"{tools}.consumer.group.ConsumerGroupCommand", *server, "--describe", "--all-groups")
    offsets = ("--delete-offsets", "--group", f"group-{topic}", "--topic", topic)
    run(f"{tools}.consumer.group.ConsumerGroupCommand", *server, *offsets)
    run(f"{tools}.GetOffsetShell", *server, "--topic", topic)
    run(f"{tools}.LogDirsCommand", *server, "--describe", "--topic-list", topic)
    run(f"{tools}.TransactionsCommand", *server, "list", "--transactional-id-pattern", ".*")
    run(f"{tools}.TransactionsCommand", *server, "describe", "--transactional-id", "traffic-librdkafka")
    partition = ("--topic", topic, "--partition", "0")
    run(f"{tools}.TransactionsCommand", *server, "describe-producers", *partition)
    entity = ("--entity-type", "topics", "--entity-name", topic)
    run("kafka.admin.ConfigCommand", *server, *entity, "--alter", "--add-config", "segment.bytes=2097152")
    run("kafka.admin.ConfigCommand", *server, *entity, "--describe")


def java_transactions(bootstrap: str, topic: str) -> None:
    """A member of a group of KIP-848, and a copy in transactions of version 2."""
    jars = subprocess.run([CLIENTS / "fetch-java.sh"], capture_output=True, text=True, check=True).stdout
    java = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars.strip()}/*"]
    round_trip = [str(CLIENTS / "java" / "RoundTrip.java"), bootstrap, topic, "none", "60", "consumer"]
    subprocess.run([*java, *round_trip], check=True, stdout=subprocess.DEVNULL, input=b"")
    _copy([*java, str(CLIENTS / "java" / "TransactionalCopy.java")], bootstrap, topic)


def franz_go(bootstrap: str, topic: str) -> None:
    with tempfile.TemporaryDirectory() as built:
        subprocess.run(["go", "build", "-C", str(CLIENTS / "go"), "-o", built, "./..."], check=True)
        _copy([f"{built}/copy"], bootstrap, topic)


def kafkajs(bootstrap: str, topic: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        programs = shutil.copytree(
            CLIENTS / "node", Path(directory) / "programs", ignore=shutil.ignore_patterns("node_modules")
        )
        subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--prefix", str(programs)], check=True)
        _copy(["node", str(programs / "copy.js")], bootstrap, topic)


def _copy(command: list[str], bootstrap: str, topic: str) -> None:
    """Read a topic and write it, with the offsets, in transactions, of which some are aborted."""
    from confluent_kafka import Consumer, Producer
    from confluent_kafka import admin as a

    admin, sink = a.AdminClient({"bootstrap.servers": bootstrap}), f"{topic}-sink"
    source = f"{topic}-source"
    for created in admin.create_topics([a.NewTopic(name, 3, 1) for name in (source, sink)]).values():
        created.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in values(COPIED):
        producer.produce(source, value, key)
    producer.flush(TIMEOUT_S)
    settings = {"bootstrap.servers": bootstrap, "group.id": sink, "auto.offset.reset": "earliest"}
    consumer, copied = Consumer(settings), 0
    consumer.subscribe([sink])
    with subprocess.Popen([*command, bootstrap, source, sink], stdout=subprocess.DEVNULL) as copying:
        ends = time.monotonic() + 4 * TIMEOUT_S
        while copied < COPIED and time.monotonic() < ends:
            copied += len(consumer.consume(COPIED, 1.0))
        copying.kill()
    consumer.close()
    if copied < COPIED:
        raise TimeoutError(f"{copied} of {COPIED} records were copied")


def main() -> None:
    clients: list[Callable[[str, str], None]] = [librdkafka, consumer_protocol, kafka_python, aiokafka]
    if shutil.which("java") and shutil.which("mvn"):
        clients += [java, java_transactions]
    clients += [client for program, client in (("go", franz_go), ("npm", kafkajs)) if shutil.which(program)]
    if named := sys.argv[1:]:
        clients = [each for each in clients if each.__name__ in named]
    again = {each.__name__ for each in clients}
    proxy = RecordingProxy()
    proxy.start()
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    with tempfile.TemporaryDirectory() as directory, TierlogBroker(Path(directory), advertised) as broker:
        proxy.target_port = broker.port
        for client in clients:
            proxy.label = client.__name__
            client(f"127.0.0.1:{proxy.port}", f"traffic-{client.__name__}".replace("_", "-"))
            print(proxy.label, sum(each.client == proxy.label for each in proxy.requests), "requests")
        topics = ids(broker)
    proxy.stop()
    before = Traffic.load()
    requests = [each for each in before.requests if each.client not in again] if named else []
    requests = sorted([*requests, *selected(proxy.requests)], key=lambda each: each.client)
    Traffic({**before.topics, **topics} if named else topics, requests).save()
    print(f"kept {len(requests)}, {len({each.kind for each in requests})} kinds")


def ids(broker: TierlogBroker) -> dict[str, object]:
    from wire_client import Client

    from tierlog.protocol.messages.metadata import MetadataRequest

    client = Client(broker.bootstrap)
    answer = client.send("Metadata", 12, MetadataRequest(topics=None))
    client.close()
    return {topic.name: topic.topic_id for topic in answer.topics}


if __name__ == "__main__":
    main()
