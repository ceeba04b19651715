"""Security options of connections to brokers (`kafka.security.protocol`, `kafka.sasl.*`, `kafka.ssl.*`), by
the names of Kafka's clients or of librdkafka. Files are read on the driver and on each executor."""

from collections.abc import Mapping

from tierlog.client.connection import OpenSocket, open_socket
from tierlog.client.security import client_security
from tierlog.config.definitions import InvalidSetting
from tierlog.spark.options.table import SECURITY_NAMES, InvalidOption

SecurityOptions = tuple[tuple[str, str], ...]
"""Names without `kafka.`, and values. Secrets among them: keep them out of messages."""


def security_options(kafka: Mapping[str, str]) -> SecurityOptions:
    """The options of security among those of Kafka. Raises InvalidOption."""
    found = tuple(sorted((name, value) for name, value in kafka.items() if name in SECURITY_NAMES))
    socket_opener(found)
    return found


def socket_opener(security: SecurityOptions) -> OpenSocket:
    """Opens connections to brokers with this security. Raises InvalidOption."""
    if not security:
        return open_socket
    try:
        return client_security(dict(security)).open_socket
    except InvalidSetting as wrong:
        raise InvalidOption(f"kafka.{wrong}") from None
