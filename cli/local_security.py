"""Security of local clusters, and of brokers that tests start: certificates, users and settings.

One directory has all of it, readable by its owner only. It is filled once; later starts find what is there.
Called by `local_cluster` and `process`; the pytest plugin imports it in every session, so it imports
cryptography only when it is needed.
"""

import os
import secrets
import ssl
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tierlog.client.properties import properties_text
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.protocol.sasl.scram import DEFAULT_ITERATIONS

if TYPE_CHECKING:
    from tierlog.metadata.controller.commands import CredentialChange

DIRECTORY = "security"
"""Name of the directory, in that of a cluster or a broker."""

CLIENT_FILE = "admin.properties"
ADMIN, BROKER = "admin", "broker"
"""Super users: clients of the administrator, and brokers as clients of each other."""

MECHANISM = "SCRAM-SHA-512"
HOSTS = ("localhost", "127.0.0.1", "::1")
CERTIFICATE_DAYS = 3650
"""Nothing renews the certificates of a cluster that a developer keeps."""

_LOGIN = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'
_CERTIFICATE_FILE, _LOGINS_FILE = f"{BROKER}.pem", "logins.properties"
_AUDIT_DIRECTORY = "audit"  # beside DIRECTORY
LOGIN_VALID_MS = "3600000"


class LocalSecurity:
    """TLS, SCRAM users and ACLs for brokers on this machine. Methods raise OSError."""

    def __init__(self, directory: Path, hosts: tuple[str, ...] = HOSTS) -> None:
        """`directory`: of the cluster or of the broker. `hosts`: names and addresses of the brokers."""
        self._hosts = hosts
        self.directory = directory.absolute() / DIRECTORY

    @property
    def authority(self) -> Path:
        """Certificate of the CA that clients trust."""
        from tierlog.cli.certificates import CA_FILE

        return self.directory / CA_FILE

    @property
    def client_file(self) -> Path:
        """Kafka's client settings of the administrator."""
        return self.directory / CLIENT_FILE

    def prepare(self, data_dirs: Iterable[Path], bootstrap: str, users: Iterable[str] = ()) -> None:
        """Create what is missing, and give brokers that never ran their first users: the administrator, that
        of the brokers, and `users`. `bootstrap`: for the file of the administrator."""
        from tierlog.base.clock import SystemClock
        from tierlog.base.files import OsFiles
        from tierlog.broker.security.first_users import is_used, write_first_users
        from tierlog.cli.certificates import LocalAuthority

        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = self.directory.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self.directory} must be this user's, and closed to others: chmod 700")
        if not (self.directory / _CERTIFICATE_FILE).exists():
            authority = LocalAuthority(self.directory, SystemClock().now_ms() // 1000, CERTIFICATE_DAYS)
            authority.issue(BROKER, self._hosts)
        for user in (ADMIN, BROKER, *users):
            if not self._password_file(user).exists():
                _write(self._password_file(user), f"{secrets.token_hex(24)}\n")
        _write(self.directory / _LOGINS_FILE, properties_text({BROKER: self._login(BROKER)}))
        self.write_client_file(bootstrap)
        files = OsFiles()
        for data_dir in data_dirs:
            close_to_others(data_dir)
            if not is_used(files, data_dir):
                changes = [self._credential(user) for user in dict.fromkeys((ADMIN, BROKER, *users))]
                write_first_users(files, data_dir, tuple(changes))

    def write_client_file(self, bootstrap: str) -> None:
        _write(self.client_file, properties_text(self.client_properties(bootstrap)))

    def settings(self, port: int | None, *, login: str = "") -> dict[str, str]:
        """Settings of a node. `port`: for clients and brokers; None if it is a controller node alone.
        `login`: password of the brokers in place of a reference to the file that has it."""
        common = {
            "sasl.enabled.mechanisms": MECHANISM,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN};User:{BROKER}",
            "admin.authentication": "basic",
            "admin.admins": f"User:{ADMIN}",
            "audit.log.dir": str(self.directory.parent / _AUDIT_DIRECTORY),
            "connections.max.reauth.ms": LOGIN_VALID_MS,
        }
        if port is None:
            return common
        return {
            **common,
            "listeners": f"SASL_SSL://127.0.0.1:{port}",
            "ssl.keystore.location": str(self.directory / _CERTIFICATE_FILE),
            "ssl.truststore.location": str(self.authority),
            "sasl.jaas.config": _LOGIN.format(BROKER, login)
            if login
            else f"${{file:{self.directory / _LOGINS_FILE}:{BROKER}}}",
        }

    def password(self, user: str) -> str:
        """Password of a user that `prepare` created."""
        return self._password_file(user).read_text(encoding="utf-8").removesuffix("\n")

    def client_properties(self, bootstrap: str, user: str = ADMIN) -> dict[str, str]:
        """Settings of Kafka's Java clients and tools, and of `--client-config`."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": self._login(user),
        }

    def librdkafka_settings(
        self, bootstrap: str, user: str = ADMIN, password: str | None = None
    ) -> dict[str, Any]:
        """Settings of confluent-kafka and other clients that use librdkafka."""
        return {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password(user) if password is None else password,
        }

    def python_settings(self, bootstrap: str, user: str, password: str | None) -> dict[str, Any]:
        """Keyword arguments of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(self.authority)),
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": user,
            "sasl_plain_password": self.password(user) if password is None else password,
        }

    def _login(self, user: str) -> str:
        return _LOGIN.format(user, self.password(user))

    def _credential(self, user: str) -> "CredentialChange":
        from tierlog.cli.passwords import new_verifier
        from tierlog.metadata.controller.commands import CredentialChange
        from tierlog.metadata.scram import ScramMechanism

        verifier = new_verifier(MECHANISM, self.password(user), DEFAULT_ITERATIONS)
        return CredentialChange(user=user, mechanism=ScramMechanism.SHA_512, verifier=verifier)

    def _password_file(self, user: str) -> Path:
        return self.directory / f"{user}.password"


def close_to_others(directory: Path) -> None:
    """Create a directory for this user only, or close it: with verifiers of passwords, or with records that
    only ACLs give access to."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)


def _write(file: Path, text: str) -> None:
    """Replace the file at once, readable by its owner only."""
    new = file.with_name(f".{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(
        os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as opened:
        opened.write(text)
    new.rename(file)
