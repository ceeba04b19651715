"""Local cluster: node processes on this machine, with combined or separate broker and controller roles.

Its directory holds its plan (`cluster_files`), so that the same cluster can be started again, and identifies
its detached processes (`cluster_processes`). Used by `tierlog cluster` and by tests.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tierlog.cli import cluster_files
from tierlog.cli.cluster_files import ClusterPlan, NodePlan
from tierlog.cli.local_security import LocalSecurity, close_to_others
from tierlog.cli.process import TierlogBroker

START_TIMEOUT_S = 90.0
SECRET = "TIERLOG_CONTROLLER_QUORUM_SECRET"  # in the environment, because every user can read command lines


class LocalCluster:
    """A cluster of `nodes` processes, with node ids from 1. They end with this process unless detached.
    `start` returns once all of them serve. With `voters`, that many controller nodes are added, and the
    others are only brokers. A `secure` one has TLS, users and ACLs: `security` has the settings of clients.

    If the directory already holds a cluster, that one is used, with these settings added.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        voters: int = 0,
        secure: bool = False,
        plan: ClusterPlan | None = None,
        detached: bool = False,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        """`plan`: replaces `nodes`, `settings`, `voters` and `secure`. `detached`: the node processes outlive
        this one. `environment`: variables added to those of this process. `python`: the program of the
        nodes."""
        self.directory = Path(directory)
        found = plan or cluster_files.load(self.directory)
        self.plan = found or cluster_files.new_plan(nodes, voters=voters, secure=secure)
        if plan is None and settings:
            self.plan = cluster_files.with_settings(self.plan, settings)
        cluster_files.save(self.directory, self.plan)
        self._detached = detached
        self._python = python
        self._environment = {**(environment or {}), SECRET: self.plan.secret}
        self.security = LocalSecurity(self.directory) if self.plan.secure else None
        common = self.plan.all_settings()
        self.nodes = {node.id: self._broker(node, common) for node in self.plan.nodes}

    def __iter__(self) -> Iterator[TierlogBroker]:
        return iter(self.nodes.values())

    @property
    def brokers(self) -> list[TierlogBroker]:
        return [self.nodes[node.id] for node in self.plan.brokers]

    @property
    def bootstrap(self) -> str:
        return self.plan.bootstrap

    def start(self, node_ids: Collection[int] | None = None) -> "LocalCluster":
        """Start nodes in parallel, because none serves before a majority runs. Raises BrokerFailed."""
        if self.security is not None:
            self.security.prepare([broker.data_dir for broker in self.brokers], self.bootstrap)
            for directory in (self.directory / "objects", *(node.data_dir for node in self)):
                close_to_others(directory)
        chosen = [broker for one, broker in self.nodes.items() if node_ids is None or one in node_ids]
        with ThreadPoolExecutor(max(len(chosen), 1)) as pool:
            pending = [pool.submit(broker.start, START_TIMEOUT_S) for broker in chosen]
            try:
                for started in pending:
                    started.result()
            except KeyboardInterrupt:
                for broker in chosen:
                    broker.kill()  # ends the threads that wait for it
                raise
        return self

    def kill(self) -> None:
        for broker in self:
            broker.kill()

    def __enter__(self) -> "LocalCluster":
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _broker(self, node: NodePlan, common: Mapping[str, str]) -> TierlogBroker:
        port = node.port if node.bootstrap else None
        own = {} if self.security is None else self.security.settings(port)
        broker = TierlogBroker(
            cluster_files.node_directory(self.directory, node.id),
            {**own, **common, "node.id": node.id, "process.roles": ",".join(node.roles)},
            object_store=f"file://{(self.directory / 'objects').absolute()}",
            environment=self._environment,
            detached=self._detached,
            python=self._python,
        )
        broker.bootstrap, broker.admin_url = node.bootstrap or broker.bootstrap, node.admin_url
        return broker
