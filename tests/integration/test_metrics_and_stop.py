"""A scrape gets its response although the node stops during it."""

from pathlib import Path

from tierlog.broker.app import Broker
from tierlog.broker.gateway.exposition import exposition
from tierlog.broker.gateway.metrics import families
from tierlog.config.sources import settings_from


async def test_stop_during_a_scrape_does_not_fail_it(tmp_path: Path) -> None:
    texts = {
        "log.dirs": str(tmp_path),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "admin.listener": "127.0.0.1:0",
    }
    broker = Broker(settings_from(texts))
    await broker.start()
    shown = families(broker.admin_node)
    while next(shown)[0] != "kafka_server_fetchsessioncache_numincrementalfetchsessions":
        pass
    await broker.stop()
    rest = await exposition(shown)
    assert b"tierlog_connections_muted 0" in rest
    assert b"process_open_fds" in rest
