"""Who speaks on the quorum's HTTP routes: cluster, sender, receiver, and the directories in which both keep
their promises, signed with the shared secret; and who answers.

HMAC-SHA256 over all of it and the body. An answer is signed over the signature of its question, in which a
nonce makes each another, so that no recorded answer does for a later question. This authenticates nodes on a
trusted network; it does not hide what they say, and a recorded request can be replayed (harmless to Raft, not
to commands): networks that are not trusted need certificates as well (`tls`).
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
MAX_BODY_BYTES = 16 << 20


class Unauthenticated(Exception):
    """The request is not from a node of this cluster, or not for this node."""


class SignedRequest(NamedTuple):
    """To be sent to one node, by whoever has it. `url`: of the node, without the path."""

    url: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Envelope:
    """What is signed besides the body. Directories are None where they are not known; a receiver of -1 is
    whoever reads it. `nonce`: of a question; empty where no signed answer is expected."""

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
        """A path begins with a slash, and no nonce does."""
        directories = f"{_text(self.directory)}\n{_text(self.receiver_directory)}\n"
        signed = f"{self.nonce}{path}\n{self.cluster_id}\n{self.sender}\n{self.receiver}\n{directories}"
        return _hmac(secret, signed, body)

    @classmethod
    def check(cls, headers: Mapping[str, str], secret: bytes, path: str, body: bytes) -> "Envelope":
        """Raises Unauthenticated unless the signature is right; says nothing about who may do what."""
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
            raise Unauthenticated("headers are missing or malformed") from None
        if "/" in envelope.nonce:
            raise Unauthenticated("the nonce is malformed")
        if not hmac.compare_digest(given, envelope._signature(secret, path, body).encode()):
            raise Unauthenticated("the signature is wrong: the nodes' secrets differ")
        return envelope


def sign_response(secret: bytes, question: str, status: int, index: str, body: bytes) -> str:
    """`question`: the signature of the request; `index`: the header of that name, or empty."""
    return _hmac(secret, f"answer {question} {status} {index}\n", body)


def is_signed_response(
    headers: Mapping[str, str], secret: bytes, question: str, status: int, body: bytes
) -> bool:
    """Whether a node that knows the secret gave this answer to this question."""
    right = sign_response(secret, question, status, headers.get(INDEX, ""), body)
    given = headers.get(RESPONSE_SIGNATURE, "").encode(errors="surrogateescape")
    return hmac.compare_digest(given, right.encode())


def _hmac(secret: bytes, head: str, body: bytes) -> str:
    """The body may be long: it is not copied. A header may be of any bytes."""
    made = hmac.new(secret, head.encode(errors="surrogateescape"), hashlib.sha256)
    made.update(body)
    return made.hexdigest()


def _text(directory: UUID | None) -> str:
    return "" if directory is None else str(directory)


def _directory(text: str) -> UUID | None:
    return UUID(text) if text else None
