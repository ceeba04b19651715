"""Client of a schema registry: the REST API that Confluent's registry, Karapace and Apicurio share.

A framed value begins with a zero byte and the id of its schema in four bytes, big-endian. Schemas of an id
never change, so that each process asks for an id once. Used by the Spark data source and the REST gateway.
"""

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote

TIMEOUT_S = 30.0
TRIES = 4
PAUSE_S = 0.5
SCHEMAS_MAX = 1024
NOT_FOUND, TOO_MANY, SERVER_ERRORS = 404, 429, 500
MEDIA = "application/vnd.schemaregistry.v1+json, application/json"
MEDIA_SENT = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """`user`: USER:PASSWORD of basic authentication."""

    url: str
    user: str | None = field(default=None, repr=False)


class RegistryError(RuntimeError):
    """The registry does not respond, or not with a schema. `status`: of HTTP; 0 without a response."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@lru_cache(SCHEMAS_MAX)
def schema_of_id(address: RegistryAddress, schema_id: int) -> str:
    """Text of a schema. Raises RegistryError."""
    return str(_get(address, f"/schemas/ids/{schema_id}")["schema"])


def descriptors_of_id(address: RegistryAddress, schema_id: int) -> bytes:
    """FileDescriptorProto of a Protobuf schema. Raises RegistryError."""
    return _descriptors(_get(address, f"/schemas/ids/{schema_id}?format=serialized"))


def latest_descriptors_of(address: RegistryAddress, subject: str) -> bytes:
    """FileDescriptorProto of the newest schema of a subject. Raises RegistryError."""
    path = f"/subjects/{quote(subject, safe='')}/versions/latest?format=serialized"
    return _descriptors(_get(address, path))


def latest_of(address: RegistryAddress, subject: str) -> str:
    """Text of the newest schema of a subject. Raises RegistryError."""
    return str(_get(address, f"/subjects/{quote(subject, safe='')}/versions/latest")["schema"])


def version_of(address: RegistryAddress, subject: str, version: int | None) -> tuple[int, str]:
    """Id and text of a schema of a subject; the newest one without a version. Raises RegistryError."""
    wanted = "latest" if version is None else version
    document = _get(address, f"/subjects/{quote(subject, safe='')}/versions/{wanted}")
    return int(document["id"]), str(document["schema"])


def register(address: RegistryAddress, subject: str, schema: str, kind: str = "AVRO") -> int:
    """Add a schema to a subject, unless it has the schema. `kind`: AVRO, PROTOBUF or JSON. Returns its id.
    Raises RegistryError."""
    path = f"/subjects/{quote(subject, safe='')}/versions"
    body = {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
    return int(_request(address, path, body, "id")["id"])


def _descriptors(document: dict[str, Any]) -> bytes:
    try:
        return base64.b64decode(document["schema"], validate=True)
    except ValueError:
        raise RegistryError(
            "the registry has Protobuf schemas as text only: set `value.schema` to a descriptor set"
        ) from None


def _get(address: RegistryAddress, path: str) -> dict[str, Any]:
    return _request(address, path, None, "schema")


def _request(address: RegistryAddress, path: str, body: dict[str, str] | None, needed: str) -> dict[str, Any]:
    """The response, which has the needed field. POST with a body."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": MEDIA} if data is None else {"Accept": MEDIA, "Content-Type": MEDIA_SENT}
    request = urllib.request.Request(address.url + path, data, headers)
    if address.user is not None:
        encoded = base64.b64encode(address.user.encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    for attempt in range(1, TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                document: dict[str, Any] = json.loads(response.read())
            if needed not in document:
                raise RegistryError(f"{address.url}{path}: the response has no {needed}")
            return document
        except urllib.error.HTTPError as error:
            is_final = error.code != TOO_MANY and error.code < SERVER_ERRORS
            failure: Exception = RegistryError(
                f"{address.url}{path}: {error.code} {_message(error)}", error.code
            )
            if is_final or attempt == TRIES:
                raise failure from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if attempt == TRIES:
                raise RegistryError(f"{address.url}{path}: {error}") from None
        time.sleep(PAUSE_S * attempt)
    raise RegistryError(f"{address.url}{path}: no response")


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.loads(error.read()).get("message", error.reason))
    except (ValueError, AttributeError, OSError):
        return str(error.reason)
