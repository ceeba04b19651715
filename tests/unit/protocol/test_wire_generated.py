"""The committed message classes are what the generator writes."""

from pathlib import Path

from generate_messages import generate

from tierlog.broker.handlers.ordering import ORDERS
from tierlog.protocol import messages
from tierlog.protocol.api import BY_NAME


def test_messages_have_not_drifted() -> None:
    directory = Path(messages.__file__).parent
    committed = {path.name: path.read_text() for path in directory.glob("*.py")}
    assert committed == generate(), "run `.ci/generate_messages.py`"


def test_served_apis_have_messages() -> None:
    assert BY_NAME.keys() >= ORDERS.keys()
