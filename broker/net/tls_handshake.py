"""TLS handshakes of accepted connections, which become channels once they are done.

OpenSSL's part of a handshake, up to a millisecond of CPU time with RSA keys, runs in threads, so it delays no
other connection. The number of handshakes in progress is bounded, and so are the time and the bytes of each.
Called by `net.listener`.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tierlog.broker.net.core.bounds import HANDSHAKE_BYTES_MAX, KIB
from tierlog.broker.net.core.close_reasons import CloseReason
from tierlog.broker.net.tls_socket import TlsSocket

RECEIVE_BYTES = 16 * KIB
THREADS = 2
"""More do not help: most machines have few CPUs to spare, and the event loop needs one."""

OnDone = Callable[["Handshake", TlsSocket], None]
OnFailed = Callable[["Handshake", CloseReason, str], None]


def handshake_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="tls-handshake")


class Handshake:
    """One handshake in progress. Calls `on_done` or `on_failed` once, unless it is closed before."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        threads: ThreadPoolExecutor,
        on_done: OnDone,
        on_failed: OnFailed,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.begun_at = self.loop.time()
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._threads = threads
        self._on_done, self._on_failed = on_done, on_failed
        self._unsent = b""
        self._received = 0
        self._is_done = self._closed = False
        self._watch(reading=True)

    @property
    def session(self) -> ssl.SSLObject:
        return self._session

    def close(self) -> None:
        """Give up."""
        if not self._closed:
            self._closed = True
            self._watch()
            self._socket.close()

    def _fail(self, why: CloseReason, detail: str) -> None:
        if not self._closed:
            self.close()
            self._on_failed(self, why, detail)

    def _watch(self, *, reading: bool = False, writing: bool = False) -> None:
        self.loop.remove_reader(self._socket)
        self.loop.remove_writer(self._socket)
        if reading:
            self.loop.add_reader(self._socket, self._on_readable)
        if writing:
            self.loop.add_writer(self._socket, self._flush)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as failure:
            return self._fail(CloseReason.NETWORK, str(failure))
        if not data:
            return self._fail(CloseReason.CLIENT, "during the TLS handshake")
        self._received += len(data)
        if self._received > HANDSHAKE_BYTES_MAX:
            detail = f"more than {HANDSHAKE_BYTES_MAX} bytes of a TLS handshake"
            return self._fail(CloseReason.TLS_HANDSHAKE, detail)
        self._incoming.write(data)
        self._watch()  # a thread uses the session until it is done
        step = self.loop.run_in_executor(self._threads, _step, self._session)
        step.add_done_callback(self._stepped)
        return None

    def _stepped(self, step: "asyncio.Future[bool]") -> None:
        if step.cancelled():
            return None
        failure = step.exception()  # read also after the close: asyncio logs exceptions that are not
        if self._closed:
            return None
        if failure is not None:
            with contextlib.suppress(OSError):
                self._socket.send(self._outgoing.read())  # the alert
            return self._fail(CloseReason.TLS_HANDSHAKE, _reason(failure))
        self._is_done = step.result()
        self._unsent = self._outgoing.read()
        return self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return self._watch(writing=True)
        except OSError as failure:
            return self._fail(CloseReason.NETWORK, str(failure))
        if not self._is_done:
            return self._watch(reading=True)
        self._watch()
        self._closed = True  # the channel owns the socket from here on
        done = TlsSocket(self._socket, self._session, self._incoming, self._outgoing)
        return self._on_done(self, done)


def _step(session: ssl.SSLObject) -> bool:
    """Whether the handshake is done. Raises ssl.SSLError if it fails. Runs in a thread."""
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _reason(failure: BaseException) -> str:
    if not isinstance(failure, ssl.SSLError):
        return str(failure)
    if failure.reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "BAD_RECORD_TYPE"):
        return (
            f"the client does not speak TLS: set its security.protocol to SSL or SASL_SSL ({failure.reason})"
        )
    verify = getattr(failure, "verify_message", "")
    return f"{failure.reason}: {verify}" if verify else str(failure.reason or failure)
