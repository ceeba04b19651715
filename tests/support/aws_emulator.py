"""moto's server for all services of AWS that terraform/aws uses, on one address.

Run as a program (`python aws_emulator.py HOST PORT`) it is the server. It ignores policies of buckets: moto
does not read their conditions, so that "deny all without TLS" would deny everything. moto keeps hosts as
entries in a table; `aws_hosts` runs their user data. A zone with a VPC is private, as in AWS.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import s3_servers

REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "emulated", "AWS_SECRET_ACCESS_KEY": "emulated", "AWS_DEFAULT_REGION": REGION}


@contextmanager
def running(directory: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[dict[str, str]]:
    """Environment of programs that use the server."""
    port = port or s3_servers.free_port()
    log = directory / "emulator.log"
    with open(log, "wb") as output:
        process = subprocess.Popen([sys.executable, __file__, host, str(port)], stdout=output, stderr=output)
        try:
            s3_servers.await_answer(process, f"{host}:{port}", log)
            yield {**KEYS, "AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        finally:
            process.terminate()
            process.wait()


def main(host: str, port: str) -> None:
    from moto.iam.access_control import PermissionResult
    from moto.route53.responses import Route53
    from moto.s3.models import FakeBucket, FakeDeleteMarker
    from moto.server import main as serve

    read_flag = Route53._get_bool_param

    def flag(request: Any, name: str, *rest: Any) -> Any:
        if name == "HostedZoneConfig.PrivateZone":
            return request._get_param("VPC.VPCId") is not None
        return read_flag(request, name, *rest)

    Route53._get_bool_param = flag
    FakeDeleteMarker.dispose = lambda *_: None  # moto 5.2 cannot remove one
    FakeBucket.get_permission = lambda *_: PermissionResult.NEUTRAL
    serve(["-H", host, "-p", port])


if __name__ == "__main__":
    main(*sys.argv[1:])
