"""The file of `--client-config`: Kafka's client settings for the connections of the command that runs."""

from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.cli.errors import usage
from tierlog.client.connection import OpenSocket, open_socket

if TYPE_CHECKING:
    pass

_file: ContextVar[Path | None] = ContextVar("client_config", default=None)
HINT = "Use the settings of Kafka's clients: security.protocol, sasl.mechanism, sasl.jaas.config, ssl.…"


def remember(file: Path | None) -> Path | None:
    """Keep the file for `client_config`. Called with the option of each command, also if it is not given."""
    _file.set(file)
    return file


def client_config() -> tuple[str | None, OpenSocket]:
    """bootstrap.servers of the file, and how it opens connections. Without a file, plain ones. Raises
    CliError."""
    file = _file.get()
    if file is None:
        return None, open_socket
    from tierlog.client.security import client_security, read_properties
    from tierlog.config.definitions import InvalidSetting

    try:
        properties = read_properties(file)
        return properties.get("bootstrap.servers"), client_security(properties).open_socket
    except InvalidSetting as wrong:
        raise usage(f"{file}: {wrong}".replace(f"{file}: {file}:", f"{file}:"), hint=HINT) from None
