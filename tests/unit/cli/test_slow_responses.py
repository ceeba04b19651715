"""Commands against a broker that does not respond, as in a quorum that has lost its majority."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tierlog.cli import client, topics
from tierlog.cli.errors import ExitCode
from tierlog.protocol.api import BY_NAME, decode_request_header, encode_response
from tierlog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

API = BY_NAME["DeleteTopics"]


@pytest.fixture
def silent_broker() -> Iterator[str]:
    """Responds only to ApiVersions."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def serve(server: socket.socket) -> None:
    kept = []
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            kept.append(connection)
            frame = connection.recv(4096)
            header = decode_request_header(frame, 4, len(frame))
            keys = [ApiVersion(api_key=API.key, min_version=API.min_version, max_version=API.max_version)]
            answer = encode_response(
                BY_NAME["ApiVersions"], 0, header.correlation_id, ApiVersionsResponse(api_keys=keys)
            )
            connection.sendall(b"".join(map(bytes, answer)))


def test_command_reports_a_slow_response_and_then_a_timeout(
    silent_broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "SLOW_S", 0.01)
    with client.KafkaClient(silent_broker, timeout_s=0.2) as asking, pytest.raises(client.TimedOut) as late:
        topics.delete(asking, "t")
    assert late.value.code is ExitCode.UNREACHABLE and "tierlog cluster health" in late.value.hint
    assert "did not respond to DeleteTopics" in late.value.message
    output = capsys.readouterr().err
    assert output.count("No response to DeleteTopics") == 1  # the request was not sent twice
    assert "tierlog cluster health" in output
