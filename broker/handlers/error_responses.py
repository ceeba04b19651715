"""Error responses: the response of any API to a request that fails as a whole, built from its schema.

The error code is at the top level, or in one item for each item of the request, as in Kafka's
`getErrorResponse`. If the response has no field for it in this version, the functions return None, and
`broker.net` closes the connection. Called by `handlers.chain`, `handlers.table` and `net.dispatch`.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tierlog.base.types import InvariantViolation
from tierlog.broker.handlers.context import RequestContext
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.protocol.api import APIS
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.schema import Message, StructType

_TOP_LEVEL_AND_ITEMS = frozenset({"AlterPartitionReassignments", "ElectLeaders", "Metadata"})
"""APIs whose responses repeat a top-level error in the items."""
_UNRELATED_ITEMS = frozenset({"DescribeLogDirs"})
"""APIs whose response items do not correspond to the items of the request."""
_NESTED_ITEMS = frozenset({"AlterReplicaLogDirs"})
"""APIs whose response items correspond to the items of the request's items."""
_ITEMS_OF_ALL_ARRAYS = frozenset({"AlterUserScramCredentials"})
"""APIs whose response has an item for each name in any array of the request."""
_IDENTITY_FIELDS = (
    ("name", "topic", "topic_name", "user"),
    ("index", "partition", "partition_id", "partition_index"),
    ("entity",),
    ("feature",),
    ("group_id",),
    ("key",),
    ("producer_id",),
    ("resource_name",),
    ("resource_type",),
    ("topic_id",),
)
_REQUEST_FIELD_NAMES = {name: names for names in _IDENTITY_FIELDS for name in names}
"""Response field that identifies an item -> the names that this field may have in the request."""
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


def code_of_unavailable(failure: MetadataUnavailable) -> ErrorCode:
    """The error of a change that the quorum has not confirmed. Clients try again."""
    return ErrorCode.REQUEST_TIMED_OUT if failure.applied_unknown else ErrorCode.NOT_CONTROLLER


def error_reply(
    context: RequestContext, request: Any, code: ErrorCode, message: str | None
) -> Message | None:
    """Build an error response with the code at the top level, in the items, or both. Returns None if this
    version has no field for it."""
    api = APIS[context.api]
    error = _Error(context.version, code, message)
    response: Message = error.fill(api.response)
    has_code = error.has_code(api.response)
    if api.name in _TOP_LEVEL_AND_ITEMS or not has_code:
        found = error.items_with_codes(api.response)
        if found is None or api.name in _UNRELATED_ITEMS:
            return response if has_code else None
        array, item_type = found
        items: Iterable[Any] = error.items_of(request)
        if api.name in _NESTED_ITEMS:
            items = [nested for item in items for nested in error.items_of(item)]
        elif api.name in _ITEMS_OF_ALL_ARRAYS:
            arrays = (getattr(request, field.name) for field in request.FIELDS if field.array)
            items = {item.name: item for array in arrays for item in array}.values()
        setattr(response, array, [error.item(item_type, item) for item in items])
    return response


def top_level_error(context: RequestContext, code: ErrorCode, message: str | None) -> Message | None:
    """The response with a top-level error code; None if this version has no such field."""
    response = APIS[context.api].response
    error = _Error(context.version, code, message)
    return error.fill(response) if error.has_code(response) else None


def array_of_items(response: StructType, version: int) -> tuple[str, StructType]:
    """Name of the array in which the response has an item for each item of the request, and the struct of
    its items."""
    found = _Error(version, ErrorCode.NONE, None).items_with_codes(response)
    if found is None:
        raise InvariantViolation(f"{response.__name__} has no error for each item")
    return found


def error_item(
    context: RequestContext, kind: StructType, requested: Any, code: ErrorCode, message: str | None
) -> Any:
    """The response item for one item of the request, with an error."""
    return _Error(context.version, code, message).item(kind, requested)


class _Error(NamedTuple):
    """An error, and the version of the response that carries it."""

    version: int
    code: ErrorCode
    message: str | None

    def has_code(self, struct: StructType) -> bool:
        """Whether this version of the struct itself has an error code."""
        return any(field.name == "error_code" and field.exists_in(self.version) for field in struct.FIELDS)

    def fill(self, struct: StructType) -> Any:
        """An empty struct with the error code and message, if it has such fields."""
        filled: Any = struct()
        for field in struct.FIELDS:
            if field.name in _ERROR_VALUES:
                setattr(filled, field.name, _ERROR_VALUES[field.name])
            elif field.name == "error_code":
                filled.error_code = self.code
            elif field.name == "protocol_name" and field.is_nullable_in(self.version):
                filled.protocol_name = None
            elif field.name == "error_message":
                filled.error_message = self.message
        return filled

    def item(self, struct: StructType, requested: Any) -> Any:
        """Build the response item for one item of the request. `requested`: a struct, a name or a number."""
        filled = self.fill(struct)
        for field in struct.FIELDS:
            if field.name in _REQUEST_FIELD_NAMES and field.exists_in(self.version):
                value = _id_value(requested, field.name)
                if value is not None or field.is_nullable_in(self.version):
                    setattr(filled, field.name, value)
        if not self.has_code(struct) and (found := self.items_with_codes(struct)) is not None:
            array, nested = found
            setattr(filled, array, [self.item(nested, inner) for inner in self.items_of(requested)])
        return filled

    def items_with_codes(self, struct: StructType) -> tuple[str, StructType] | None:
        """Name of the array whose items have error codes, themselves or in arrays of their own, and the
        struct of its items. None if no array has any."""
        for field in struct.FIELDS:
            if field.array and field.nested is not None and field.exists_in(self.version):
                nested = field.nested
                if self.has_code(nested) or self.items_with_codes(nested) is not None:
                    return field.name, nested
        return None

    def items_of(self, requested: Any) -> Iterable[Any]:
        """The items of a request, or of one of its items: the elements of its first array."""
        arrays = (field.name for field in requested.FIELDS if field.array and field.exists_in(self.version))
        return getattr(requested, next(arrays)) or ()


def _id_value(requested: Any, name: str) -> Any:
    """Value for the response field of this name, taken from the item of the request."""
    if isinstance(requested, str | int):
        return None if name == "producer_id" else requested
    return next(
        (getattr(requested, other) for other in _REQUEST_FIELD_NAMES[name] if hasattr(requested, other)), None
    )
