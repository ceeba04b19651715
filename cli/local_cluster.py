"""A cluster of processes on this machine: each node broker and voter, or some this and some that.

For `tierlog cluster` and for tests. What it is made of lies in its directory (cluster_files), so that the
same cluster can be started again; its processes are known there too if they are detached (cluster_processes).
"""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tierlog.cli import cluster_files
from tierlog.cli.cluster_files import ClusterPlan, NodePlan
from tierlog.cli.process import TierlogBroker

START_TIMEOUT_S = 90.0
SECRET = "TIERLOG_CONTROLLER_QUORUM_SECRET"  # in the environment: every user may read command lines


class LocalCluster:
    """`nodes` processes, ids from 1 on, that end with this one. `start` returns once all of them serve.
    With `voters`, so many others vote, and the former are only brokers.

    In a directory that holds a cluster already, that one goes on, with these settings if any are given.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        settings: Mapping[str, object] | None = None,
        *,
        voters: int = 0,
        plan: ClusterPlan | None = None,
        detached: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`plan`: as it was loaded or made before, instead of the above. `detached`: the processes outlive
        this one. `environment`: of its processes, over that of this one."""
        self.directory = Path(directory)
        self.plan = plan or cluster_files.load(self.directory) or cluster_files.new_plan(nodes, voters=voters)
        if plan is None and settings:
            self.plan = cluster_files.with_settings(self.plan, settings)
        cluster_files.save(self.directory, self.plan)
        self._detached = detached
        self._environment = {**(environment or {}), SECRET: self.plan.secret}
        common = self.plan.all_settings()
        self.nodes = {node.id: self._broker(node, common) for node in self.plan.nodes}

    def __iter__(self) -> Iterator[TierlogBroker]:
        return iter(self.nodes.values())

    @property
    def bootstrap(self) -> str:
        return self.plan.bootstrap

    def start(self, node_ids: Collection[int] | None = None) -> "LocalCluster":
        """Side by side: none serves before a majority of them has come together. Raises BrokerFailed."""
        chosen = [broker for one, broker in self.nodes.items() if node_ids is None or one in node_ids]
        with ThreadPoolExecutor(max(len(chosen), 1)) as pool:
            pending = [pool.submit(broker.start, START_TIMEOUT_S) for broker in chosen]
            try:
                for started in pending:
                    started.result()
            except KeyboardInterrupt:
                for broker in chosen:
                    broker.kill()  # so that nobody waits for it to serve
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
        broker = TierlogBroker(
            cluster_files.node_directory(self.directory, node.id),
            {**common, "node.id": node.id, "process.roles": ",".join(node.roles)},
            object_store=f"file://{(self.directory / 'objects').absolute()}",
            environment=self._environment,
            detached=self._detached,
        )
        broker.bootstrap, broker.admin_url = node.bootstrap or broker.bootstrap, node.admin_url
        return broker
