"""The admin HTTP API from the outside: JSON calls, and the stream of events that saves polling."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tierlog.cli.errors import CliError, ExitCode, unreachable, usage

if TYPE_CHECKING:
    import ssl

LOOK_AROUND = "`tierlog topic list` shows the topics, `tierlog topic describe` their offsets and settings."
ASK_HEALTH = "`tierlog cluster health` says whether all is well; the log of the node may say more."
HINTS = {404: LOOK_AROUND, 503: "`tierlog cluster health` says what is missing, and what to do."}
"""By status of the answer."""


class Event(NamedTuple):
    """One server-sent event: its name and its JSON data."""

    name: str
    data: Any


class AdminApi:
    """Calls of one node's admin API; raises CliError with the server's own words."""

    def __init__(self, url: str, *, timeout_s: float = 300.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise usage(f"{url!r} is not the URL of an admin API", hint="For example: http://127.0.0.1:9644")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s

    def get(self, path: str, **query: object) -> Any:
        with self._open("GET", path, query, None) as answer:
            return json.load(answer)

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        with self._open("POST", path, {}, json.dumps(body).encode()) as answer:
            return json.load(answer)

    def delete(self, path: str) -> Any:
        with self._open("DELETE", path, {}, None) as answer:
            return json.load(answer)

    def events(self) -> Iterator[Event]:
        """The events of /v1/events as they come; ends when the server closes the stream."""
        with self._open("GET", "/v1/events", {}, None) as answer:
            yield from parse_events(line.decode() for line in answer)

    def _open(self, method: str, path: str, query: Mapping[str, object], body: bytes | None) -> Any:
        words = urllib.parse.urlencode({key: value for key, value in query.items() if value is not None})
        return self._request(method, f"{self.url}{path}?{words}" if words else self.url + path, body)

    def _request(self, method: str, url: str, body: bytes | None, *, redirected: bool = False) -> Any:
        request = urllib.request.Request(url, body, method=method)
        if method != "GET":  # also without a body: no web page can make a browser send that (CORS)
            request.add_header("Content-Type", "application/json")
        try:
            return urllib.request.urlopen(request, timeout=self._timeout_s, context=_tls(url))
        except urllib.error.HTTPError as refused:
            elsewhere = refused.headers.get("Location")
            if refused.code == 307 and elsewhere and not redirected:  # urllib follows those of GET alone
                return self._request(method, elsewhere, body, redirected=True)
            code = ExitCode.NOT_FOUND if refused.code == 404 else ExitCode.FAILED
            raise CliError(
                _reason(refused),
                code=code,
                hint=HINTS.get(refused.code, ASK_HEALTH),
                status=refused.code,
            ) from None
        except (OSError, ValueError) as failure:
            raise unreachable(self.url, getattr(failure, "reason", failure)) from None


def _tls(url: str) -> "ssl.SSLContext | None":
    """Of nodes with mutual TLS: what an operator shows, and whom he believes; raises OSError."""
    if not url.startswith("https:"):
        return None
    import ssl

    context = ssl.create_default_context(cafile=os.environ.get("TIERLOG_ADMIN_CA"))
    if certificate := os.environ.get("TIERLOG_ADMIN_CERTIFICATE"):
        context.load_cert_chain(certificate, os.environ.get("TIERLOG_ADMIN_KEY"))
    return context


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Events of a text/event-stream body (HTML standard, section 9.2); skips comments and unknown fields."""
    name, data = "message", ""
    for line in lines:
        field, _, value = line.rstrip("\r\n").partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data += value
        elif not line.strip():
            if data:
                yield Event(name, json.loads(data))
            name, data = "message", ""


def _reason(refused: urllib.error.HTTPError) -> str:
    text = refused.read().decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        return text.strip() or f"{refused.code} {refused.reason}"
    if isinstance(answer, dict):
        return str(answer.get("error") or answer.get("message") or text)
    return text
