"""Error responses of all APIs, for requests that fail as a whole, derived from the protocol's schema.

A response has the error at its top level, or in one item for each item of the request, as Kafka's
`getErrorResponse` does. If a version cannot carry an error, the result is None and net closes the connection.
Called by net.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tierlog.broker.handlers.context import RequestContext
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import StructType

_IN_BOTH = frozenset({"AlterPartitionReassignments", "ElectLeaders", "Metadata"})
"""APIs that have the error at the top level and in the items."""
_OTHER_ITEMS = frozenset({"AlterReplicaLogDirs", "DescribeLogDirs"})
"""APIs whose response items do not correspond to the items of the request."""
_IDENTITIES = (
    ("name", "topic", "topic_name"),
    ("index", "partition", "partition_id", "partition_index"),
    ("entity",),
    ("feature",),
    ("group_id",),
    ("key",),
    ("resource_name",),
    ("resource_type",),
    ("topic_id",),
)
_NAMES_IN_REQUEST = {name: names for names in _IDENTITIES for name in names}
"""Fields that identify an item -> the names that the field may have in the request."""
_ERROR_VALUES = {
    "base_offset": -1,
    "committed_offset": -1,
    "entries": None,
    "expiry_timestamp_ms": -1,
    "high_watermark": -1,
    "low_watermark": -1,
    "node_id": -1,
    "port": -1,
    "producer_epoch": -1,
    "producer_id": -1,
    "records": b"",
}
"""Values that an error response has instead of the schema's defaults."""


def error_reply(context: RequestContext, request: Any, code: ErrorCode, message: str | None) -> Any:
    """The response with the error code, or None."""
    api = APIS[context.api]
    error = _Error(context.version, code, message)
    response = error.fill(api.response)
    has_code = error.is_in(api.response)
    if api.name in _IN_BOTH or not has_code:
        array = error.array_of_errors(api.response)
        if array is None or api.name in _OTHER_ITEMS:
            return response if has_code else None
        setattr(
            response, array[0], [error.item(array[1], requested) for requested in error.items_of(request)]
        )
    return response


def top_level_error(context: RequestContext, code: ErrorCode, message: str | None) -> Any:
    """The response with a top-level error code; None if this version has no such field."""
    response = APIS[context.api].response
    error = _Error(context.version, code, message)
    return error.fill(response) if error.is_in(response) else None


class _Error(NamedTuple):
    version: int
    code: ErrorCode
    message: str | None

    def is_in(self, kind: StructType) -> bool:
        """Whether this version of the struct itself has an error code."""
        return any(field.name == "error_code" and field.exists_in(self.version) for field in kind.FIELDS)

    def fill(self, kind: StructType) -> Any:
        """An empty struct with the error code and message, if it has such fields."""
        filled: Any = kind()
        for field in kind.FIELDS:
            if field.name in _ERROR_VALUES:
                setattr(filled, field.name, _ERROR_VALUES[field.name])
            elif field.name == "error_code":
                filled.error_code = self.code
            elif field.name == "error_message":
                filled.error_message = self.message
        return filled

    def item(self, kind: StructType, requested: Any) -> Any:
        """The result for one item of the request, which is a struct, a name or a number."""
        filled = self.fill(kind)
        for field in kind.FIELDS:
            if field.name in _NAMES_IN_REQUEST and field.exists_in(self.version):
                value = _identity(requested, field.name)
                if value is not None or field.is_nullable_in(self.version):
                    setattr(filled, field.name, value)
        if not self.is_in(kind) and (array := self.array_of_errors(kind)) is not None:
            setattr(filled, array[0], [self.item(array[1], inner) for inner in self.items_of(requested)])
        return filled

    def array_of_errors(self, kind: StructType) -> tuple[str, StructType] | None:
        """Name and struct of the array whose items have error codes, themselves or in arrays of their own."""
        for field in kind.FIELDS:
            if field.array and field.nested is not None and field.exists_in(self.version):
                nested = field.nested
                if self.is_in(nested) or self.array_of_errors(nested) is not None:
                    return field.name, nested
        return None

    def items_of(self, requested: Any) -> Iterable[Any]:
        """The items of a request, or of one of its items, which are in its first array."""
        arrays = (field.name for field in requested.FIELDS if field.array and field.exists_in(self.version))
        return getattr(requested, next(arrays)) or ()


def _identity(requested: Any, name: str) -> Any:
    if isinstance(requested, str | int):
        return requested
    return next(
        (getattr(requested, other) for other in _NAMES_IN_REQUEST[name] if hasattr(requested, other)), None
    )
