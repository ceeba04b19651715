"""Options of the format of values: `value.format`, `value.schema` and those of the schema registry."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.spark.options.table import Given, InvalidOption

if TYPE_CHECKING:
    from tierlog.client.registry import RegistryAddress


class ValueFormat(Enum):
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Malformed(Enum):
    """The effect of a value that cannot be decoded."""

    FAIL = "fail"
    NULL = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueOptions:
    """`schema`: of the column; empty until `tierlog.spark.values.resolved` has asked the registry. With a
    registry, each value begins with the id of its schema. `descriptors`: file of `message`, for protobuf."""

    format: ValueFormat
    schema: str = ""
    message: str = ""
    descriptors: bytes = field(default=b"", repr=False)
    registry: "RegistryAddress | None" = None
    subject: str | None = None
    schema_id: int | None = None
    malformed: Malformed = Malformed.FAIL


OTHERS = ("value.schema", "value.message", "value.subject", "value.schema.id", "value.malformed")
REGISTRY = ("schema.registry.url", "schema.registry.basic.auth.user.info")
NAMES = ("value.format", *OTHERS, *REGISTRY)
"""All options of decoded values."""


def value_options(options: Given, topics: tuple[str, ...]) -> ValueOptions | None:
    """None: values stay bytes. `topics`: for the default of the subject. Raises InvalidOption."""
    registry = _registry(options)
    name = (options.text("value.format") or "raw").strip().lower()
    if name == "raw":
        for other in (*OTHERS, *(("schema.registry.url",) if registry else ())):
            if other in options:
                raise InvalidOption(f"`{other}` needs `value.format`: json, avro or protobuf")
        return None
    try:
        format = ValueFormat(name)
    except ValueError:
        raise InvalidOption(f"`value.format` must be json, avro, protobuf or raw, not {name!r}") from None
    text = (options.text("value.malformed") or Malformed.FAIL.value).strip().lower()
    if text not in (one.value for one in Malformed):
        raise InvalidOption(f"`value.malformed` must be fail or null, not {text!r}")
    message = options.text("value.message") or ""
    if message and format is not ValueFormat.PROTOBUF:
        raise InvalidOption("`value.message` is for `value.format` protobuf")
    schema, descriptors = _given_schema(options, format, has_registry=registry is not None)
    if descriptors and not message:
        raise InvalidOption("`value.format` protobuf needs `value.message`, the full name of the message")
    subject, schema_id = _schema_in_registry(options, topics, is_given=bool(schema or descriptors))
    return ValueOptions(
        format=format,
        schema=schema,
        message=message,
        descriptors=descriptors,
        registry=registry,
        subject=subject,
        schema_id=schema_id,
        malformed=Malformed(text),
    )


def _given_schema(options: Given, format: ValueFormat, *, has_registry: bool) -> tuple[str, bytes]:
    """The text of `value.schema`, or for protobuf the descriptor set at that path; empty if the registry has
    it."""
    schema = options.text("value.schema") or ""
    match format:
        case ValueFormat.PROTOBUF:
            if not schema and not has_registry:
                raise InvalidOption(
                    "`value.format` protobuf needs `value.schema`, the path of a descriptor set"
                )
            return "", _content(schema) if schema else b""
        case ValueFormat.JSON:
            if not schema:
                raise InvalidOption(
                    "`value.format` json needs `value.schema`, as in `id BIGINT, name STRING`"
                )
        case ValueFormat.AVRO:
            if not schema and not has_registry:
                raise InvalidOption("`value.format` avro needs `value.schema` or `schema.registry.url`")
            if schema and not schema.lstrip().startswith(("{", "[", '"')):
                schema = _text(schema)
    return schema, b""


def _schema_in_registry(
    options: Given, topics: tuple[str, ...], *, is_given: bool
) -> tuple[str | None, int | None]:
    """The subject or the id by which the registry has the schema; neither if the options give it."""
    subject, schema_id = options.text("value.subject"), options.positive_or_none("value.schema.id")
    if is_given:
        for other in ("value.subject", "value.schema.id"):
            if other in options:
                raise InvalidOption(f"`{other}` has no effect with `value.schema`")
    elif subject is None and schema_id is None:
        if len(topics) != 1:
            raise InvalidOption("several topics have no default for `value.subject`: set it")
        subject = f"{topics[0]}-value"
    return subject, schema_id


def _registry(options: Given) -> "RegistryAddress | None":
    url = options.text("schema.registry.url")
    user = options.text("schema.registry.basic.auth.user.info")
    if url is None:
        if user is not None:
            raise InvalidOption("`schema.registry.basic.auth.user.info` needs `schema.registry.url`")
        return None
    if "@" in url:  # would be shown in errors and plans
        raise InvalidOption(
            "`schema.registry.url` must not have a password: set `schema.registry.basic.auth.user.info`"
        )
    if not url.startswith(("http://", "https://")):
        raise InvalidOption(f"`schema.registry.url` must begin with http:// or https://, not {url!r}")
    from tierlog.client.registry import RegistryAddress  # late: each start of the CLI imports this module

    return RegistryAddress(url=url.rstrip("/"), user=user)


def _text(path: str) -> str:
    try:
        return _content(path).decode()
    except UnicodeDecodeError:
        raise InvalidOption(f"`value.schema`: {path} is not a text in UTF-8, as an Avro schema is") from None


def _content(path: str) -> bytes:
    try:
        return Path(path.removeprefix("file://")).read_bytes()
    except OSError as error:
        raise InvalidOption(f"`value.schema` is neither a schema nor a readable file: {error}") from None
