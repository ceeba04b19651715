"""TLS on a non-blocking socket: decrypts what a channel receives, and encrypts what it sends.

A TlsSocket takes the place of a connection's socket once its handshake is done, and a TlsOutbox that of its
Outbox. OpenSSL works on buffers in memory, so the event loop never waits for it (ADR 0046).

Two invariants. Each receive decrypts all complete records that have arrived, so no bytes wait inside OpenSSL
while the channel waits for the socket. A part of a response leaves the send queue when the socket has
accepted all of its encrypted bytes, so an empty queue means that nothing is left to send.
"""

import contextlib
import socket
import ssl
from collections.abc import Sequence
from itertools import islice
from typing import Any

from tierlog.base.files import FileSlice
from tierlog.broker.net.core.bounds import (
    KIB,
    RECEIVE_BUFFER_BYTES,
    SEND_BUFFERS,
    TLS_BATCH_BYTES,
    TLS_SEND_TURN_BYTES,
)
from tierlog.broker.net.core.send_queue import SendQueue

RECORD_BYTES = 16 * KIB
"""Maximum plaintext of a TLS record (RFC 8446 5.1)."""

RECEIVE_BYTES = RECEIVE_BUFFER_BYTES - 4 * RECORD_BYTES
"""Encrypted bytes of one receive. Their plaintext, and that of a record that began earlier, fit into a
channel's shared buffer."""

FEED_BYTES = 32 * KIB
"""Encrypted bytes that OpenSSL gets at once. Its buffer of a connection grows to this size, and never
shrinks."""

CONTROL_BYTES_MAX = 16 * KIB
"""Maximum bytes of responses to key updates that a client causes without reading any."""


class TlsSocket:
    """A connection after its handshake. Has the methods of a socket that a channel uses."""

    def __init__(
        self, sock: socket.socket, session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
    ) -> None:
        self.raw = sock
        self.session = session
        self.incoming = incoming
        self.outgoing = outgoing
        self.records: list[memoryview] = []
        """Encrypted bytes that the socket has not accepted."""
        self.ended = False
        """Whether the client has sent close_notify, behind which nothing is received."""

    def fileno(self) -> int:
        return self.raw.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        """Like a socket's. 0: the client has closed its side. Raises OSError, also for invalid records."""
        return self._receive([buffer])

    def recvmsg_into(self, buffers: Sequence[memoryview]) -> tuple[int]:
        """Like a socket's, without ancillary data."""
        return (self._receive(buffers),)

    def close(self) -> None:
        """Send close_notify if the socket accepts it at once, and close."""
        if not self.records:  # otherwise it would follow half a record
            with contextlib.suppress(OSError, ValueError):
                self.session.unwrap()
            with contextlib.suppress(OSError):
                self.raw.send(self.outgoing.read())
        self.raw.close()

    def _receive(self, buffers: Sequence[memoryview]) -> int:
        if self.ended:
            return 0
        target = _Target(buffers)
        blocked: OSError | None = None
        count = -1
        try:
            count = self.raw.recv_into(_received)
        except (BlockingIOError, InterruptedError) as failure:
            blocked = failure  # the handshake may have received records
        if self.incoming.pending:
            self._decrypt(target)
        for at in range(0, max(count, 0), FEED_BYTES):
            self.incoming.write(_received[at : min(at + FEED_BYTES, count)])
            self._decrypt(target)
        if self.outgoing.pending > CONTROL_BYTES_MAX:
            raise OSError("the client requests key updates and reads nothing")
        if target.count or self.ended or not count:
            return target.count  # data first: the end is returned by the next receive
        raise blocked or BlockingIOError  # part of a record

    def _decrypt(self, target: "_Target") -> None:
        """Decrypt all complete records."""
        read: Any = self.session.read  # its types know no buffer
        while True:
            buffer = target.rest()
            try:
                count: int = read(len(buffer), buffer)
            except ssl.SSLWantReadError:
                return
            if not count:
                self.ended = True
                return
            target.count += count
            target.at += count


class _Target:
    """The buffers of one receive, and how much of them is filled."""

    __slots__ = ("at", "buffers", "count", "number")

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self.buffers = buffers
        self.number = self.at = self.count = 0

    def rest(self) -> memoryview:
        """The part of the current buffer that is free."""
        while self.at == len(self.buffers[self.number]):
            if self.number + 1 == len(self.buffers):
                raise OSError("more plaintext than was received")
            self.number, self.at = self.number + 1, 0
        return self.buffers[self.number][self.at :]


class TlsOutbox:
    """Sends a queue on a TlsSocket, in batches of TLS_BATCH_BYTES. File slices are read before they are
    encrypted, a batch at a time, so a slow client costs one batch of memory."""

    def __init__(self, sock: TlsSocket, queue: SendQueue) -> None:
        self._socket = sock
        self.queue = queue
        self._plain_bytes = 0
        """Plaintext of the records that the socket has not accepted completely."""

    def send(self) -> int:
        """Send as much as the socket accepts, and stop after TLS_SEND_TURN_BYTES. Returns the plaintext bytes
        sent. Raises OSError."""
        total = 0
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while total < TLS_SEND_TURN_BYTES and (self._socket.records or self.queue.parts):
                if not self._socket.records:
                    self._encrypt()
                self._send_records()
                if not self._socket.records:
                    total += self._plain_bytes
                    self.queue.sent(self._plain_bytes)
                    self._plain_bytes = 0
        return total

    def _send_records(self) -> None:
        records = self._socket.records
        sent = self._socket.raw.sendmsg(records)
        done = 0
        while done < len(records) and sent >= len(records[done]):
            sent -= len(records[done])
            done += 1
        del records[:done]
        if sent:
            records[0] = records[0][sent:]

    def _encrypt(self) -> None:
        """Encrypt the beginning of the queue."""
        sock = self._socket
        used = self._plain_bytes = self._gather()
        for at in range(0, used, RECORD_BYTES):
            record = _plaintext[at : min(at + RECORD_BYTES, used)]
            while record:
                record = record[sock.session.write(record) :]
            sock.records.append(memoryview(sock.outgoing.read()))

    def _gather(self) -> int:
        """Copy the beginning of the queue into the buffer. Returns the number of bytes."""
        used = 0
        for part in islice(self.queue.parts, SEND_BUFFERS):
            target = _plaintext[used : used + len(part)]  # shorter if the buffer is full
            if not isinstance(part, FileSlice):
                target[:] = part[: len(target)]
            elif part.read_into(target) < len(target):
                raise OSError(f"{part.file.path} is shorter than a slice of it")
            used += len(target)
            if used == TLS_BATCH_BYTES:
                break
        return used


_received = memoryview(bytearray(RECEIVE_BYTES))
"""Buffer for encrypted bytes; free again when they are decrypted."""

_plaintext = memoryview(bytearray(TLS_BATCH_BYTES))
"""Buffer for a batch before it is encrypted."""
