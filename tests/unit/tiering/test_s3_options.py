"""Parameters of s3:// URLs, and the requests that they lead to."""

from types import SimpleNamespace
from typing import Any

import pytest

from tierlog import __version__
from tierlog.tiering.http_connections import Response
from tierlog.tiering.s3_client import S3Client
from tierlog.tiering.s3_options import PARAMETERS, S3Options

KEYS = {"access_key": "key", "secret_key": "secret"}


def test_parameters_are_the_fields_of_the_options() -> None:
    fields = set(S3Options.__slots__)  # type: ignore[attr-defined]
    assert fields - PARAMETERS.keys() == {"bucket", "prefix", "access_key", "secret_key", "session_token"}
    assert PARAMETERS.keys() < fields


def test_all_parameters_are_read() -> None:
    options = S3Options.from_url(
        "s3://b/a%20b?endpoint=https://host:1&region=eu-west-1&path_style=false&profile=p&sse=aws:kms&sse_kms_key=k"
        "&storage_class=STANDARD_IA&tags=team%3Dlogs%26tier%3Dcold&ca_bundle=/ca.pem&connect_timeout_ms=1"
        "&read_timeout_ms=2&attempts=4&connections=5"
    )
    assert options == S3Options(
        bucket="b",
        prefix="a b",
        endpoint="https://host:1",
        region="eu-west-1",
        profile="p",
        path_style=False,
        sse="aws:kms",
        sse_kms_key="k",
        storage_class="STANDARD_IA",
        tags="team=logs&tier=cold",
        ca_bundle="/ca.pem",
        connect_timeout_ms=1,
        read_timeout_ms=2,
        attempts=4,
        connections=5,
    )


def request_of(url: str) -> tuple[str, dict[str, str]]:
    """URL and headers of the PutObject request that botocore builds."""
    options = S3Options.from_url(url, **KEYS)
    client = S3Client(options, SimpleNamespace(transfer=None))  # type: ignore[arg-type]
    seen: list[Any] = []

    def request(*sent: Any) -> Response:
        seen.append(sent)
        return Response(200, {"ETag": '"e"'}, b"")

    client._connections = SimpleNamespace(request=request, close=lambda: None)  # type: ignore[assignment]
    client.api.put_object(
        Bucket=options.bucket, Key="k", Body=b"x", ChecksumCRC32C="AAAAAA==", **options.new_object_arguments
    )
    client.close()
    _, _, address, headers, _ = seen[0]
    return address, {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://logs?region=eu-west-1", "https://logs.s3.eu-west-1.amazonaws.com/k"),
        ("s3://logs?region=eu-west-1&path_style=true", "https://s3.eu-west-1.amazonaws.com/logs/k"),
        ("s3://logs?endpoint=http://h:1", "http://h:1/logs/k"),
        ("s3://logs?endpoint=http://h:1&path_style=false", "http://logs.h:1/k"),
    ],
)
def test_bucket_is_in_the_path_or_in_the_host_name(url: str, expected: str) -> None:
    assert request_of(url)[0] == expected


def test_objects_are_encrypted_tagged_and_of_a_class() -> None:
    _, headers = request_of("s3://logs?sse=aws:kms&sse_kms_key=id&storage_class=GLACIER_IR&tags=a%3Db")
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "id"
    assert headers["x-amz-storage-class"] == "GLACIER_IR"
    assert headers["x-amz-tagging"] == "a=b"


def test_bodies_have_a_signed_checksum_in_place_of_a_sha256() -> None:
    _, headers = request_of("s3://logs?endpoint=http://h:1")
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "x-amz-checksum-crc32c" in headers["authorization"]


def test_requests_name_tierlog() -> None:
    _, headers = request_of("s3://logs")
    assert headers["user-agent"] == f"tierlog/{__version__}"


def test_region_comes_from_the_environment_unless_the_url_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert "eu-north-1" in request_of("s3://logs")[0]
    assert "eu-west-1" in request_of("s3://logs?region=eu-west-1")[0]
