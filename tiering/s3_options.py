"""Address and settings of an S3 bucket: an s3:// URL and its parameters. Used by brokers, tools and Spark."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from tierlog.tiering.object_store import InvalidStoreUrl

_BUCKET = r"[A-Za-z0-9._-]{1,255}"  # as in botocore; S3-compatible servers have different rules
_ENDPOINT = r"https?://[^/?#\s]+/?"
_ENCRYPTION = ("AES256", "aws:kms", "aws:kms:dsse")
_TAGS_MAX = 10  # S3's limit


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """A bucket, and how to use it. Credentials come from the AWS chain (environment, web identity, profile,
    container or instance role), unless keys are given."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None  # None: AWS_REGION, AWS_DEFAULT_REGION or the profile's, else us-east-1
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    profile: str | None = None
    path_style: bool | None = None  # None: true if `endpoint` is set
    sse: str | None = None
    sse_kms_key: str | None = None
    storage_class: str | None = None
    tags: str | None = None
    ca_bundle: str | None = None
    connect_timeout_ms: int = 5_000
    read_timeout_ms: int = 30_000
    attempts: int = 3
    connections: int = 32

    @classmethod
    def from_url(cls, url: str, **options: str) -> "S3Options":
        """`s3://bucket/prefix?endpoint=…&region=…`, with a percent-encoded prefix and any of PARAMETERS.
        `options`: fields that a URL must not hold, such as access_key and secret_key; they replace those of
        the URL. Raises InvalidStoreUrl for unknown or invalid parts."""
        parts = urlsplit(url)
        try:
            pairs = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise InvalidStoreUrl(f"{url!r}: invalid query, expected key=value") from None
        if empty := sorted(name for name, values in pairs.items() if not all(values)):
            raise InvalidStoreUrl(f"{url!r}: {', '.join(empty)} has no value: give one, or leave it out")
        query = {name: values[-1] for name, values in pairs.items()}
        if unknown := sorted(query.keys() - PARAMETERS.keys()):
            raise InvalidStoreUrl(
                f"unknown parameter {', '.join(unknown)} in an s3:// URL; allowed: {', '.join(PARAMETERS)}"
            )
        if not re.fullmatch(_BUCKET, parts.netloc):
            raise InvalidStoreUrl(f"invalid bucket name {parts.netloc!r}")
        given: dict[str, Any] = {name: _parsed(name, value) for name, value in query.items()}
        if "sse_kms_key" in given and not given.get("sse", "").startswith("aws:kms"):
            raise InvalidStoreUrl("sse_kms_key needs sse=aws:kms or sse=aws:kms:dsse")
        return cls(bucket=parts.netloc, prefix=unquote(parts.path).strip("/"), **{**given, **options})

    @property
    def addressing_style(self) -> str:
        """botocore's: path (endpoint/bucket/key), virtual (bucket.endpoint/key) or auto."""
        if self.path_style is None:
            return "path" if self.endpoint else "auto"
        return "path" if self.path_style else "virtual"

    @property
    def new_object_arguments(self) -> dict[str, Any]:
        """Arguments of PutObject and CreateMultipartUpload."""
        given = {
            "ServerSideEncryption": self.sse,
            "SSEKMSKeyId": self.sse_kms_key,
            "StorageClass": self.storage_class,
            "Tagging": self.tags,
        }
        return {name: value for name, value in given.items() if value is not None}


PARAMETERS = {
    "endpoint": "URL of an S3-compatible server, as http://host:port or https://host:port. Default: AWS.",
    "region": "Region of the bucket. Default: that of the environment or the profile, else us-east-1.",
    "path_style": "true: the bucket is in the path of requests; false: in the host name. Default: true with "
    "an endpoint.",
    "profile": "Profile of the AWS configuration files.",
    "sse": "Server-side encryption: AES256 (SSE-S3), aws:kms or aws:kms:dsse. Default: the bucket's.",
    "sse_kms_key": "Id or ARN of the KMS key. Default: the account's key of S3.",
    "storage_class": "Storage class of new objects, which must be readable at once: STANDARD_IA, GLACIER_IR, "
    "INTELLIGENT_TIERING. Default: STANDARD.",
    "tags": "Tags of new objects, percent-encoded: team%3Dlogs%26tier%3Dcold. Ten at most.",
    "ca_bundle": "PEM file of the CAs of an https:// endpoint. Default: AWS_CA_BUNDLE, else botocore's.",
    "connect_timeout_ms": "Time to connect, in milliseconds. Default: 5000.",
    "read_timeout_ms": "Time without a byte after which a request fails, in milliseconds. Default: 30000.",
    "attempts": "Requests of one call, with backoff between them, within the call's total time. Default: 3.",
    "connections": "Maximum number of connections, and of threads that use them. Default: 32.",
}
"""The parameters of an s3:// URL."""

_NUMBERS = {
    "connect_timeout_ms": range(1, 600_001),
    "read_timeout_ms": range(1, 600_001),
    "attempts": range(1, 21),
    "connections": range(1, 1025),
}


def _parsed(name: str, value: str) -> str | bool | int:
    if name in _NUMBERS:
        allowed = _NUMBERS[name]
        if not value.isdecimal() or int(value) not in allowed:
            limits = f"a number from {allowed[0]} to {allowed[-1]}"
            raise InvalidStoreUrl(f"invalid {name} {value!r}: expected {limits}")
        return int(value)
    if name == "path_style":
        if value not in ("true", "false"):
            raise InvalidStoreUrl(f"invalid path_style {value!r}: expected true or false")
        return value == "true"
    if name == "endpoint" and not re.fullmatch(_ENDPOINT, value):
        raise InvalidStoreUrl(f"invalid endpoint {value!r}: expected http://host:port or https://host:port")
    if name == "sse" and value not in _ENCRYPTION:
        raise InvalidStoreUrl(f"invalid sse {value!r}: expected {', '.join(_ENCRYPTION)}")
    if name == "tags":
        _check_tags(value)
    return value


def _check_tags(value: str) -> None:
    try:
        tags = parse_qsl(value, keep_blank_values=True, strict_parsing=True)
    except ValueError:
        tags = []
    if not 0 < len(tags) <= _TAGS_MAX:
        raise InvalidStoreUrl(f"invalid tags {value!r}: expected 1 to {_TAGS_MAX}, as name=value&name=value")
