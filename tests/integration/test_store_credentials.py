"""Credentials of an instance role and a web identity: from fakes of IMDS and STS over HTTP, to an S3 server.

The requests pass a proxy that records by which key they are signed.
"""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import s3_servers
from connection_harness import until
from s3_faults import FaultProxy, Request

from tierlog.spark.history.bucket import open_bucket
from tierlog.spark.options import StoreAddress
from tierlog.tiering.stores import store_from_url

TOKEN, ROLE = "imds-token", "tierlog-role"
SIGNED_BY = re.compile(rb"Credential=([A-Z0-9]+)/")
SESSION = re.compile(rb"(?i)x-amz-security-token: (\S+)")
AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_DISABLED",
)
STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>
<SessionToken>session-{number}</SessionToken><Expiration>{until}</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class Recorder(FaultProxy):
    """Keeps the head of each request."""

    def __init__(self, server: s3_servers.S3Server) -> None:
        super().__init__(server)
        self.heads: list[bytes] = []

    def _drawn(self, request: Request) -> str:
        self.heads.append(request.head)
        return super()._drawn(request)

    def signed_by(self) -> list[tuple[str, str]]:
        """Key and session token of each request."""
        found = [(SIGNED_BY.search(head), SESSION.search(head)) for head in self.heads]
        return [(key[1].decode(), token[1].decode()) for key, token in found if key and token]


class Issuer(ThreadingHTTPServer):
    """IMDSv2 and STS. Each answer has another key. `valid_for`: how long it is valid."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.issued = 0
        self.valid_for = timedelta(hours=6)
        self.passes = threading.Event()
        self.passes.set()
        self.requested = threading.Event()
        self.forms: list[dict[str, list[str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def issue(self) -> tuple[str, int, str]:
        self.requested.set()
        self.passes.wait(30)
        self.issued += 1
        until = (datetime.now(UTC) + self.valid_for).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"AKIA{self.issued:016}", self.issued, until


class _Answer(BaseHTTPRequestHandler):
    server: Issuer

    def do_PUT(self) -> None:  # IMDSv2: a token for the session
        self._answer(TOKEN if self.path == "/latest/api/token" else None)

    def do_GET(self) -> None:
        place = "/latest/meta-data/iam/security-credentials/"
        if self.headers["x-aws-ec2-metadata-token"] != TOKEN:
            self._answer(None)
        elif self.path == place:
            self._answer(ROLE)
        elif self.path == place + ROLE:
            key, number, until = self.server.issue()
            keys = {"AccessKeyId": key, "SecretAccessKey": "secret", "Token": f"session-{number}"}
            self._answer(json.dumps({"Code": "Success", **keys, "Expiration": until}))
        else:
            self._answer(None)

    def do_POST(self) -> None:  # STS
        self.server.forms.append(parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        key, number, until = self.server.issue()
        self._answer(STS.format(key=key, number=number, until=until))

    def _answer(self, text: str | None) -> None:
        content = (text or "").encode()
        self.send_response(404 if text is None else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def issuing() -> Iterator[Issuer]:
    with Issuer() as issuer:
        threading.Thread(target=issuer.serve_forever, daemon=True).start()
        yield issuer
        issuer.passes.set()
        issuer.shutdown()


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Issuer]:
    """The only source of credentials."""
    for name in AWS_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with issuing() as issuer:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", issuer.url)
        yield issuer


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_servers.S3Server]:
    """Accepts every key."""
    with s3_servers.running("moto", tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
async def recorder(moto: s3_servers.S3Server) -> AsyncIterator[Recorder]:
    async with Recorder(moto).running() as recorder:
        assert isinstance(recorder, Recorder)
        yield recorder


async def test_instance_role_signs_requests(issuer: Issuer, recorder: Recorder) -> None:
    store = store_from_url(recorder.url("role"))
    for number in range(3):
        await store.put(f"k{number}", b"content")
    assert await store.get("k0") == b"content"
    await store.close()
    assert recorder.signed_by() == [("AKIA" + "1".zfill(16), "session-1")] * 4
    assert issuer.issued == 1


@pytest.fixture
def web_identity(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Issuer:
    (tmp_path / "identity").write_text("a-signed-token")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "identity"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/tierlog")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", issuer.url)
    return issuer


async def test_web_identity_signs_requests(web_identity: Issuer, recorder: Recorder) -> None:
    store = store_from_url(recorder.url("identity"))
    await store.put("k", b"content")
    assert await store.get("k") == b"content"
    await store.close()
    [form] = web_identity.forms
    assert form["Action"] == ["AssumeRoleWithWebIdentity"]
    assert form["WebIdentityToken"] == ["a-signed-token"]
    assert recorder.signed_by() == [("AKIA" + "1".zfill(16), "session-1")] * 2


async def test_credentials_that_expire_are_renewed_in_the_stores_threads(
    web_identity: Issuer, recorder: Recorder
) -> None:
    """The event loop does other work while the issuer does not respond, and no request uses the old key."""
    web_identity.valid_for = timedelta(minutes=5)  # botocore renews ten minutes before the end
    store = store_from_url(recorder.url("renewed"))
    await store.put("k", b"content")
    assert len(recorder.signed_by()) == 1
    web_identity.passes.clear()
    web_identity.requested.clear()
    getting: asyncio.Future[Any] = asyncio.ensure_future(store.get("k"))
    await until(web_identity.requested.is_set)  # the loop runs
    assert not getting.done()
    web_identity.passes.set()
    assert await getting == b"content"
    await store.close()
    first, last = recorder.signed_by()
    assert first[0] < last[0] == f"AKIA{web_identity.issued:016}"


async def test_issuer_that_does_not_respond_ends_the_call_at_its_deadline(
    web_identity: Issuer, recorder: Recorder
) -> None:
    from tierlog.tiering.object_store import ObjectStoreError
    from tierlog.tiering.s3 import S3Options, S3Store

    web_identity.valid_for = timedelta(minutes=5)
    web_identity.passes.clear()
    store = S3Store(S3Options.from_url(recorder.url("late")), call_s=0.5)
    with pytest.raises(ObjectStoreError):
        await store.put("k", b"content")
    assert recorder.heads == []
    web_identity.passes.set()
    await store.close()


@pytest.fixture
def profile(issuer: Issuer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a profile with keys of its own."""
    keys = "aws_access_key_id = AKIAPROFILE\naws_secret_access_key = secret\naws_session_token = its-own\n"
    (tmp_path / "credentials").write_text(f"[analytics]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return "analytics"


async def read_as_an_executor(url: str, **fields: str) -> None:
    """One list and nothing else, in a thread: Spark's client blocks."""
    open_bucket.cache_clear()
    await asyncio.to_thread(open_bucket(StoreAddress(path=url, **fields)).folders)


async def test_executor_signs_with_the_instance_role(issuer: Issuer, recorder: Recorder) -> None:
    await read_as_an_executor(recorder.url("role"))
    assert recorder.signed_by() == [("AKIA" + "1".zfill(16), "session-1")]


async def test_executor_signs_with_the_web_identity(web_identity: Issuer, recorder: Recorder) -> None:
    await read_as_an_executor(recorder.url("identity"))
    assert web_identity.forms[0]["WebIdentityToken"] == ["a-signed-token"]
    assert recorder.signed_by() == [("AKIA" + "1".zfill(16), "session-1")]


async def test_executor_signs_with_the_session_token_of_the_options(
    issuer: Issuer, recorder: Recorder
) -> None:
    keys = {"access_key": "AKIATEMPORARY", "secret_key": "secret", "session_token": "given"}
    await read_as_an_executor(recorder.url("temporary"), **keys)
    assert recorder.signed_by() == [("AKIATEMPORARY", "given")]
    assert issuer.issued == 0


async def test_keys_of_a_profile_sign_requests(profile: str, recorder: Recorder) -> None:
    store = store_from_url(f"{recorder.url('profile')}&profile={profile}")
    await store.put("k", b"content")
    await store.close()
    assert recorder.signed_by() == [("AKIAPROFILE", "its-own")]


async def test_executor_takes_the_keys_of_a_profile(profile: str, recorder: Recorder) -> None:
    await read_as_an_executor(recorder.url("profile"), profile=profile)
    assert recorder.signed_by() == [("AKIAPROFILE", "its-own")]
