"""Blocking client of the admin API, for jobs: requests to any node, and to the leader of a partition.

Reads from the environment, as the command line does: the certificate and the CA for nodes with TLS
(TIERLOG_ADMIN_CERTIFICATE, TIERLOG_ADMIN_KEY, TIERLOG_ADMIN_CA), and a user and password (TIERLOG_ADMIN_USER,
and TIERLOG_ADMIN_PASSWORD or TIERLOG_ADMIN_PASSWORD_FILE) or a token (TIERLOG_ADMIN_TOKEN).
"""

import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from uuid import UUID

from tierlog.base.addresses import is_confidential
from tierlog.base.types import TopicIdPartition
from tierlog.client.racing import NoneResponded, first_to_respond

TIMEOUT_S = 120.0


class AdminUnreachable(Exception):
    """No response. The request may have been executed."""


class AdminRefused(Exception):
    """The node has refused the request. `status`: of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


_defaults: dict[str, str] = {}
"""Values of variables that the environment does not have."""


def set_defaults(values: Mapping[str, str]) -> None:
    """Use these values of TIERLOG_ADMIN_… variables unless the environment has others."""
    _defaults.clear()
    _defaults.update(values)


def variable(name: str) -> str | None:
    """A variable of the environment, or its default."""
    return os.environ.get(name) or _defaults.get(name)


def admin_tls(url: str) -> ssl.SSLContext | None:
    """TLS context with the operator's certificate and CA. Raises OSError."""
    if not url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=variable("TIERLOG_ADMIN_CA"))
    if certificate := variable("TIERLOG_ADMIN_CERTIFICATE"):
        context.load_cert_chain(certificate, variable("TIERLOG_ADMIN_KEY"))
    return context


def admin_credentials(url: str) -> dict[str, str]:
    """The header with the operator's password or token, if the environment has one. Raises ValueError where
    it would travel over a network without TLS, and OSError if the file cannot be read."""
    token, user = os.environ.get("TIERLOG_ADMIN_TOKEN"), os.environ.get("TIERLOG_ADMIN_USER")
    if not token and not user:
        return {}
    if not is_confidential(url):
        raise ValueError(
            "a password or token is sent only over TLS: give an https:// address, or unset "
            "TIERLOG_ADMIN_USER and TIERLOG_ADMIN_TOKEN"
        )
    return {"Authorization": f"Bearer {token}"} if token else basic_credentials(user or "", _password())


def basic_credentials(user: str, password: str) -> dict[str, str]:
    """The header of RFC 7617."""
    pair = f"{user}:{password}".encode()
    return {"Authorization": f"Basic {b64encode(pair).decode()}"}


def _password() -> str:
    if file := os.environ.get("TIERLOG_ADMIN_PASSWORD_FILE"):
        return Path(file).read_text(encoding="utf-8").removesuffix("\n")
    return os.environ.get("TIERLOG_ADMIN_PASSWORD", "")


class ClusterAdmin:
    """`urls`: admin APIs of any nodes of the cluster, separated by commas. Methods raise AdminUnreachable and
    AdminRefused."""

    def __init__(self, urls: str, timeout_s: float = TIMEOUT_S) -> None:
        self._urls = [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]
        self._timeout_s = timeout_s
        self._leaders: dict[TopicIdPartition, str] = {}
        self._topics: dict[UUID, str] = {}

    def leader(self, where: TopicIdPartition) -> str:
        """The admin API of the broker that led a partition when this was asked last."""
        if where not in self._leaders:
            self.refresh()
        if where not in self._leaders:
            if where.topic_id not in self._topics:
                raise AdminRefused(404, f"there is no topic with the id {where.topic_id} any more")
            name = self._topics[where.topic_id]
            raise AdminRefused(503, f"partition {where.partition} of {name} has no leader now")
        return self._leaders[where]

    def refresh(self) -> None:
        """Learn the leaders again."""
        url, cluster = self._cluster()
        brokers = {
            one["id"]: url if one["id"] == cluster["node_id"] else one["admin_url"] or url
            for one in cluster["brokers"]
        }
        self._topics = {UUID(topic["id"]): topic["name"] for topic in cluster["topics"]}
        self._leaders = {
            TopicIdPartition(UUID(topic["id"]), one["partition"]): brokers[one["leader"]]
            for topic in cluster["topics"]
            for one in topic["partitions"]
            if one["leader"] in brokers
        }

    def _cluster(self) -> tuple[str, Any]:
        """The first node that responds, and the cluster as it sees it."""

        def ask(url: str) -> Any:
            return request("GET", f"{url}/v1/cluster", timeout_s=self._timeout_s)

        try:
            return first_to_respond(ask, self._urls)
        except NoneResponded as none:
            for _, failure in none.failures:
                if not isinstance(failure, AdminUnreachable):
                    raise failure from None  # a node that refuses the request says more
            what = "; ".join(str(failure) for _, failure in none.failures)
        raise AdminUnreachable(what or "no admin API is given")

    def get(self, where: TopicIdPartition, path: str, **query: object) -> Any:
        """Ask the leader of a partition."""
        text = urllib.parse.urlencode(query)
        return request("GET", f"{self.leader(where)}{path}?{text}", timeout_s=self._timeout_s)

    def post(self, where: TopicIdPartition, path: str, body: Mapping[str, object]) -> Any:
        return self.post_to(self.leader(where), path, body)

    def post_to(self, url: str, path: str, body: Mapping[str, object]) -> Any:
        return request("POST", url + path, body, timeout_s=self._timeout_s)


def request(method: str, url: str, body: Mapping[str, object] | None = None, *, timeout_s: float) -> Any:
    """The JSON response. Raises AdminUnreachable and AdminRefused."""
    data = None if body is None else json.dumps(body).encode()
    try:
        sent = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        for name, value in admin_credentials(url).items():
            sent.add_unredirected_header(name, value)  # another server must not get them
        with urllib.request.urlopen(sent, timeout=timeout_s, context=admin_tls(url)) as response:
            return json.load(response)
    except urllib.error.HTTPError as refused:
        text = refused.read().decode(errors="replace")
        try:
            text = json.loads(text)["error"]
        except (ValueError, KeyError, TypeError):
            text = text.strip() or str(refused.reason)
        raise AdminRefused(refused.code, text) from None
    except (OSError, HTTPException, ValueError) as failure:
        raise AdminUnreachable(f"cannot reach {url}: {getattr(failure, 'reason', failure)}") from None
