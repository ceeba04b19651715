"""A broker that responds as a script says, for tests of clients."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from tierlog.protocol.api import APIS, BY_NAME, decode_request_header, encode_response
from tierlog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

NAMES = (
    "ApiVersions",
    "Metadata",
    "FindCoordinator",
    "Produce",
    "Fetch",
    "ListOffsets",
    "CreateTopics",
    "ListGroups",
)


@contextmanager
def broker(respond: Callable[[str, int], Any]) -> Iterator[str]:
    """`respond(api, port)`: a response; None closes the connection, `...` sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_accept, args=(server, respond), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, respond: Callable[[str, int], Any]) -> None:
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, respond), daemon=True).start()


def _serve(connection: socket.socket, respond: Callable[[str, int], Any]) -> None:
    apis = [BY_NAME[name] for name in NAMES]
    keys = [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in apis
    ]
    with connection, connection.makefile("rb") as stream, suppress(OSError):
        while size := stream.read(4):
            frame = size + stream.read(int.from_bytes(size, "big"))
            header = decode_request_header(frame, 4, len(frame))
            api = APIS[header.api_key]
            is_versions = api.name == "ApiVersions"
            response = (
                ApiVersionsResponse(api_keys=keys)
                if is_versions
                else respond(api.name, connection.getsockname()[1])
            )
            if response is None:
                return
            if response is not ...:
                parts = encode_response(api, header.api_version, header.correlation_id, response)
                connection.sendall(b"".join(cast(list[bytes], parts)))
