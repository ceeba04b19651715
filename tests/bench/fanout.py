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
HEAD_BYTES = 256  # of a Fetch response of one partition: all that comes before its records is in there
CATCH_UP_S = 60.0  # after the producer's last record


class Reader:
    """One consumer. It reads only the length of the records, and the kernel drops the rest
    (MSG_TRUNC), so that several readers leave the cores to the broker.
    """

    def __init__(self, address, topic, max_bytes, batch_bytes, per_batch):
        self.connection = wire.connect(address)
        self.offset = self.received = 0
        self._frame, self._offset_at = wire.fetch_request(topic, 0, max_bytes)
        self._batch_bytes, self._per_batch = batch_bytes, per_batch
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._dropped = memoryview(bytearray(MIB))
        self._ask()
        self.connection.setblocking(False)

    def _ask(self):
        struct.pack_into(">q", self._frame, self._offset_at, self.offset)
        self.connection.sendall(self._frame)
        self._got, self._size = 0, 4

    def readable(self):
        """Receive available bytes. After a complete response, send the next request."""
        head_bytes = min(self._size, HEAD_BYTES)
        if self._got < head_bytes:
            count = self.connection.recv_into(self._head[self._got : head_bytes])
        else:
            count = self.connection.recv_into(
                self._dropped, min(self._size - self._got, MIB), socket.MSG_TRUNC
            )
        if not count:
            raise ConnectionError("the broker closed a reader's connection")
        self._got += count
        if self._got == 4 == self._size:
            self._size += int.from_bytes(self._head[:4], "big")
        elif self._got == self._size:
            _, _, length = wire.fetch_records(self._head[4:], self._size - 4)
            whole = length // self._batch_bytes
            self.offset += whole * self._per_batch
            self.received += whole * self._batch_bytes
            self._ask()


def follow(pipe, count, arguments):
    """In a process of its own: says when the readers wait, gets the log end, sends what each has read."""
    try:
        readers = [Reader(*arguments) for _ in range(count)]
        poller = select.epoll()
        by_number = {reader.connection.fileno(): reader for reader in readers}
        for number in (*by_number, pipe.fileno()):
            poller.register(number, select.EPOLLIN)
        pipe.send(None)
        end = deadline = None
        while end is None or min(reader.offset for reader in readers) < end:
            if deadline and time.monotonic() > deadline:
                raise TimeoutError(f"at offsets {[reader.offset for reader in readers]}, the end is {end}")
            for number, _ in poller.poll(1.0):
                if number in by_number:
                    by_number[number].readable()
                else:
                    end, deadline = pipe.recv(), time.monotonic() + CATCH_UP_S
                    poller.unregister(number)
        pipe.send([reader.received for reader in readers])
    except Exception as error:
        pipe.send(error)


def fan_out(options, topics, pids, warm):
    """options.readers read what one connection writes at full speed, until they have read all of it."""
    per_batch = options.records or max(options.batch // 1024, 1)
    batch = wire.record_batch(options.batch, per_batch)
    topic = topics.create(1, raw.retained(options.retain))
    (leader,) = topics.wait_leaders(topic, 1)
    frames = raw.produce_frames(topic, [0], batch, options.acks)
    limit_s = options.warm_s if warm else options.seconds
    ours, theirs = multiprocessing.Pipe()
    reading = (leader, topic, options.max_partition, len(batch), per_batch)
    follower = multiprocessing.Process(target=follow, args=(theirs, options.readers, reading))
    follower.start()
    theirs.close()
    try:
        _answer(ours)
        with Meter(pids) as meter:
            requests, write_s, _ = raw.send_fast(
                leader, frames, options.depth, options.max_bytes, limit_s, len(batch)
            )
            ours.send(requests * per_batch)
            received = _answer(ours)
            follower.join()
    finally:
        follower.terminate()
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


def _answer(pipe):
    got = pipe.recv()
    if isinstance(got, Exception):
        raise got
    return got
