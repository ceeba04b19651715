"""Errors without a traceback: Spark prints that of each exception of a data source before its message.

The messages of tierlog's own exceptions say what happened and what to do next. They must not drown in it.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from tierlog.base.types import InvariantViolation

Method = TypeVar("Method", bound=Callable[..., Any])


def short_errors(method: Method) -> Method:
    """Drop traceback and cause of tierlog's exceptions. All others are bugs, and keep them."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return method(*args, **options)
        except Exception as failure:
            is_own = type(failure).__module__.startswith("tierlog.")
            if not is_own or isinstance(failure, InvariantViolation):
                raise
            raise failure.with_traceback(None) from None

    return cast(Method, call)
