"""`tierlog produce`: sends each line of a file or of standard input as a record."""

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tierlog.cli.options import INT32_MAX, Bootstrap, ClientConfig, Json, Topic, parse_pairs
from tierlog.cli.output import counted, print_outcome, size


class Compression(StrEnum):
    """Codecs, named as in Kafka's compression.type."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Topic,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            exists=True,
            dir_okay=False,
            help="Read lines from this file instead of standard input.",
        ),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", help="Split each line at this text into key and value."),
    ] = None,
    null_marker: Annotated[
        str | None,
        typer.Option(
            "--null-marker",
            metavar="TEXT",
            help="Send a null value (a tombstone) for lines whose value is exactly this text; '' means an "
            "empty value. Default: never send null.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, max=INT32_MAX, help="Send all records to this partition."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", help="Add a header to each record. May be repeated."
        ),
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression of the batches.")
    ] = Compression.NONE,
    as_json: Json = False,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Send one record per line, with acks=all and an idempotent producer."""
    from tierlog.base.clock import SystemClock
    from tierlog.cli.client import KafkaClient
    from tierlog.cli.producing import Producer
    from tierlog.records.codecs import Codec
    from tierlog.records.writer import NewRecord

    clock = SystemClock()
    headers = tuple(
        (key, value.encode()) for key, value in parse_pairs(header, "--header", "--header source=web").items()
    )
    with (
        nullcontext(sys.stdin.buffer) if file is None else file.open("rb") as lines,
        KafkaClient(bootstrap, changes=True) as client,
    ):
        producer = Producer(client, topic, codec=Codec[compression.name], partition=partition)
        for line in lines:
            key, value = split_line(line, key_separator, null_marker)
            producer.send(NewRecord(clock.now_ms(), key, value, headers))
        producer.flush()
    message = f"{counted(producer.records, 'record')} ({size(producer.bytes)}) written to {topic}"
    document = {"topic": topic, "records": producer.records, "bytes": producer.bytes}
    print_outcome(message, document, as_json=as_json)


def split_line(
    line: bytes, separator: str | None, null_marker: str | None = None
) -> tuple[bytes | None, bytes | None]:
    """(key, value) of a line. The key is None without a separator, the value if it is the null marker
    (KIP-810)."""
    key, value = None, line.rstrip(b"\r\n")
    if separator:
        before, found, after = value.partition(separator.encode())
        key, value = (before, after) if found else (None, value)
    return key, None if null_marker is not None and value == null_marker.encode() else value
