"""`tierlog generate prometheus`: a real Prometheus server scrapes all nodes by its files."""

from pathlib import Path

import prometheus
import pytest
from cli_inline import call
from waiting import until

from tierlog.cli.local_cluster import LocalCluster
from tierlog.cli.local_security import ADMIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def test_all_nodes_of_a_secure_cluster_are_scraped(tmp_path: Path) -> None:
    target = tmp_path / "monitoring"
    with LocalCluster(tmp_path / "cluster", nodes=2, voters=1, secure=True) as cluster:
        assert cluster.security is not None
        at = ("--bootstrap", cluster.bootstrap, "--client-config", str(cluster.security.client_file))
        ended = call("generate", "prometheus", str(target), "--user", ADMIN, *at)
        assert ended.code == 0, ended
        (target / "prometheus.password").write_text(cluster.security.password(ADMIN))
        settings = target / "prometheus.yml"
        settings.write_text(settings.read_text().replace("15s", "1s"))
        nodes = {node.admin_url.partition("//")[2] for node in cluster}
        assert len(nodes) == 3
        with prometheus.started(target) as server:
            up: dict[str, float] = {}

            def all_are_up() -> bool:
                up.clear()
                up.update({labels["instance"]: value for labels, value in server.query('up{job="tierlog"}')})
                return up == dict.fromkeys(nodes, 1.0)

            until(all_are_up, f"each node is scraped: {up}")
            until(lambda: bool(server.query("kafka_brokers")), "a rule has recorded a series")
