"""Authentication of the quorum's HTTP routes with a shared secret.

A request names its cluster, sender, receiver, and the directories in which both keep their votes and log. All
of that and the body are signed with HMAC-SHA256. A response is signed together with the signature of its
request, which a nonce makes unique, so a recorded response does not fit a later request. This is wire version
1 (ADR 0050): the version is a part of the path, so it is signed.

This authenticates nodes on a trusted network. It does not encrypt, and a recorded request can be replayed,
which is harmless for Raft messages but not for commands. Networks that are not trusted need certificates too
(`tls`).
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

CLUSTER, SENDER, RECEIVER, SIGNATURE = (
    "X-Tierlog-Cluster",
    "X-Tierlog-From",
    "X-Tierlog-To",
    "X-Tierlog-Signature",
)
FROM_DIRECTORY, TO_DIRECTORY = "X-Tierlog-From-Directory", "X-Tierlog-To-Directory"
NONCE, INDEX, RESPONSE_SIGNATURE = "X-Tierlog-Nonce", "X-Tierlog-Index", "X-Tierlog-Answer-Signature"
VERSIONS = "X-Tierlog-Versions"  # in a response, if the request announces versions
MAX_BODY_BYTES = 16 << 20


class Unauthenticated(Exception):
    """The signature of the request is missing or wrong."""


class SignedRequest(NamedTuple):
    """A request to one node, signed in advance for another process to send. `url` has no path."""

    url: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The signed fields of a request besides path and body.

    A directory is None if it is unknown. A receiver of -1 means any node. `nonce` is empty if no signed
    response is expected.
    """

    cluster_id: str
    sender: int
    receiver: int
    directory: UUID | None = None
    receiver_directory: UUID | None = None
    nonce: str = ""

    def headers(self, secret: bytes, path: str, body: bytes) -> dict[str, str]:
        return {
            CLUSTER: self.cluster_id,
            SENDER: str(self.sender),
            RECEIVER: str(self.receiver),
            FROM_DIRECTORY: _text(self.directory),
            TO_DIRECTORY: _text(self.receiver_directory),
            SIGNATURE: self._signature(secret, path, body),
            **({NONCE: self.nonce} if self.nonce else {}),
        }

    def _signature(self, secret: bytes, path: str, body: bytes) -> str:
        """The nonce and the path need no separator: a path begins with a slash, and a nonce contains none."""
        directories = f"{_text(self.directory)}\n{_text(self.receiver_directory)}\n"
        signed = f"{self.nonce}{path}\n{self.cluster_id}\n{self.sender}\n{self.receiver}\n{directories}"
        return _hmac(secret, signed, body)

    @classmethod
    def verify(cls, headers: Mapping[str, str], secret: bytes, path: str, body: bytes) -> "Envelope":
        """Raises Unauthenticated unless the signature is valid. Does not check what the sender may do."""
        try:
            envelope = cls(
                headers[CLUSTER],
                int(headers[SENDER]),
                int(headers[RECEIVER]),
                _directory(headers[FROM_DIRECTORY]),
                _directory(headers[TO_DIRECTORY]),
                headers.get(NONCE, ""),
            )
            given = headers[SIGNATURE].encode()
        except (KeyError, ValueError):
            raise Unauthenticated("authentication headers are missing or malformed") from None
        if "/" in envelope.nonce:
            raise Unauthenticated("the nonce is malformed")
        if not hmac.compare_digest(given, envelope._signature(secret, path, body).encode()):
            raise Unauthenticated("the signature is wrong: the nodes have different secrets")
        return envelope


def sign_response(
    secret: bytes, request: str, status: int, index: str, body: bytes, versions: str = ""
) -> str:
    """`request`: the signature of the request; `index`, `versions`: values of these headers, or empty."""
    announced = f" {versions}" if versions else ""
    return _hmac(secret, f"answer {request} {status} {index}{announced}\n", body)


def is_signed_response(
    headers: Mapping[str, str], secret: bytes, request: str, status: int, body: bytes
) -> bool:
    """Whether a node that knows the secret sent this response to the request with this signature. A space in
    the index would let one header stand for both."""
    index = headers.get(INDEX, "")
    expected = sign_response(secret, request, status, index, body, headers.get(VERSIONS, ""))
    given = headers.get(RESPONSE_SIGNATURE, "").encode(errors="surrogateescape")
    return " " not in index and hmac.compare_digest(given, expected.encode())


def _hmac(secret: bytes, head: str, body: bytes) -> str:
    """Does not copy the body, which may be long. `head` may contain header bytes that are not UTF-8."""
    digest = hmac.new(secret, head.encode(errors="surrogateescape"), hashlib.sha256)
    digest.update(body)
    return digest.hexdigest()


def _text(directory: UUID | None) -> str:
    return "" if directory is None else str(directory)


def _directory(text: str) -> UUID | None:
    return UUID(text) if text else None
