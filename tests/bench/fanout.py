"""Fan-out: several readers follow a producer that writes one partition at full speed."""

import multiprocessing
import select
import socket
import struct
import time

import raw
import wire
from meter import Meter

MIB = 1 << 20
HEAD_BYTES = 256  # start of a response that is kept: it has everything that precedes the records
CATCH_UP_S = 60.0  # time that readers have after the producer's last record


class Reader:
    """One consumer of partition 0. It parses only the length of the records, and the kernel drops their bytes
    (MSG_TRUNC), so that several readers leave most CPU time to the broker.
    """

    def __init__(self, address, topic, max_bytes, batch_bytes, per_batch):
        self.connection = wire.connect(address)
        self.offset = self.record_bytes = 0
        self._frame, self._offset_at = wire.fetch_request(topic, 0, max_bytes)
        self._batch_bytes, self._per_batch = batch_bytes, per_batch
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._dropped = memoryview(bytearray(MIB))
        self._send_fetch()
        self.connection.setblocking(False)

    def _send_fetch(self):
        struct.pack_into(">q", self._frame, self._offset_at, self.offset)
        self.connection.sendall(self._frame)
        self._received, self._size = 0, 4  # bytes received; size of the frame, 4 until its prefix is read

    def on_readable(self):
        """Receive available bytes. After a complete response, send the next request."""
        head_bytes = min(self._size, HEAD_BYTES)
        if self._received < head_bytes:
            count = self.connection.recv_into(self._head[self._received : head_bytes])
        else:
            count = self.connection.recv_into(
                self._dropped, min(self._size - self._received, MIB), socket.MSG_TRUNC
            )
        if not count:
            raise ConnectionError("the broker closed a reader's connection")
        self._received += count
        if self._received == 4 == self._size:
            self._size += int.from_bytes(self._head[:4], "big")
        elif self._received == self._size:
            _, _, length = wire.fetch_records(self._head[4:], self._size - 4)
            batches = length // self._batch_bytes  # complete ones
            self.offset += batches * self._per_batch
            self.record_bytes += batches * self._batch_bytes
            self._send_fetch()


def run_readers(pipe, count, arguments):
    """Body of the readers' process. It sends None when all readers have sent their first Fetch, receives the
    log end offset, and sends how many bytes each reader has read up to it. If it fails, it sends the
    exception.
    """
    try:
        readers = [Reader(*arguments) for _ in range(count)]
        poller = select.epoll()
        by_fd = {reader.connection.fileno(): reader for reader in readers}
        for fd in (*by_fd, pipe.fileno()):
            poller.register(fd, select.EPOLLIN)
        pipe.send(None)
        end = deadline = None
        while end is None or min(reader.offset for reader in readers) < end:
            if deadline and time.monotonic() > deadline:
                raise TimeoutError(f"at offsets {[reader.offset for reader in readers]}, the end is {end}")
            for fd, _ in poller.poll(1.0):
                if fd in by_fd:
                    by_fd[fd].on_readable()
                else:
                    end, deadline = pipe.recv(), time.monotonic() + CATCH_UP_S
                    poller.unregister(fd)
        pipe.send([reader.record_bytes for reader in readers])
    except Exception as error:
        pipe.send(error)


def fan_out(options, topics, pids, warm):
    """`options.readers` consumers read what one connection produces at full speed, until they have read all.
    Returns MB/s (`mb_s`: produced and consumed together), and how many seconds the readers needed afterwards.
    """
    per_batch = options.records or max(options.batch // 1024, 1)
    batch = wire.record_batch(options.batch, per_batch)
    topic = topics.create(1, raw.retained(options.retain))
    (leader,) = topics.wait_leaders(topic, 1)
    frames = raw.produce_frames(topic, [0], batch, options.acks)
    limit_s = options.warm_s if warm else options.seconds
    pipe, child_pipe = multiprocessing.Pipe()
    arguments = (leader, topic, options.max_partition, len(batch), per_batch)
    readers = multiprocessing.Process(target=run_readers, args=(child_pipe, options.readers, arguments))
    readers.start()
    child_pipe.close()
    try:
        _receive(pipe)
        with Meter(pids) as meter:
            requests, write_s, _ = raw.send_fast(
                leader, frames, options.depth, options.max_bytes, limit_s, len(batch)
            )
            pipe.send(requests * per_batch)
            received = _receive(pipe)
            readers.join()
    finally:
        readers.terminate()
        topics.delete(topic)
    written = requests * len(batch)
    if set(received) != {written}:
        raise RuntimeError(f"{written} bytes written, {received} read")
    size = written + sum(received)
    return {
        "written_mb_s": round(written / 1e6 / write_s, 1),
        "mb_s": round(size / 1e6 / meter.wall, 1),
        "behind_s": round(meter.wall - write_s, 3),
        **meter.report(size),
    }


def _receive(pipe):
    """The next message of the readers' process. Raises the exception that it sends."""
    message = pipe.recv()
    if isinstance(message, Exception):
        raise message
    return message
