"""Options of `df.write.format("tierlog")` and `df.writeStream.format("tierlog")`.

Options that begin with `kafka.` have the names of Kafka's producer. Those that would weaken what a write
guarantees are refused, as are unknown ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tierlog.records.codecs import Codec
from tierlog.spark.options.security import SecurityOptions, security_options
from tierlog.spark.options.table import KAFKA, SECURITY_NAMES, Given, InvalidOption, Use, check_bootstrap

CODECS = {codec.name.lower(): codec for codec in Codec}
OPTIONS_OF_SPARK = ("checkpointlocation", "queryname")
"""Options of any streaming query, which Spark passes on."""

DEFAULT_BATCH_BYTES = 512 * 1024  # well below the default of max.message.bytes (1 MiB)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    bootstrap: str
    topic: str | None
    codec: Codec
    batch_bytes: int
    buffer_bytes: int
    request_timeout_s: float
    delivery_timeout_s: float
    client_id: str
    transactional: bool
    transaction_timeout_ms: int
    security: SecurityOptions = field(default=(), repr=False)


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse and validate Spark's options, whose names are case-insensitive. Raises InvalidOption."""
    kafka = {
        name.lower().removeprefix(KAFKA): value
        for name, value in given.items()
        if name.lower().startswith(KAFKA)
    }
    others = {
        name: value
        for name, value in given.items()
        if not name.lower().startswith(KAFKA) and name.lower() not in OPTIONS_OF_SPARK
    }
    options = Given(others, Use.WRITE)
    if unknown := sorted(kafka.keys() - _KAFKA_NAMES - SECURITY_NAMES):
        names = ", ".join(sorted(KAFKA + name for name in _KAFKA_NAMES | SECURITY_NAMES))
        raise InvalidOption(f"`{KAFKA}{unknown[0]}` is not supported by writes; supported are {names}")
    bootstrap = kafka.get("bootstrap.servers", "").strip()
    if not bootstrap:
        raise InvalidOption("option `kafka.bootstrap.servers` is required: HOST:PORT, separated by commas")
    check_bootstrap(bootstrap)
    _require(kafka, "acks", ("all", "-1"), "a write is acknowledged by all in-sync replicas")
    _require(kafka, "enable.idempotence", ("true",), "retries must not write a record twice")
    return WriteOptions(
        bootstrap=bootstrap,
        topic=options.text("topic"),
        codec=_codec(options.text("compression"), kafka.get("compression.type")),
        batch_bytes=_number(kafka, "batch.size", DEFAULT_BATCH_BYTES),
        buffer_bytes=_number(kafka, "buffer.memory", 32 << 20),
        request_timeout_s=_number(kafka, "request.timeout.ms", 30_000) / 1_000,
        delivery_timeout_s=_number(kafka, "delivery.timeout.ms", 120_000) / 1_000,
        client_id=kafka.get("client.id", "tierlog-spark"),
        transactional=options.boolean("transactional", False),
        transaction_timeout_ms=_number(kafka, "transaction.timeout.ms", 900_000),
        security=security_options(kafka),
    )


_KAFKA_NAMES = {
    "acks",
    "batch.size",
    "bootstrap.servers",
    "buffer.memory",
    "client.id",
    "compression.type",
    "delivery.timeout.ms",
    "enable.idempotence",
    "request.timeout.ms",
    "transaction.timeout.ms",
}


def _require(kafka: Mapping[str, str], name: str, values: tuple[str, ...], reason: str) -> None:
    value = kafka.get(name, values[0]).strip().lower()
    if value not in values:
        raise InvalidOption(f"`{KAFKA}{name}` must be {values[0]}, not {value!r}: {reason}")


def _codec(short: str | None, long: str | None) -> Codec:
    if short is not None and long is not None:
        raise InvalidOption("set either `compression` or `kafka.compression.type`")
    name = (short or long or "none").strip().lower()
    if name not in CODECS:
        given = "compression" if short is not None else f"{KAFKA}compression.type"
        raise InvalidOption(f"`{given}` must be one of {', '.join(CODECS)}, not {name!r}")
    return CODECS[name]


def _number(kafka: Mapping[str, str], name: str, default: int) -> int:
    text = kafka.get(name, str(default)).strip()
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise InvalidOption(f"`{KAFKA}{name}` must be a positive number below 2^31, not {text!r}")
    return int(text)
