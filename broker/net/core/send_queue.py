"""Send queue of one connection: parts of responses, in the order in which they leave."""

from collections import deque
from collections.abc import Iterable

from tierlog.base.files import FileSlice, Part


class SendQueue:
    """`parts`: what may be sent now. `bytes`: of all responses that are ready, also of those that must wait
    for earlier ones.
    """

    __slots__ = ("_file_bytes", "bytes", "parts")

    def __init__(self) -> None:
        self.parts: deque[Part] = deque()
        self.bytes = 0
        self._file_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory, not in files."""
        return self.bytes - self._file_bytes

    def count(self, parts: Iterable[Part]) -> None:
        """Count a response that is ready; its parts are added after those of earlier responses."""
        for part in parts:
            self.bytes += len(part)
            if isinstance(part, FileSlice):
                self._file_bytes += len(part)

    def sent(self, count: int) -> None:
        """Remove the first `count` bytes."""
        parts = self.parts
        self.bytes -= count
        while parts and count >= len(parts[0]):
            first = parts.popleft()
            count -= len(first)
            if isinstance(first, FileSlice):
                self._file_bytes -= first.count
        if count:
            first = parts[0]
            if isinstance(first, FileSlice):
                self._file_bytes -= count
                parts[0] = FileSlice(first.file, first.position + count, first.count - count)
            else:
                parts[0] = memoryview(first)[count:]
