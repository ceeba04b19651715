"""terraform/aws/bin/make-secrets: what it creates once, renews, and refuses. Parameters are files here."""

import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from terraform_cli import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AWS = """\
#!/bin/sh
# `aws ssm` of a test: parameters are files below $PARAMETERS.
set -eu
action=$2
shift 2
name= value= overwrite=no
while [ $# -gt 0 ]; do
  case $1 in
    --name) name=$2; shift ;;
    --value) value=${2#file://}; shift ;;
    --overwrite) overwrite=yes ;;
  esac
  shift
done
case $action in
  get-parameters-by-path)
    cd "$PARAMETERS" && find . -type f | cut -c2- | grep -Ev "/(${UNLISTED:-none})" || :
    [ -z "${UNLISTED:-}" ] || { echo ThrottlingException >&2; exit 254; } ;;
  get-parameter) cat "$PARAMETERS$name" ;;
  put-parameter)
    [ "$(basename "$name")" != "${FAILS:-}" ] || exit 254
    [ ! -e "$PARAMETERS$name" ] || [ $overwrite = yes ] || { echo ParameterAlreadyExists >&2; exit 254; }
    mkdir -p "$PARAMETERS$(dirname "$name")"
    cp "$value" "$PARAMETERS$name" ;;
esac
"""


class Parameters:
    def __init__(self, directory: Path) -> None:
        self._root = directory / "parameters"
        self._root.mkdir()
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name, text in {
            "aws": AWS,
            "tierlog": f'#!/bin/sh\nexec {sys.executable} -m tierlog "$@"\n',
        }.items():
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)

    def make(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [ROOT / "terraform/aws/bin/make-secrets", "/t/orders", "orders.internal", "key"],
            env={
                **os.environ,
                "PATH": f"{self._bin}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT / "src"),
                "PARAMETERS": str(self._root),
                **environment,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def path(self, name: str) -> Path:
        return self._root / "t/orders/secrets" / name

    def contents(self) -> dict[str, bytes]:
        top = self.path("")
        return {str(file.relative_to(top)): file.read_bytes() for file in top.rglob("*") if file.is_file()}

    def has_a_pair(self) -> bool:
        """Whether the CA signed the certificate of the hosts, which has its key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.path("nodes/tls.pem"))
        checked = ["openssl", "verify", "-CAfile", self.path("nodes/ca.pem"), self.path("nodes/tls.pem")]
        return subprocess.run(checked, capture_output=True, check=False).returncode == 0


@pytest.fixture
def parameters(tmp_path: Path) -> Parameters:
    return Parameters(tmp_path)


def test_secrets_are_created_once_and_a_certificate_is_renewed(parameters: Parameters) -> None:
    assert parameters.make().returncode == 0
    first = parameters.contents()
    assert set(first) == {
        *("nodes/quorum", "nodes/ca.pem", "nodes/tls.pem", "operator/ca.key"),
        *(f"brokers/{user}.password" for user in ("admin", "broker", "prometheus")),
    }
    assert parameters.has_a_pair()
    again = parameters.make()
    assert (again.returncode, again.stdout, parameters.contents()) == (0, "", first)
    assert parameters.make(RENEW="certificate").returncode == 0
    changed = {name for name, content in parameters.contents().items() if content != first[name]}
    assert changed == {"nodes/tls.pem"} and parameters.has_a_pair()


def test_nothing_changes_without_the_key_of_the_ca(parameters: Parameters) -> None:
    """Operators may keep it elsewhere: another CA would end the trust between the hosts."""
    assert parameters.make().returncode == 0
    key = parameters.path("operator/ca.key").read_bytes()
    parameters.path("operator/ca.key").unlink()
    kept = parameters.contents()
    assert parameters.make().returncode == 0
    refused = parameters.make(RENEW="certificate")
    assert refused.returncode == 1 and "put your copy back" in refused.stderr
    assert parameters.contents() == kept
    parameters.path("operator/ca.key").write_bytes(key)
    assert parameters.make(RENEW="certificate").returncode == 0 and parameters.has_a_pair()


def test_run_that_ended_before_its_ca_was_stored_can_be_repeated(parameters: Parameters) -> None:
    assert parameters.make(FAILS="ca.pem").returncode != 0
    assert parameters.make().returncode == 0 and parameters.has_a_pair()


def test_list_that_breaks_off_creates_nothing(parameters: Parameters) -> None:
    """The next page had the certificates. Another CA would replace the key of the one that hosts trust."""
    assert parameters.make().returncode == 0
    first = parameters.contents()
    refused = parameters.make(UNLISTED="operator|nodes/[ct]")
    assert refused.returncode != 0 and "ThrottlingException" in refused.stderr
    assert parameters.contents() == first
