"""Splits a stream of JSON objects into them: `{"a":1}{"b":2}`, or one per line. Counts objects in a body."""

import asyncio
import re
from collections.abc import Iterator

from tierlog.rest.errors import INVALID_JSON, TOO_LARGE, RestError

_OF_VALUE = re.compile(rb'["{}\[\]]')
_OF_STRING = re.compile(rb'["\\]')
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")

TOKENS_PER_TURN = 5_000
"""Tokens that are counted in one turn of the event loop: some milliseconds."""


class JsonSplitter:
    """`most`: bytes of one object."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._start = 0  # start of the first object in the buffer
        self._at = 0  # everything before it was looked at
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The objects that are complete with this data. Raises RestError, after those before the error."""
        self._buffer += data
        while (item := self._next()) is not None:
            yield item
        del self._buffer[: self._start]
        self._at -= self._start
        self._start = 0
        if len(self._buffer) > self._most:
            raise RestError(TOO_LARGE, f"a record is longer than {self._most} bytes")

    @property
    def pending(self) -> int:
        """Bytes of the object that is incomplete."""
        return len(self._buffer) - self._start

    def finish(self) -> None:
        """The stream has ended. Raises RestError if an object is incomplete."""
        if self._depth:
            raise RestError(INVALID_JSON, "the body ends within a record")

    def _next(self) -> bytes | None:
        if not self._depth:
            begin = _NOT_SPACE.search(self._buffer, self._start)
            self._start = self._at = len(self._buffer) if begin is None else begin.start()
            if begin is None:
                return None
            if begin[0] != b"{":
                raise RestError(INVALID_JSON, "expected an object of JSON for each record")
        while True:
            pattern = _OF_STRING if self._in_string else _OF_VALUE
            token = pattern.search(self._buffer, self._at)
            if token is None:
                self._at = len(self._buffer)
                return None
            self._at = token.end()
            match token[0]:
                case b'"':
                    self._in_string = not self._in_string
                case b"\\":
                    if self._at == len(self._buffer):  # the escaped character is not there yet
                        self._at -= 1
                        return None
                    self._at += 1
                case b"{" | b"[":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        item = bytes(self._buffer[self._start : self._at])
                        self._start = self._at
                        return item


async def has_more_objects(body: bytes, depth: int, most: int) -> bool:
    """Whether more than `most` objects begin within `depth` arrays and objects. An object has two bytes or
    more in the body and takes hundreds once it is decoded, so that they are counted before."""
    if body.count(b"{") <= most:
        return False
    at = level = count = tokens = 0
    while (token := _OF_VALUE.search(body, at)) is not None:
        at, tokens = token.end(), tokens + 1
        if tokens % TOKENS_PER_TURN == 0:
            await asyncio.sleep(0)
        match token[0]:
            case b'"':
                at = _end_of_string(body, at)
            case b"{" | b"[":
                count += level == depth and token[0] == b"{"
                level += 1
                if count > most:
                    return True
            case _:
                level -= 1
    return False


def _end_of_string(body: bytes, at: int) -> int:
    while (token := _OF_STRING.search(body, at)) is not None:
        if token[0] == b'"':
            return token.end()
        at = token.end() + 1
    return len(body)
