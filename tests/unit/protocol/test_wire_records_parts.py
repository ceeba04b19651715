"""A response whose records are slices of a log: the bytes of copied records, without the copy."""

import os
from pathlib import Path

import pytest

from tierlog.base.files import FileSlice, OsFiles, Part
from tierlog.base.open_files import SharedFile
from tierlog.base.slices import LogSlice, empty_slice
from tierlog.protocol.api import APIS, encode_response
from tierlog.protocol.codec import decode, encode, encode_parts
from tierlog.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    NodeEndpoint,
    PartitionData,
)
from tierlog.protocol.schema import Records


def response(records: list[Records | None]) -> FetchResponse:
    partitions = [
        PartitionData(partition_index=number, high_watermark=9, aborted_transactions=None, records=each)
        for number, each in enumerate(records)
    ]
    partitions[0].aborted_transactions = [AbortedTransaction(producer_id=1, first_offset=2)]
    partitions[1].diverging_epoch = EpochEndOffset(epoch=3, end_offset=4)
    return FetchResponse(
        responses=[
            FetchableTopicResponse(topic="t", partitions=partitions),
            FetchableTopicResponse(topic="u"),
        ],
        node_endpoints=[NodeEndpoint(node_id=1, host="h", port=2)],
    )


def joined(parts: list[Part]) -> bytes:
    return b"".join(part.read() if isinstance(part, FileSlice) else bytes(part) for part in parts)


@pytest.mark.parametrize("version", range(4, 19))
def test_slices_pass_through(version: int, tmp_path: Path) -> None:
    content = os.urandom(50_000)
    (tmp_path / "segment").write_bytes(content)
    file = SharedFile(OsFiles(), tmp_path / "segment")
    hot = FileSlice(file, 100, 40_000)
    cached = memoryview(content)[:9000]
    slices: list[Records | None] = [
        LogSlice((hot,), 40_000, 0, 10),
        LogSlice((cached, b"small", FileSlice(file, 0, 5)), 9010, 0, 10),
        empty_slice(4),
        b"plain",
        None,
    ]
    copied = [content[100:40_100], content[:9000] + b"small" + content[:5], b"", b"plain", None]
    parts = encode_parts(response(slices), version)
    assert joined(parts) == encode(response(copied), version)  # type: ignore[arg-type]
    assert any(part is hot for part in parts)
    assert any(part is cached for part in parts)
    frame = joined(encode_response(APIS[1], version, 7, response(slices)))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    decoded = decode(FetchResponse, version, joined(parts))
    assert decoded.responses[0].partitions[0].records == copied[0]


def test_slices_of_files_cannot_become_bytes(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(b"x")
    file = SharedFile(OsFiles(), tmp_path / "segment")
    with pytest.raises(ValueError, match="slices of files"):
        encode(response([LogSlice((FileSlice(file, 0, 1),), 1, 0, 1), None]), 4)
