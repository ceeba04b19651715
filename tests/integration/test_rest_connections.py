"""Bound of the REST gateway's connections: strangers use up neither it nor the files of the process."""

import socket
from pathlib import Path
from urllib.parse import urlsplit

from canaries import canary
from rest_process import RestProcess
from scram_broker import ScramBroker
from waiting import until

from tierlog.testing import TierlogBroker

LIMIT = 6
WORDS = ("--max-streams", "2", "--max-connections", str(LIMIT))


def connect(rest: RestProcess, request: str = "") -> socket.socket:
    """A connection, with the response's head to a request if there is one."""
    url = urlsplit(rest.url)
    client = socket.create_connection((url.hostname, url.port), timeout=60)
    if request:
        client.sendall(f"{request}\r\nHost: {url.netloc}\r\n\r\n".encode())
        assert client.recv(4096).startswith(b"HTTP/1.1 ")
    return client


def test_connections_without_a_request_end_first(
    tierlog_session_broker: TierlogBroker, tmp_path: Path
) -> None:
    with RestProcess(tmp_path, tierlog_session_broker.bootstrap, *WORDS) as rest:
        body = {"topic_name": "rest-bound", "partitions_count": 1}
        assert rest.post(f"{rest.cluster_path()}/topics", body).status == 201
        stream = connect(rest, "GET /v1/topics/rest-bound/consume?offset=latest&follow=true HTTP/1.1")
        kept = connect(rest, "GET /health HTTP/1.1")
        silent = [connect(rest) for _ in range(3 * LIMIT)]
        assert rest.get("/health").status == 200
        assert silent[0].recv(1) == b""
        until(lambda: rest.metric("tierlog_rest_connections") <= LIMIT, "the oldest connections end")
        assert rest.metric("tierlog_rest_connections_refused_total") >= 2 * LIMIT
        record = {"records": [{"value": "still here"}]}
        assert rest.post("/v1/topics/rest-bound/produce", record).status == 200
        assert b"still here" in stream.recv(4096)
        kept.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        for one in (stream, kept, *silent):
            one.close()


def test_strangers_do_not_end_the_connections_of_users(tmp_path: Path) -> None:
    client_file = tmp_path / "client.properties"
    client_file.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n")
    secured = ScramBroker(tmp_path, {"auto.create.topics.enable": True}, "ada")
    login = f"ada:{canary('ada')}"
    words = ("--client-config", str(client_file), *WORDS)
    with secured.broker, RestProcess(tmp_path, secured.broker.bootstrap, *words) as rest:
        topics = f"{rest.cluster_path(login)}/topics"
        assert rest.post(topics, {"topic_name": "hers", "partitions_count": 1}, login=login).status == 201
        follow = "/v1/topics/hers/consume?offset=latest&follow=true"
        stream = connect(rest, f"GET {follow} HTTP/1.1\r\nAuthorization: {rest.basic(login)}")
        strangers = [connect(rest, "GET /v3/clusters HTTP/1.1") for _ in range(2 * LIMIT)]
        record = {"records": [{"value": "for ada"}]}
        assert rest.post("/v1/topics/hers/produce", record, login=login).status == 200
        assert b"for ada" in stream.recv(4096)
        for one in (stream, *strangers):
            one.close()
