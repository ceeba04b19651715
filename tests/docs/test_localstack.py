"""Runs the start command of localstack/README.md with the documented keys and bucket."""

import os
import subprocess
from pathlib import Path

import pytest
from s3_servers import (
    ACCESS_KEY,
    BUCKET,
    SCRIPT,
    S3Server,
    available,
    await_answer,
    free_port,
)

DOCUMENTED_KEY = "tierlog-secret"
"""localstack/README.md shows it, so it is no secret."""


@pytest.mark.slow
@pytest.mark.parametrize("server", [name for name in available() if name != "moto"])
def test_the_documented_server_starts_with_a_bucket(tmp_path: Path, server: str) -> None:
    port, log = free_port(), tmp_path / "log"
    kept = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    environment = {**kept, "S3_DATA": str(tmp_path / "data")}
    command = [SCRIPT.with_name("start.sh"), server, str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        await_answer(process, f"127.0.0.1:{port}", log)
        reported = log.read_text()
        assert f"s3://{BUCKET}/?endpoint=http://127.0.0.1:{port}&region=us-east-1" in reported
        assert f"AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={DOCUMENTED_KEY}" in reported
        client = S3Server(server, f"127.0.0.1:{port}", tmp_path).minio_client(DOCUMENTED_KEY)
        assert client.bucket_exists(BUCKET)
    finally:
        process.terminate()
        process.wait()
