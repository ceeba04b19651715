"""Formats of keys and values: JSON, STRING, BINARY (base64) and AVRO, from and to the bytes of a record.

JSON keeps the text of the client, without the white space between its tokens: numbers of any size stay what
they are, and equal documents have equal bytes as far as the client wrote them so. An Avro value has the frame
of the schema registry, and is in JSON what Avro's specification calls JSON encoding.
"""

import asyncio
import base64
import io
import json
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from tierlog.client import registry
from tierlog.client.registry import RegistryAddress, RegistryError
from tierlog.rest.errors import BAD_REQUEST, NO_SCHEMA, REGISTRY_FAILED, RestError

FRAME = struct.Struct(">bi")
NULL = msgspec.Raw(b"null")
SCHEMAS_MAX = 256
DEPTH_MAX = 64
REGISTRY_CALLS_MAX = 16
"""Requests to the registry at a time, each in a thread. Logins need the threads of the event loop, which a
registry that hangs must not hold."""

_STATUS_NOT_FOUND = 404


class Format(Enum):
    JSON = "JSON"
    STRING = "STRING"
    BINARY = "BINARY"
    AVRO = "AVRO"


FORMATS = ", ".join(one.value for one in Format)


class Unreadable(Exception):
    """The bytes of a record are not in the format that the client asks for."""


def format_of(text: str, name: str) -> Format:
    """Raises RestError. `name`: of the parameter or field."""
    try:
        return Format(text.upper())
    except ValueError:
        raise RestError(BAD_REQUEST, f"{name}: {text!r} is not one of {FORMATS}") from None


class SchemaChoice(msgspec.Struct, frozen=True):
    """The schema of an Avro value to write: by its id, by a version of a subject, or as text, which is
    registered. Without any of them the newest version of the subject. `subject`: default `TOPIC-key` or
    `TOPIC-value`."""

    schema_id: int | None = None
    subject: str | None = None
    version: int | None = None
    text: str | None = None


class Values:
    """Encodes and decodes. `address`: of the schema registry; None: AVRO is refused."""

    def __init__(self, address: RegistryAddress | None) -> None:
        self._address = address
        self._threads = ThreadPoolExecutor(REGISTRY_CALLS_MAX, "registry")
        self._written: dict[SchemaChoice, tuple[int, str]] = {}

    async def encoded(self, kind: Format, data: msgspec.Raw, choice: SchemaChoice, name: str) -> bytes | None:
        """Bytes of a key or value; null is None. Raises RestError. `name`: of the field, for its message."""
        if _is_null(data) and kind is not Format.AVRO:
            return None
        if kind is Format.JSON:
            return _as_record(data, name)
        if kind is not Format.AVRO:
            return _from_text(kind, data, name)
        if _is_null(data) and choice == SchemaChoice(subject=choice.subject):
            return None  # a tombstone
        schema_id, text = await self._schema_to_write(choice)
        try:
            return FRAME.pack(0, schema_id) + _avro_encoded(text, minified(data).decode())
        except RestError:
            raise
        except Exception as wrong:  # fastavro raises whatever a wrong type leads to
            raise RestError(
                BAD_REQUEST, f"{name}: the data does not follow the Avro schema {schema_id}: {wrong}"
            ) from None

    async def decoder(self, kind: Format, samples: "list[bytes]") -> "Decoder":
        """Decodes values of a format. For AVRO it first learns the schemas of these values. Raises RestError
        if there is no registry, or it does not respond."""
        if kind is not Format.AVRO:
            return _DECODERS[kind]
        address = self._required()
        schemas: dict[int, str | None] = {}
        for schema_id in {found for value in samples if (found := _schema_id(value)) is not None}:
            try:
                schemas[schema_id] = await self._call(registry.schema_of_id, address, schema_id)
            except RestError as failure:
                if failure.code != NO_SCHEMA:
                    raise
                schemas[schema_id] = None
        return lambda value: _avro_decoded(value, schemas)

    async def _schema_to_write(self, choice: SchemaChoice) -> tuple[int, str]:
        """Id and text of the schema. The newest version of a subject is asked for each time."""
        address = self._required()
        is_fixed = choice.version is not None or choice.text is not None
        if is_fixed and choice in self._written:
            return self._written[choice]
        subject = choice.subject or ""
        if choice.schema_id is not None:
            text = await self._call(registry.schema_of_id, address, choice.schema_id)
            return choice.schema_id, text
        if choice.text is not None:
            _parsed(choice.text)
            number = await self._call(registry.register, address, subject, choice.text)
            found = number, choice.text
        else:
            found = await self._call(registry.version_of, address, subject, choice.version)
        if is_fixed:
            if len(self._written) >= SCHEMAS_MAX:
                self._written.clear()
            self._written[choice] = found
        return found

    def _required(self) -> RegistryAddress:
        if self._address is None:
            raise RestError(BAD_REQUEST, "AVRO needs a schema registry: start the gateway with --registry")
        return self._address

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, function, *arguments)
        except RegistryError as failure:
            if failure.status == _STATUS_NOT_FOUND:
                raise RestError(NO_SCHEMA, str(failure)) from None
            if 400 <= failure.status < 500:
                raise RestError(BAD_REQUEST, str(failure)) from None
            raise RestError(REGISTRY_FAILED, str(failure)) from None


Decoder: TypeAlias = Callable[[bytes], msgspec.Raw]
"""JSON text of a value. Raises Unreadable."""


def minified(data: msgspec.Raw) -> bytes:
    """JSON without the white space between its tokens. Raises msgspec.DecodeError, and RecursionError for one
    that is too deep."""
    return msgspec.json.format(bytes(data), indent=-1)


def _as_record(data: msgspec.Raw, name: str) -> bytes:
    try:
        return minified(data)
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise RestError(BAD_REQUEST, f"{name}: {wrong}") from None


def _is_null(data: msgspec.Raw) -> bool:
    return bytes(data) in (b"null", b"")


def _from_text(kind: Format, data: msgspec.Raw, name: str) -> bytes:
    try:
        text = msgspec.json.decode(data, type=str)
        return text.encode() if kind is Format.STRING else from_base64(text, name)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise RestError(BAD_REQUEST, f"{name}: {kind.value} data is a string of JSON or null") from None


def from_base64(text: str, name: str) -> bytes:
    """Raises RestError. `name`: of the field, for its message."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as wrong:
        raise RestError(BAD_REQUEST, f"{name}: not base64: {wrong}") from None


def _json_decoded(value: bytes) -> msgspec.Raw:
    try:
        value.decode()
        return msgspec.Raw(minified(msgspec.Raw(value)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreadable("not JSON") from None


def _string_decoded(value: bytes) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value.decode()))
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8") from None


def _binary_decoded(value: bytes) -> msgspec.Raw:
    return msgspec.Raw(b'"' + base64.b64encode(value) + b'"')


_DECODERS: Mapping[Format, Decoder] = {
    Format.JSON: _json_decoded,
    Format.STRING: _string_decoded,
    Format.BINARY: _binary_decoded,
}


# ---- Avro ------------------------------------------------------------------------------------------


def _schema_id(value: bytes) -> int | None:
    if len(value) < FRAME.size:
        return None
    magic, schema_id = FRAME.unpack_from(value)
    return schema_id if magic == 0 else None


def _avro_decoded(value: bytes, schemas: Mapping[int, str | None]) -> msgspec.Raw:
    schema_id = _schema_id(value)
    if schema_id is None:
        raise Unreadable("no frame of a schema registry")
    text = schemas.get(schema_id)
    if text is None:
        raise Unreadable(f"the registry has no schema {schema_id}")
    import fastavro

    schema, body, written = _parsed(text), io.BytesIO(value), io.StringIO()
    body.seek(FRAME.size)
    try:
        found = fastavro.schemaless_reader(body, schema, None)
        fastavro.json_writer(written, schema, [found])
        return msgspec.Raw(written.getvalue().encode())
    except Exception as wrong:  # fastavro raises whatever broken bytes lead to
        raise Unreadable(f"does not follow the Avro schema {schema_id}: {wrong}") from None


def _avro_encoded(text: str, data: str) -> bytes:
    import fastavro

    schema, out = _parsed(text), io.BytesIO()
    (value,) = fastavro.json_reader(io.StringIO(data), schema)
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


@lru_cache(SCHEMAS_MAX)
def _parsed(text: str) -> Any:
    """Raises RestError."""
    try:
        import fastavro
    except ImportError:
        raise RestError(BAD_REQUEST, "AVRO needs fastavro: pip install 'tierlog[rest]'") from None
    try:
        document = json.loads(text)
        _check_schema(document, {})
        return fastavro.parse_schema(document)
    except RestError:
        raise
    except Exception as wrong:
        raise RestError(BAD_REQUEST, f"not an Avro schema: {wrong}") from None


def _check_schema(schema: Any, names: dict[str, bool | None], depth: int = 0) -> bool:
    """Whether values of the type may have no bytes. Raises RestError for an array of those, since a value of
    few bytes could have any number of items, and for a type that contains itself, since the depth of its
    values has no bound. `names`: last parts of the names of types so far, and whether they may be empty; None
    within the type."""
    if depth > DEPTH_MAX:
        raise RestError(BAD_REQUEST, f"the Avro schema is more than {DEPTH_MAX} levels deep")
    if isinstance(schema, list):
        for branch in schema:
            _check_schema(branch, names, depth + 1)
        return False  # the number of the branch is a byte
    if not isinstance(schema, dict):
        last = str(schema).rpartition(".")[2]
        if names.get(last) is None and last in names:
            raise RestError(BAD_REQUEST, f"the Avro type {schema} contains itself, which is not supported")
        return schema == "null" or bool(names.get(last))
    kind, name = schema["type"], str(schema.get("name", "")).rpartition(".")[2]
    match kind:
        case "array":
            if _check_schema(schema["items"], names, depth + 1):
                raise RestError(BAD_REQUEST, "an Avro array whose items have no bytes is not supported")
            return False
        case "map":
            _check_schema(schema["values"], names, depth + 1)
            return False
        case "record" | "error":
            before, names[name] = bool(names.get(name)), None
            sizes = [_check_schema(one["type"], names, depth + 1) for one in schema["fields"]]
            names[name] = before or all(sizes)
            return all(sizes)
        case "fixed":
            names[name] = bool(names.get(name)) or not schema["size"]
            return not schema["size"]
        case "enum":
            return False
    return _check_schema(kind, names, depth + 1)
