"""A broker that takes a request and does not answer, as in a quorum that has lost its majority."""

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
    """Answers ApiVersions and nothing else."""
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
            keys = [ApiVersion(api_key=API.key, min_version=API.least, max_version=API.most)]
            answer = encode_response(
                BY_NAME["ApiVersions"], 0, header.correlation_id, ApiVersionsResponse(api_keys=keys)
            )
            connection.sendall(b"".join(map(bytes, answer)))


def test_a_command_says_that_it_waits_and_ends_with_a_clear_error(
    silent_broker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "SLOW_S", 0.01)
    with client.KafkaClient(silent_broker, timeout_s=0.2) as asking, pytest.raises(client.TimedOut) as late:
        topics.delete(asking, "t")
    assert late.value.code is ExitCode.UNREACHABLE and "tierlog cluster health" in late.value.hint
    assert "did not answer DeleteTopics" in late.value.message
    said = capsys.readouterr().err
    assert said.count("has not answered DeleteTopics") == 1  # and it was not sent a second time
    assert "tierlog cluster health" in said
