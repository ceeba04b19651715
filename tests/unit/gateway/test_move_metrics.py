"""Metrics of moves between log directories."""

from pathlib import Path

from moving_node import Node, image_of

from tierlog.broker.gateway.exposition import exposition
from tierlog.broker.gateway.metrics import move_families

KAFKA = 'kafka_server_replicaalterlogdirsmanager_{}{{client_id="ReplicaAlterLogDirs"}} {}'


async def lines(node: Node) -> list[str]:
    shown = (await exposition(move_families(node.moves))).decode().splitlines()
    return [line for line in shown if not line.startswith("#")]


async def test_metrics_of_directory_moves(tmp_path: Path) -> None:
    node = await Node(tmp_path).start(image_of())
    node.fill(0, 20)
    node.disk.gate.clear()
    node.to("b")
    await node.copying()
    shown = await lines(node)
    assert KAFKA.format("maxlag", 20) in shown
    assert "tierlog_directory_moves 1" in shown
    node.disk.gate.set()
    await node.moved()
    shown = await lines(node)
    assert KAFKA.format("maxlag", 0) in shown
    assert KAFKA.format("failedpartitionscount", 0) in shown
    assert KAFKA.format("deadthreadcount", 0) in shown
    assert 'tierlog_directory_moves_ended_total{end="moved"} 1' in shown
    assert f"tierlog_directory_moves_copied_bytes_total {node.replica.log.size_bytes}" in shown
    node.disk.broken.add(tmp_path / "c")
    node.to("c")
    await node.moved()
    shown = await lines(node)
    assert KAFKA.format("failedpartitionscount", 1) in shown
    assert 'tierlog_directory_moves_ended_total{end="failed"} 1' in shown
    await node.stop()
