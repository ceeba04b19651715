"""Commands against a broker that does not respond, as in a quorum that has lost its majority."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from tierlog.cli import client, topics
from tierlog.cli.errors import ExitCode
from tierlog.protocol.api import BY_NAME, decode_request_header, encode_response
from tierlog.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

APIS = [BY_NAME["CreateTopics"], BY_NAME["DeleteTopics"]]


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
            keys = [
                ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
                for api in APIS
            ]
            answer = encode_response(
                BY_NAME["ApiVersions"], 0, header.correlation_id, ApiVersionsResponse(api_keys=keys)
            )
            connection.sendall(b"".join(map(bytes, answer)))


def create(asking: client.KafkaClient) -> None:
    topics.create(asking, "t", 1, 1, {}, validate_only=False)


def delete(asking: client.KafkaClient) -> None:
    topics.delete(asking, "t")


@pytest.mark.parametrize(("change", "api"), [(create, "CreateTopics"), (delete, "DeleteTopics")])
def test_command_reports_a_slow_response_and_then_a_timeout(
    change: Callable[[client.KafkaClient], None],
    api: str,
    silent_broker: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(client, "SLOW_S", 0.01)
    with client.KafkaClient(silent_broker, timeout_s=0.2) as asking, pytest.raises(client.TimedOut) as late:
        change(asking)
    assert late.value.code is ExitCode.UNREACHABLE and "tierlog cluster health" in late.value.hint
    assert f"did not respond to {api}" in late.value.message
    output = capsys.readouterr().err
    assert output.count(f"No response to {api}") == 1  # the request was not sent twice
    assert "tierlog cluster health" in output
