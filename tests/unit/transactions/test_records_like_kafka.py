"""The coordinator writes the records that Kafka 4.3.1 wrote for the same requests at the same times."""

from pathlib import Path

from tierlog.broker.transactions.core.formats import decode_key, decode_value
from tierlog.records.batch import iter_batches
from tierlog.records.record import iter_records

PATH = Path(__file__).parents[2] / "golden" / "transactions" / "kafka-4.3.1.bin"


def kafkas(name: str) -> list[bytes]:
    """The values of one id."""
    data = PATH.read_bytes()
    records = [each for at, _ in iter_batches(data) for each in iter_records(data, at, max_bytes=1 << 20)]
    return [each.value for each in records if decode_key(each.key) == name]


class Replay:
    """A bench whose clock shows, at each record, the time of Kafka's."""

    def __init__(self, b, name: str) -> None:
        self.b, self.name, self.values = b, name, kafkas(name)
        b.hold_markers = True
        self.at_record(0)

    def at_record(self, number: int) -> None:
        self.b.now_ms = decode_value(self.name, self.values[number]).updated_ms

    def written(self) -> None:
        """The markers are written."""
        self.at_record(len(self.b.log))
        self.b.write_markers()

    def ask(self, ask, *arguments, **more):
        self.at_record(len(self.b.log))
        return ask(*arguments, name=self.name, **more)


def test_clients_of_version_2(bench):
    b = bench()
    r = Replay(b, "two")
    r.ask(b.init, spare_producer_id=1003)
    r.ask(b.add, (1003, 0), "orders-1", "orders-0", "audit-0")
    r.ask(b.commit, (1003, 0))
    r.written()
    r.ask(b.add, (1003, 1), "orders-2")
    r.ask(b.abort, (1003, 1))
    r.written()
    r.ask(b.abort, (1003, 2))
    r.written()
    assert [value for _, value in b.log] == r.values


def test_clients_of_version_0(bench):
    """Kafka takes the cluster's transaction version when it fences a producer, and tierlog the client's."""
    b = bench()
    r = Replay(b, "golden")
    r.ask(b.init, spare_producer_id=0)
    r.ask(b.add, (0, 0), "orders-2", "orders-0", client_version=0)
    r.ask(b.add, (0, 0), "audit-1", client_version=0)
    r.ask(b.commit, (0, 0), version=0)
    r.written()
    r.ask(b.add, (0, 0), "orders-1", client_version=0)
    r.ask(b.abort, (0, 0), version=0)
    r.written()
    r.ask(b.add, (0, 0), "orders-1", client_version=0)
    assert [value for _, value in b.log] == r.values[:9]
    r.ask(b.init)
    r.written()
    ours = [decode_value("", value) for _, value in b.log[9:]]
    theirs = [decode_value("", value) for value in r.values[9:]]
    assert [(each.state, each.producer_id, each.producer_epoch) for each in ours] == [
        (each.state, each.producer_id, each.producer_epoch) for each in theirs
    ]


def test_epochs_that_run_out(bench):
    b = bench()
    r = Replay(b, "worn")
    first = decode_value("worn", r.values[0])
    b.store(
        transactional_id="worn",
        producer_id=1001,
        producer_epoch=32_766,
        previous_producer_id=1001,
        started_ms=-1,
        updated_ms=first.updated_ms,
    )
    r.ask(b.add, (1001, 32_766), "orders-0")
    r.ask(b.commit, (1001, 32_766), spare_producer_id=1002)
    r.written()
    assert [value for _, value in b.log] == r.values
