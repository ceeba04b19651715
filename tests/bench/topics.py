"""Topics for the load cases: created through librdkafka's admin, awaited until every leader serves."""

import time
import uuid

import wire


class Topics:
    def __init__(self, bootstrap, rf=1):
        from confluent_kafka.admin import AdminClient

        self.bootstrap, self.rf = bootstrap, rf
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def create(self, partitions, config=None, name=None, timeout=120):
        from confluent_kafka.admin import NewTopic

        name = name or f"bench-{uuid.uuid4().hex[:8]}"
        wanted = NewTopic(name, partitions, self.rf, config=config or {})
        self.admin.create_topics([wanted], request_timeout=timeout)[name].result(timeout)
        self.wait_leaders(name, partitions, timeout)
        if self.rf > 1:
            time.sleep(2)  # a follower that asked too early backs off (Kafka: 1 s)
        return name

    def wait_leaders(self, name, partitions, timeout=120):
        """Returns {leader's address: [partition, …]} once every partition is served by its leader."""
        deadline = time.monotonic() + timeout
        with wire.connect(wire.parse_address(self.bootstrap)) as connection:
            while time.monotonic() < deadline:
                connection.sendall(wire.metadata_request(name))
                leaders = wire.partitions_by_leader(wire.read_frame(connection))
                if sum(map(len, leaders.values())) == partitions:
                    break
                time.sleep(0.01)
        while time.monotonic() < deadline:  # metadata can name a leader just before it serves
            if all(wire.serving_partitions(leader, name, own) == len(own) for leader, own in leaders.items()):
                return leaders
            time.sleep(0.01)
        raise TimeoutError(f"{name}: not every partition got a serving leader")

    def configure(self, name, setting, value, timeout=30):
        """Changes one setting of a topic."""
        from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

        entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(timeout)

    def delete(self, name, timeout=120):
        self.admin.delete_topics([name], request_timeout=timeout)[name].result(timeout)


def count_leaders(body):
    """Partitions with a leader in a Metadata v1 response about one topic."""
    return sum(map(len, wire.partitions_by_leader(body).values()))
