"""Counts the error codes in a response of any API: fields `error_code` of the response, or of structs in it.

Called by `handlers.chain` for each response except those of Produce and Fetch, so the fields are looked up
once for each API.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tierlog.broker.handlers.context import RawReply

Walk = Callable[[Sequence[Any], "Counter[int]"], None]
"""Takes all items of an array: a call for each of ten thousand partitions would be slow."""


def counter_of(response_class: Any, errors: "Counter[int]") -> Callable[[Any], None] | None:
    """A function that counts the error codes in responses of this class; None if they cannot contain any."""
    walk = _walk(response_class)
    if walk is None:
        return None

    def count(reply: Any) -> None:
        if isinstance(reply, response_class):
            walk((reply,), errors)
        elif isinstance(reply, RawReply):
            errors.update(reply.errors)

    return count


@cache
def _walk(struct: Any) -> Walk | None:
    has_code = any(field.name == "error_code" for field in struct.FIELDS)
    inner = [
        (field.name, field.array, walk)
        for field in struct.FIELDS
        if field.nested is not None and (walk := _walk(field.nested)) is not None
    ]
    if not has_code and not inner:
        return None

    def count(items: Sequence[Any], errors: "Counter[int]") -> None:
        if has_code:
            for item in items:
                if item.error_code:  # NONE is 0
                    errors[item.error_code] += 1
        for name, is_array, walk in inner:
            for item in items:
                value = getattr(item, name)
                if value is not None:
                    walk(value if is_array else (value,), errors)

    return count
