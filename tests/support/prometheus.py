"""A real Prometheus server that scrapes nodes every second, and answers queries."""

import json
import math
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from s3_servers import await_answer, free_port
from waiting import until

GET_PROMETHEUS = Path(__file__).parents[2] / ".ci" / "get-prometheus.sh"
INTERVAL = "1s"
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"((?:(?:increase\(|_bucket)[^\[]*)?\[|(?<=[smhd]):|offset )(\d+)([smhd])")


class Prometheus:
    """A running server. `address`: host:port."""

    def __init__(self, address: str) -> None:
        self.address = address

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=60):
                return True
        except urllib.error.HTTPError:
            return False

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample, now. Values that are no number are left out."""
        result = self._get("query", query=expression)["result"]
        if isinstance(result, list) and result and not isinstance(result[0], dict):
            return [({}, float(result[1]))]
        found = [(one["metric"], float(one["value"][1])) for one in result]
        return [(labels, value) for labels, value in found if not math.isnan(value)]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {one["labels"]["alertname"] for one in self._alerts() if one["state"] == "firing"}

    def _alerts(self) -> list[dict[str, Any]]:
        return list(self._get("alerts")["alerts"])

    def _get(self, path: str, **parameters: str) -> dict[str, Any]:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return dict(json.load(response)["data"])


@contextmanager
def running(
    directory: Path, admin_urls: Sequence[str], *, rules: str = "", login: tuple[str, Path] | None = None
) -> Iterator[Prometheus]:
    """A server in this directory that scrapes the nodes as the job tierlog. `login`: user, and the file with
    its password. `rules`: content of a file with alert rules."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "rules.yml").write_text(rules, encoding="utf-8")
    job: dict[str, Any] = {
        "job_name": "tierlog",
        "static_configs": [{"targets": [url.partition("//")[2] for url in admin_urls]}],
    }
    if login is not None:
        job["basic_auth"] = {"username": login[0], "password_file": str(login[1])}
    config = {
        "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["rules.yml"],
        "scrape_configs": [job],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with started(directory) as server:
        yield server


@contextmanager
def started(directory: Path) -> Iterator[Prometheus]:
    """A server with prometheus.yml of this directory."""
    binary = subprocess.check_output([GET_PROMETHEUS], text=True).strip()
    address = f"127.0.0.1:{free_port()}"
    log_path = directory / "prometheus.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address={address}",
            ],
            cwd=directory,
            stdout=log,
            stderr=log,
        )
    try:
        await_answer(process, address, log_path)
        server = Prometheus(address)
        until(server.is_ready, "Prometheus is ready")
        yield server
    finally:
        process.terminate()
        process.wait(60)


def shortened(rules: str, factor: int, least_s: int, count_s: int) -> str:
    """The rules with all times divided by the factor. Ranges keep `least_s` seconds, as a rate needs two
    samples, and those of an increase or a quantile `count_s`, as events do not come faster than usual."""

    def window(found: re.Match[str]) -> str:
        seconds = int(found.group(2)) * SECONDS[found.group(3)] // factor
        least = count_s if found.group(1).startswith(("increase", "_bucket")) else least_s
        return f"{found.group(1)}{max(seconds, least)}s"

    def lasting(found: re.Match[str]) -> str:
        return f"for: {int(found.group(1)) * SECONDS[found.group(2)] // factor}s"

    return re.sub(r"for: (\d+)([smhd])", lasting, _DURATION.sub(window, rules))
