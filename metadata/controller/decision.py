"""Decision on a command: the records to commit, and the reply to send once they are committed."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from tierlog.metadata.controller.commands import Acknowledged, Reply
from tierlog.metadata.image import ClusterImage
from tierlog.metadata.records import AnyRecord
from tierlog.protocol.errors import ErrorCode

R_co = TypeVar("R_co", bound=Reply, covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    records: tuple[AnyRecord, ...]
    reply: R_co


class Refusal(Exception):
    """A command, or one item of it, is refused. Caught in this package and turned into the reply."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


def done(*records: AnyRecord) -> Decision[Acknowledged]:
    return Decision(records, Acknowledged())


def check_format(image: ClusterImage, version: int) -> None:
    """Raise Refusal if the cluster has an older format version."""
    if image.format_version < version:
        message = f"the cluster's format version is {image.format_version}: "
        message += f"raise tierlog.format to {version} first"
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION, message)
