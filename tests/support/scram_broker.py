"""A broker of one node whose clients log in with SCRAM, and its users."""

from pathlib import Path
from typing import Any

from canaries import canary
from cli_inline import Ended, call
from confluent_kafka.admin import AdminClient

from tierlog.cli.process import TierlogBroker

MECHANISM = "SCRAM-SHA-512"
ADMIN = "admin"
"""The super user."""


class ScramBroker:
    """`settings` may name an authorizer; without one, every user may do everything."""

    def __init__(self, directory: Path, settings: dict[str, object], *users: str) -> None:
        self.directory = directory
        self.passwords = {user: canary(user) for user in (ADMIN, *users)}
        self._admins: dict[str, AdminClient] = {}
        login = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "super.users": f"User:{ADMIN}"}
        self.broker = TierlogBroker(directory / "node", login | settings)
        words = ["storage", "format", "--set", f"log.dirs={self.broker.data_dir}"]
        for user, password in self.passwords.items():
            file = directory / f"{user}.password"
            file.write_text(f"{password}\n")
            words += ["--add-scram", f"{MECHANISM}=[name={user},password-file={file}]"]
        ended = call(*words)
        assert ended.code == 0, ended.stderr

    def login(self, user: str, password: str | None = None) -> dict[str, Any]:
        """Settings of a client of librdkafka."""
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.passwords.get(user, "") if password is None else password,
            "client.id": f"{user}s laptop",
            "log_level": 0,
        }

    def admin(self, user: str = ADMIN) -> AdminClient:
        """The same client each time: one that is collected as garbage gives up its requests."""
        if user not in self._admins:
            self._admins[user] = AdminClient(self.login(user))
        return self._admins[user]

    def tierlog(self, *words: str) -> Ended:
        """Run a command as ADMIN."""
        file = self.directory / "admin.properties"
        file.write_text(
            f"bootstrap.servers={self.broker.bootstrap}\nsecurity.protocol=SASL_PLAINTEXT\n"
            f"sasl.mechanism={MECHANISM}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{ADMIN}" password="{self.passwords[ADMIN]}";\n'
        )
        ended = call(*words, "--client-config", str(file))
        assert ended.code == 0, ended.stderr
        return ended
