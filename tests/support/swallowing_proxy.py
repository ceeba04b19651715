"""A proxy in front of a broker that swallows the response to a Produce request, and lets no other through."""

import asyncio
import struct
import threading
from contextlib import suppress

PRODUCE = 0


class SwallowingProxy:
    """Runs in its own thread. Its client does not learn that a batch was appended, and cannot repeat it."""

    def __init__(self) -> None:
        self.target_port = 0
        self.port = 0
        self.refused = threading.Event()
        """The client has tried to repeat the batch."""
        self._is_swallowing = False
        self._has_swallowed = False
        self._loop = asyncio.new_event_loop()
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), daemon=True)
        self._thread.start()
        assert begun.wait(10), "the proxy did not start"

    def swallow(self) -> None:
        self._is_swallowing, self._has_swallowed = True, False

    def let_through(self) -> None:
        self._is_swallowing = False

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self, begun: threading.Event) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        begun.set()
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            back, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
            copying = asyncio.ensure_future(_copy(back, writer))
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", size)[0])
                if self._is_swallowing and struct.unpack_from(">h", frame)[0] == PRODUCE:
                    if not self._has_swallowed:
                        self._has_swallowed = True
                        copying.cancel()
                        onward.write(size + frame)
                        await back.readexactly(4)  # it has been appended
                    else:
                        self.refused.set()
                    onward.close()
                    break
                onward.write(size + frame)
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()
