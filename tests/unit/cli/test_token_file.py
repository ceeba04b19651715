"""The file by which a job logs in with a delegation token."""

from pathlib import Path

from tierlog.cli.tokens import NewToken, client_settings
from tierlog.client.properties import read_properties


def test_job_gets_address_and_tls_of_the_command_and_none_of_its_secrets(tmp_path: Path) -> None:
    tls = {"security.protocol": "SASL_SSL", "ssl.truststore.location": "/ca.pem", "bootstrap.servers": "b:1"}
    secrets = (
        "sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.key", "ssl.key.pem",
        "basic.auth.user.info", "schema.registry.basic.auth.user.info", "interceptor.api.key",
    )  # fmt: skip
    token = NewToken({"token_id": "id"}, "aG1hYw==")
    file = tmp_path / "job.properties"
    file.write_text(client_settings(token, tls | dict.fromkeys(secrets, "canary")))
    found = read_properties(file)
    assert found.items() >= tls.items()
    assert "canary" not in file.read_text()
    assert 'tokenauth="true"' in found["sasl.jaas.config"]
