"""Consumer group members that join and leave, some without LeaveGroup, in a separate process.

Every second it writes one JSON line with its counts since the last one. Ends when its standard input is
closed.
"""

import argparse
import json
import random
import sys
import threading

from confluent_kafka import Consumer, KafkaException
from tally import Tally
from worker_process import CLOSED

INTERVAL_S = 1.0
GROUP_NAMES = 4  # a broker remembers the offsets of each group for days: no new names
MEMBERS_MOST = 6
TOPICS = ("soak-plain", "soak-compacted")


class Members:
    def __init__(self, bootstrap: str, tally: Tally) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "log_level": 0, "session.timeout.ms": 6000}
        self._tally = tally
        self._rng = random.Random(3)
        self._members: list[Consumer] = []

    def run(self) -> None:
        while True:
            try:
                self._turn()
            except KafkaException as failure:
                self._tally.fault(type(failure).__name__, str(failure))
            except Exception as failure:
                self._tally.fault(f"unexpected {type(failure).__name__}", str(failure))

    def _turn(self) -> None:
        members, rng = self._members, self._rng
        if len(members) < 3 or rng.random() < 0.5:
            group = f"soak-group-{rng.randrange(GROUP_NAMES)}"
            member = Consumer({**self._settings, "group.id": group})
            member.subscribe(list(TOPICS))
            members.append(member)
        else:
            self._close(rng.randrange(len(members)))
        for member in members[:MEMBERS_MOST]:
            self._tally.took(member.consume(100, 0.2))
        while len(members) > MEMBERS_MOST:
            self._close(0)

    def _close(self, number: int) -> None:
        self._members.pop(number).close()
        self._tally.count(CLOSED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap")
    tally = Tally()
    members = Members(parser.parse_args().bootstrap, tally)
    threading.Thread(target=members.run, daemon=True).start()
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.wait(INTERVAL_S):
        print(json.dumps(tally.take()), flush=True)


if __name__ == "__main__":
    main()
