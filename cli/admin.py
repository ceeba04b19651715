"""Client of the admin HTTP API: JSON requests, the stream of change events, and the choice of a node."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from http.client import HTTPException
from typing import Any, TypeVar

from tierlog.base.addresses import host_port
from tierlog.cli.client_config import accept_challenge, admin_login, bootstrap_servers, profile_in_use
from tierlog.cli.errors import (
    SILENT_HINT,
    CliError,
    ExitCode,
    no_response,
    unknown_broker,
    unreachable,
    usage,
)
from tierlog.cli.options import DEFAULT_ADMIN
from tierlog.cli.output import print_status
from tierlog.cli.targets import READ_TIMEOUT_S, Target, announce_target, local_target
from tierlog.client.admin import admin_credentials, admin_tls, variable
from tierlog.client.racing import NoneResponded, first_to_respond

T = TypeVar("T")
R = TypeVar("R")

PROBE_TIMEOUT_S = 3.0
"""Time to wait for a node's response: a paused node accepts connections and never responds."""

THREADS = 32
"""Nodes that are asked at the same time."""

RESPONSE_BYTES_MAX = 256 << 20
"""More than any response: a cluster of 200,000 partitions describes itself in 60 MiB."""

TOPIC_HINT = "List topics with `tierlog topic list`; see offsets and settings with `tierlog topic describe`."
HEALTH_HINT = "Check the cluster with `tierlog cluster health`, and see the node's log."
CREDENTIALS_HINT = (
    "Set TIERLOG_ADMIN_USER and TIERLOG_ADMIN_PASSWORD_FILE, TIERLOG_ADMIN_TOKEN, or the certificate in "
    "TIERLOG_ADMIN_CERTIFICATE and TIERLOG_ADMIN_KEY, or give a --client-config with a login."
)
HINTS = {
    401: CREDENTIALS_HINT,
    404: TOPIC_HINT,
    503: "Run `tierlog cluster health` to see what is unavailable and what to do.",
}
"""HTTP status -> hint."""

TIER_PATHS = "/v1/tier/"
STORE_HINT = (
    "Run `tierlog cluster health` to see what is unavailable. An outage of the object store: "
    "docs/runbooks/bucket-down.md"
)
"""For status 503 of TIER_PATHS."""


class NoResponse(CliError):
    """The node accepted the request and did not respond in time: it may still execute it."""


def no_topic(topic: str) -> CliError:
    return CliError(f"there is no topic {topic!r}", hint=TOPIC_HINT, code=ExitCode.NOT_FOUND)


def not_tiered(topic: str) -> CliError:
    hint = f"`tierlog topic alter {topic} --config remote.storage.enable=true` turns tiering on."
    return CliError(f"topic {topic!r} is not tiered", hint=hint)


def is_tiered(topic: Mapping[str, Any]) -> bool:
    """Whether the topic, a row of GET /v1/cluster, has tiering on."""
    from tierlog.config.topic import TOPIC_SETTINGS

    text = topic.get("configs", {}).get("remote.storage.enable", "false")
    return bool(TOPIC_SETTINGS["remote.storage.enable"].parse(text))


class AdminApi:
    """Client of one node's admin API. Raises CliError with the server's message."""

    def __init__(self, url: str, *, timeout_s: float = 300.0) -> None:
        _check_url(url)
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s

    def leaders(self, topic: str | None = None, partition: int | None = None) -> "list[AdminApi]":
        """The admin APIs of the brokers that lead these partitions; this one if no broker does. Raises
        CliError if there is no such topic."""
        cluster = self.get("/v1/cluster")
        if topic is not None:
            topic_of(cluster, topic)
        leaders = {
            one["leader"]
            for named in cluster["topics"]
            for one in named["partitions"]
            if topic in (None, named["name"]) and partition in (None, one["partition"])
        }
        registered = {one["id"] for one in cluster["brokers"]}
        found = [self.of_broker(leader, cluster) for leader in sorted(leaders & registered)]
        return list({api.url: api for api in found}.values()) or [self]

    def live_leaders(self, topic: str | None = None, partition: int | None = None) -> "list[AdminApi]":
        """As `leaders`, before a request to each that may take long. Raises CliError that names those that
        do not respond to a short one."""
        leaders = self.leaders(topic, partition)
        _of_all([AdminApi(leader.url, timeout_s=READ_TIMEOUT_S) for leader in leaders], "/v1/quorum")
        return leaders

    def of_leaders(self, path: str, topic: str | None = None) -> list[Any]:
        """The responses of all brokers that lead partitions, which are asked at the same time. Raises
        CliError that names those that do not respond."""
        return _of_all(self.live_leaders(topic), path, topic=topic)

    def of_broker(self, broker: int, cluster: Mapping[str, Any]) -> "AdminApi":
        """The admin API of a broker in `cluster`, a response of GET /v1/cluster; this one if the broker
        registered without a URL. Raises CliError if it is not registered."""
        for one in cluster["brokers"]:
            if one["id"] == broker:
                is_other = broker != cluster["node_id"] and one["admin_url"]
                return AdminApi(one["admin_url"], timeout_s=self._timeout_s) if is_other else self
        raise unknown_broker(broker)

    def get(self, path: str, **query: object) -> Any:
        with self._open("GET", path, query, None) as response:
            return self._document(response)

    def text(self, path: str) -> tuple[str, Message]:
        """A response as text, and its headers."""
        with self._open("GET", path, {}, None) as response:
            return self._content(response).decode(errors="replace"), response.headers

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        with self._open("POST", path, {}, json.dumps(body).encode()) as response:
            return self._document(response)

    def delete(self, path: str) -> Any:
        with self._open("DELETE", path, {}, None) as response:
            return self._document(response)

    def _document(self, response: Any) -> Any:
        try:
            return json.loads(self._content(response))
        except (ValueError, RecursionError):
            what = f"{self.url} did not respond with JSON"
            raise CliError(what, hint=HEALTH_HINT) from None

    def _content(self, response: Any) -> bytes:
        """The body. A node may stop while it sends it."""
        try:
            content: bytes = response.read(RESPONSE_BYTES_MAX + 1)
        except (OSError, HTTPException) as failure:
            raise unreachable(self.url, f"the response is incomplete: {failure}") from None
        if response.length and len(content) <= RESPONSE_BYTES_MAX:  # what Content-Length says is missing
            raise unreachable(self.url, f"the response lacks {response.length:,} bytes")
        if len(content) > RESPONSE_BYTES_MAX:
            what = f"{self.url} responded with more than {RESPONSE_BYTES_MAX:,} bytes"
            raise CliError(what, hint=HEALTH_HINT)
        return content

    def changes(self) -> Iterator[None]:
        """Yield after each event of /v1/events, until the server closes the stream."""
        with self._open("GET", "/v1/events", {}, None) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield

    def _open(self, method: str, path: str, query: Mapping[str, object], body: bytes | None) -> Any:
        text = urllib.parse.urlencode({key: value for key, value in query.items() if value is not None})
        return self._request(method, f"{self.url}{path}?{text}" if text else self.url + path, body)

    def _request(self, method: str, url: str, body: bytes | None, *, redirected: bool = False) -> Any:
        try:
            credentials = admin_credentials(url) or admin_login(url)
            request = urllib.request.Request(url, body, method=method)
        except (OSError, ValueError) as wrong:
            raise usage(str(wrong), hint="Check the URL, and the TIERLOG_ADMIN_… variables.") from None
        for name, value in credentials.items():
            request.add_unredirected_header(name, value)  # another server must not get them
        # also without a body, which proves to the node that no page of another site makes a browser send
        # this: browsers send this type to another site only if CORS allows it
        if method != "GET":
            request.add_header("Content-Type", "application/json")
        try:
            return urllib.request.urlopen(request, timeout=self._timeout_s, context=admin_tls(url))
        except urllib.error.HTTPError as refused:
            location = refused.headers.get("Location")
            if refused.code == 307 and location and not redirected:  # urllib follows redirects only for GET
                return self._request(method, location, body, redirected=True)
            challenges = refused.headers.get_all("WWW-Authenticate", [])
            if refused.code == 401 and not credentials and accept_challenge(url, challenges):
                return self._request(method, url, body, redirected=redirected)
            code = ExitCode.NOT_FOUND if refused.code == 404 else ExitCode.FAILED
            is_tier = refused.code == 503 and TIER_PATHS in url
            hint = STORE_HINT if is_tier else HINTS.get(refused.code, HEALTH_HINT)
            raise CliError(_reason(refused), code=code, hint=hint, status=refused.code) from None
        except TimeoutError:  # while it waits for the response: a failed connection raises URLError
            what = f"{self.url} did not respond within {self._timeout_s:g} s"
            hint = f"{SILENT_HINT} Another address can be given with --admin."
            if method != "GET":
                hint = "The request may still be executed. Check the cluster with `tierlog cluster health`."
            raise NoResponse(what, hint=hint, code=ExitCode.UNREACHABLE) from None
        except HTTPException as failure:  # no HTTP, or the connection was closed without a response
            hint = (
                f"The node has stopped, or {self.url} is a Kafka port and not an admin API: --admin "
                "http://HOST:PORT"
            )
            what = f"cannot reach {self.url}: {failure or 'invalid response'}"
            raise CliError(what, hint=hint, code=ExitCode.UNREACHABLE) from None
        except (OSError, ValueError) as failure:
            raise unreachable(self.url, getattr(failure, "reason", failure)) from None


def side_by_side(ask: Callable[[T], R], nodes: Sequence[T]) -> list[R]:
    """The results for all nodes, which are asked at the same time. Each request limits its own time."""
    with ThreadPoolExecutor(min(THREADS, len(nodes)) or 1) as pool:
        return list(pool.map(ask, nodes))


def _of_all(apis: Sequence[AdminApi], path: str, **query: object) -> list[Any]:
    silent: list[str] = []

    def ask(api: AdminApi) -> Any:
        try:
            return api.get(path, **query)
        except CliError as failure:
            if failure.code != ExitCode.UNREACHABLE:
                raise
            silent.append(failure.message)

    responses = side_by_side(ask, apis)
    if silent:
        raise no_response(sorted(silent))
    return responses


def topic_of(cluster: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The topic's row in `cluster`, a response of GET /v1/cluster. Raises CliError if it does not exist."""
    for row in cluster["topics"]:
        if row["name"] == name:
            return dict(row)
    raise no_topic(name)


def warn_without_leader(api: AdminApi) -> None:
    """Print that what this node knows may be old, if it knows no leader of the metadata quorum."""
    try:
        seen = api.get("/v1/quorum")
    except CliError:  # the node has stopped since it gave its rows
        return
    if seen["leader"] < 0:
        print_status(
            f"The metadata quorum has no leader: this is the last state that node {seen['node_id']} knows. "
            "Run `tierlog cluster health` to see what to do."
        )


def bootstrap_of(admin: str) -> str:
    """Bootstrap addresses of the cluster that an admin API belongs to. Raises CliError."""
    brokers = admin_api(admin).get("/v1/cluster")["brokers"]
    return ",".join(f"{one['host']}:{one['port']}" for one in brokers if not one["fenced"])


def admin_target(admin: str | None, bootstrap: str | None = None) -> Target:
    """Admin APIs to try: the given ones, those of the cluster at `bootstrap`, of the client settings or of
    the profile, the local cluster's, or the default address. Raises CliError if no broker responds."""
    if admin is not None:
        return Target(admin)
    bootstrap = bootstrap or bootstrap_servers()
    profile = profile_in_use()
    if bootstrap is None and profile is not None:
        found = f"profile {profile.name}"
        return Target(profile.admin or ",".join(_admin_urls_of(profile.bootstrap or "")), found)
    if bootstrap is not None:
        return Target(",".join(_admin_urls_of(bootstrap)), f"of the cluster at {bootstrap}")
    return local_target(lambda plan: ",".join(plan.admin_urls.values()), DEFAULT_ADMIN)


def split_urls(target: Target) -> list[str]:
    """The URLs, in the order in which they are tried. Raises CliError without any, or if one is not a URL."""
    urls = [url.strip().rstrip("/") for url in target.addresses.split(",") if url.strip()]
    if not urls:
        raise usage("no admin API given", hint=f"For example: --admin {DEFAULT_ADMIN}")
    for url in urls:
        _check_url(url)
    return urls


def admin_api(
    admin: str | None, bootstrap: str | None = None, *, timeout_s: float = 60.0, changes: bool = False
) -> AdminApi:
    """The first admin API that responds. Raises CliError if none does.

    `changes`: the command changes the cluster, so it prints its target.
    """
    target = admin_target(admin, bootstrap)
    url, _ = _first_api(split_urls(target), "/v1/quorum")
    if changes:
        announce_target(Target(url, target.found))
    return AdminApi(url, timeout_s=timeout_s)


def _first_api(urls: list[str], path: str) -> tuple[str, Any]:
    """The first of these admin APIs that responds, and its response to a request. Raises CliError that names
    all of them."""
    try:
        return first_to_respond(lambda url: AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get(path), urls)
    except NoneResponded as none:
        failures = [(url, failure) for url, failure in none.failures]
        for _, failure in failures:
            if len(failures) == 1 or not isinstance(failure, CliError) or failure.status:
                raise failure from None  # a node that refuses the request says more
    raise unreachable(f"any of {len(failures)} admin APIs", "; ".join(str(one) for _, one in failures))


def _admin_urls_of(bootstrap: str) -> list[str]:
    """Admin APIs of the cluster's brokers, and last the one of a voter, which may be a controller node that
    cannot serve requests about a broker's logs. DescribeQuorum (KIP-853) returns the voters' addresses, and
    voters know the brokers' admin APIs."""
    from tierlog.cli.client import KafkaClient

    with KafkaClient(bootstrap, timeout_s=PROBE_TIMEOUT_S) as client:
        voters = [url for host, port in client.voters() for url in _urls(host, port)]
    try:
        url, cluster = _first_api(voters, "/v1/cluster")
    except CliError as failure:
        raise CliError(
            f"no admin API of the cluster at {bootstrap} responds: {failure.message}",
            hint="Give one with --admin or TIERLOG_ADMIN.",
            code=ExitCode.UNREACHABLE,
        ) from None
    brokers = cluster["brokers"]
    return [*(one["admin_url"] for one in brokers if one["admin_url"] and not one["fenced"]), url]


def _urls(host: str, port: int) -> list[str]:
    """Possible URLs: the Kafka protocol does not say whether the admin API uses TLS."""
    authority = host_port(host, port)
    has_tls = any(variable(f"TIERLOG_ADMIN_{name}") for name in ("CERTIFICATE", "CA"))
    schemes = ("https", "http") if has_tls else ("http",)
    return [f"{scheme}://{authority}" for scheme in schemes]


def _check_url(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        hint = f"Give its scheme, host and port, for example {DEFAULT_ADMIN}."
        raise usage(f"{url!r} is not the URL of an admin API", hint)


def _reason(refused: urllib.error.HTTPError) -> str:
    text = refused.read().decode(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        return text.strip() or f"{refused.code} {refused.reason}"
    if isinstance(body, dict):
        return str(body.get("error") or body.get("message") or text)
    return text
