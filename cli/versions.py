"""Versions of a cluster's nodes: what each announces, and whether the upgrade can be finalised (ADR 0050).

`assess` is pure; `observe_versions` asks the admin APIs of all nodes that the cluster knows.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tierlog.cli.admin import PROBE_TIMEOUT_S, AdminApi
from tierlog.cli.errors import CliError
from tierlog.metadata.versions import FORMAT_CHANGES, spans

OLD = "before 0.1.0"
"""Shown as the version of a node that does not have the route for it."""

NOT_FOUND = 404


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBuild:
    """`version` and the ranges are None if the node did not respond; `error` then says why. `format`: the
    finalised version in the node's metadata. `problems`: nodes that it does not understand, and why."""

    node_id: int
    url: str
    version: str | None = None
    commit: str | None = None
    formats: tuple[int, int] | None = None
    wire: tuple[int, int] | None = None
    format: int | None = None
    problems: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The node for the table."""
        build = self.version and (f"{self.version} ({self.commit})" if self.commit else self.version)
        ranges = {
            "formats": spans(self.formats) if self.formats else None,
            "wire": spans(self.wire) if self.wire else None,
        }
        problems = [f"node {one['node_id']}: {one['why']}" for one in self.problems]
        state = self.error or "; ".join(problems) or "ok"
        return {"node": self.node_id, "build": build, **ranges, "format": self.format, "state": state}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """`format`: the finalised version; None if no node knows it. `target`: the highest that a node supports.
    `obstacles`: why it cannot be finalised now. `enables`: what becomes possible."""

    format: int | None
    target: int | None
    obstacles: tuple[str, ...]
    enables: tuple[str, ...]

    @property
    def is_finalized(self) -> bool:
        return not self.obstacles and self.format == self.target


def as_json(nodes: Sequence[NodeBuild], upgrade: Upgrade) -> dict[str, Any]:
    return {**asdict(upgrade), "finalized": upgrade.is_finalized, "nodes": [asdict(node) for node in nodes]}


def assess(nodes: Sequence[NodeBuild]) -> Upgrade:
    """Whether all nodes respond and support the highest format version that any of them does."""
    formats = [node.format for node in nodes if node.format is not None]
    current = max(formats, default=None)
    highest = max((node.formats[1] for node in nodes if node.formats), default=None)
    obstacles = []
    for node in nodes:
        if node.error is not None:
            obstacles.append(f"node {node.node_id} does not respond: {node.error}")
        elif node.formats is None:
            obstacles.append(
                f"node {node.node_id} runs a version {OLD}, without support for rolling upgrades"
            )
        elif highest is not None and node.formats[1] < highest:
            supported = f"tierlog {node.version}, which supports tierlog.format {spans(node.formats)}"
            obstacles.append(
                f"node {node.node_id} is older: it runs {supported}, and others support {highest}"
            )
    enables = [
        f"{version}: {FORMAT_CHANGES.get(version, 'see the changelog of the newer version')}"
        for version in range((current or 0) + 1, (highest or 0) + 1)
    ]
    return Upgrade(
        format=current, target=highest, obstacles=tuple(obstacles), enables=tuple(enables) if current else ()
    )


def observe_versions(api: AdminApi) -> list[NodeBuild]:
    """The versions of all brokers and members of the quorum that the node of this admin API knows."""
    urls = _urls(api)
    with ThreadPoolExecutor(max(1, min(16, len(urls)))) as pool:
        return list(pool.map(_ask, urls, urls.values()))


def _urls(api: AdminApi) -> dict[int, str]:
    quorum, brokers = api.get("/v1/quorum"), api.get("/v1/brokers")["brokers"]
    members = {**quorum["voters"], **quorum.get("learners", {})}
    urls = {int(quorum["node_id"]): api.url, **{int(one): str(url) for one, url in members.items() if url}}
    registered = {int(one["id"]): str(one["admin_url"]) for one in brokers if one["admin_url"]}
    return dict(sorted({**registered, **urls}.items()))


def _ask(node_id: int, url: str) -> NodeBuild:
    try:
        seen = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/versions")
    except CliError as failure:
        if failure.status == NOT_FOUND:
            return NodeBuild(node_id=node_id, url=url, version=OLD)
        return NodeBuild(node_id=node_id, url=url, error=failure.message)
    return NodeBuild(
        node_id=node_id,
        url=url,
        version=seen["version"],
        commit=seen["commit"],
        formats=_pair(seen["formats"]),
        wire=_pair(seen["wire"]),
        format=seen["format"],
        problems=tuple(seen["problems"]),
    )


def _pair(values: Iterable[int]) -> tuple[int, int]:
    low, high = values
    return low, high
