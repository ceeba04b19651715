"""Bodies of requests and responses, from which the OpenAPI document takes its schemas.

Names and fields under /v3 are those of Confluent's REST Proxy API v3. `Related` and `Metadata` have URLs.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

Port = Annotated[int, Meta(ge=0, le=65535)]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TimestampMs = Annotated[int, Meta(ge=0, le=2**62)]


def _null() -> Raw:
    return Raw(b"null")


class Metadata(Struct, omit_defaults=True):
    self: str
    resource_name: str | None = None
    next: str | UnsetType | None = UNSET


class Related(Struct):
    related: str


# ---- /v1 -------------------------------------------------------------------------------------------


class RecordHeader(Struct, forbid_unknown_fields=True):
    """`value`: in base64, or null."""

    name: str
    value: str | None = None


class NewRecord(Struct, forbid_unknown_fields=True):
    """A record to produce. `key`, `value`: as the formats of the request say; null is a null. `timestamp`: ms
    since 1970, now if it is missing. `partition`: chosen by the key if it is missing."""

    key: Raw = field(default_factory=_null)
    value: Raw = field(default_factory=_null)
    partition: PartitionNumber | None = None
    timestamp: TimestampMs | None = None
    headers: list[RecordHeader] = []


class SchemaOf(Struct, forbid_unknown_fields=True):
    """Schema of AVRO keys or values: an id, a version of a subject, or the text, which is registered."""

    schema_id: int | None = None
    subject: str | None = None
    schema_version: int | None = None
    schema: str | None = None


class ProduceRequest(Struct, forbid_unknown_fields=True):
    records: list[NewRecord]
    key_format: str = "STRING"
    value_format: str = "JSON"
    key_schema: SchemaOf | None = None
    value_schema: SchemaOf | None = None


class Produced(Struct, omit_defaults=True):
    """One record that was written, or why it was not."""

    partition: int | None = None
    offset: int | None = None
    timestamp: int | None = None
    error_code: int | None = None
    message: str | None = None


class ProduceResponse(Struct):
    """In the order of the request's records."""

    records: list[Produced]
    failed: int


class ConsumedHeader(Struct):
    name: str
    value: str | None


class ConsumedRecord(Struct, omit_defaults=True):
    """A line of a stream. `key_error`, `value_error`: why it is not in the requested format; `key` or `value`
    is base64 then."""

    partition: int
    offset: int
    timestamp: int
    key: Raw
    value: Raw
    headers: list[ConsumedHeader] = []
    key_error: str | None = None
    value_error: str | None = None


class StreamEnd(Struct):
    """Last line of a stream that ends well. `next_offsets`: by partition, where to continue. `reason`: end,
    max_records, max_bytes, timeout or stopping. `without_end`: partitions that are missing in the stream,
    because their leaders do not know their ends after an election; `message` says what to do."""

    reason: str
    records: int
    next_offsets: dict[str, int]
    without_end: list[int] | UnsetType = UNSET
    message: str | UnsetType = UNSET


# ---- /v3: clusters and brokers ----------------------------------------------------------------------


class ListOf(Struct):
    """A list of resources. The fields of `data` are those of the resource."""

    kind: str
    metadata: Metadata
    data: list[Any]


class Cluster(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    controller: Related | None
    acls: Related
    brokers: Related
    broker_configs: Related
    consumer_groups: Related
    topics: Related
    partition_reassignments: Related


class Broker(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    broker_id: int
    host: str
    port: int
    rack: str | None
    configs: Related
    partition_replicas: Related


# ---- /v3: topics -----------------------------------------------------------------------------------


class Topic(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Related
    configs: Related
    partition_reassignments: Related
    authorized_operations: list[str] = []


class ConfigEntry(Struct):
    name: str
    value: str | None = None


class CreateTopic(Struct):
    topic_name: str
    partitions_count: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    replication_factor: Annotated[int, Meta(ge=1, le=2**15 - 1)] | None = None
    configs: list[ConfigEntry] = []
    validate_only: bool = False


class ChangeTopic(Struct):
    """`partitions_count`: in total."""

    partitions_count: Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Partition(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    partition_id: int
    leader: Related | None
    replicas: Related
    reassignment: Related


class Synonym(Struct):
    name: str
    value: str | None
    source: str


class TopicConfig(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    synonyms: list[Synonym]


class SetConfig(Struct):
    value: str | None


class AlterEntry(Struct):
    """`operation`: SET or DELETE, which restores the default."""

    name: str
    value: str | None = None
    operation: str | None = None


class AlterConfigs(Struct):
    data: list[AlterEntry]
    validate_only: bool = False


# ---- /v3: records ----------------------------------------------------------------------------------


class RecordData(Struct):
    """`type`: JSON, STRING, BINARY or AVRO. Without a type the data is AVRO if a schema is named, else
    JSON. `schema_id`, `schema_version`, `subject`, `schema`: the schema of AVRO data."""

    type: str | None = None
    data: Raw = field(default_factory=_null)
    schema_id: int | None = None
    schema_version: int | None = None
    subject: str | None = None
    schema: str | None = None
    subject_name_strategy: str | None = None


class V3Record(Struct):
    """`timestamp`: RFC 3339, or ms since 1970."""

    partition_id: PartitionNumber | None = None
    key: RecordData | None = None
    value: RecordData | None = None
    headers: list[RecordHeader] = []
    timestamp: str | TimestampMs | None = None


class WrittenData(Struct):
    type: str
    size: int


class V3Written(Struct, omit_defaults=True):
    """`error_code`: 200 for a record that was written."""

    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int | None
    timestamp: str
    key: WrittenData | None = None
    value: WrittenData | None = None


# ---- /v3: groups -----------------------------------------------------------------------------------


class ConsumerGroup(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: str
    type: str
    coordinator: Related
    consumers: Related
    lag_summary: Related


class Consumer(Struct):
    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Related


class LagSummary(Struct):
    """`message`: which partitions are missing in it, because their ends are not known, and what to do."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: Related
    max_lag_partition: Related
    message: str | UnsetType = UNSET


class Lag(Struct):
    """`log_end_offset`, `lag`: null if the leader does not know the end after an election; `message` says
    what to do."""

    kind: str
    metadata: Metadata
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: int
    consumer_id: str
    instance_id: str | None
    client_id: str
    current_offset: int
    log_end_offset: int | None
    lag: int | None
    message: str | UnsetType = UNSET


encode = msgspec.json.Encoder().encode
