"""The type of the rows of the event catalogue."""

from typing import NamedTuple


class Event(NamedTuple):
    """`says`: the text of the log line. `remedy`: what to do next; "" if nothing has to be done."""

    says: str
    remedy: str = ""
