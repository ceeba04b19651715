"""The admin URL that a node registers for other nodes."""

import pytest

from tierlog.broker.gateway.admin import url_for_others
from tierlog.config.sources import settings_from

TLS = {f"controller.quorum.ssl.{name}": name for name in ("certificate", "key", "ca")}


@pytest.mark.parametrize(
    ("url", "texts", "reported"),
    [
        (
            "http://10.0.0.1:9644",
            {"advertised.listeners": "PLAINTEXT://a.example:9092"},
            "http://10.0.0.1:9644",
        ),
        ("http://0.0.0.0:9644", {"advertised.listeners": "PLAINTEXT://a.example:1"}, "http://a.example:9644"),
        ("https://[::]:9644", {"advertised.listeners": "PLAINTEXT://[fd00::1]:1"}, "https://[fd00::1]:9644"),
        ("http://0.0.0.0:9644", {}, "http://0.0.0.0:9644"),
        ("http://0.0.0.0:9644", {"controller.quorum.voters": "1@a:7"}, "http://a:7"),
        ("https://0.0.0.0:9644", {"controller.quorum.voters": "1@a:7", **TLS}, "https://a:7"),
    ],
)
def test_admin_url_is_reachable_by_others(url: str, texts: dict[str, str], reported: str) -> None:
    assert url_for_others(url, settings_from(texts)) == reported
