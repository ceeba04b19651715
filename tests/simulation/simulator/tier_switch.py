"""Operators that switch the tiering of the main topic off and on again (ADR 0025).

Switching it off deletes what is remote: the log then starts where the leader's local log does. An attempt
without `remote.log.delete.on.disable` must be refused. A leader whose local log starts later than that of the
last one uploads nothing once tiering is on again, and reports the gap. Then an operator gives up the records
between, by switching tiering off and on once more.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping

from simulator.broker import SimBroker
from simulator.topic_settings import alter_topic
from simulator.witness import Violation
from simulator.workload import TOPIC
from tierlog.protocol.errors import ErrorCode

SHARE = 0.3
"""Share of the tiered runs in which tiering is switched off and on."""

ENABLE, DELETE = "remote.storage.enable", "remote.log.delete.on.disable"
ON, OFF = {ENABLE: "true", DELETE: "false"}, {ENABLE: "false", DELETE: "true"}
ON_S = (0.2, 2.0)
OFF_S = ((0.0, 0.05), (0.01, 1.0))
"""One of them each time. After the short one, a leader's request to drop what is remote may be late."""
REFUSED = 0.3
"""Share of the attempts to switch it off that would keep what is remote."""

STAYS_OFF = 0.3
"""Share of these runs that end with tiering switched off."""

GAP_CHECK_S = 0.5


class TierSwitch:
    """`done`: completed operations, by kind."""

    def __init__(self, brokers: Mapping[int, SimBroker], rng: random.Random, done: Counter[str]) -> None:
        self._brokers, self._rng, self._done = brokers, rng, done
        self.stays_off = rng.random() < STAYS_OFF

    async def play(self) -> None:
        """Runs until cancelled."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.uniform(*ON_S))
            if rng.random() < REFUSED:
                await self._check_refusal()
                continue
            await self._switch(OFF)
            await asyncio.sleep(rng.uniform(*rng.choice(OFF_S)))
            await self._switch(ON)

    async def end(self) -> None:
        """Leave tiering as the run shall end."""
        await self._switch(OFF if self.stays_off else ON)

    async def close_gaps(self, has_gap: Callable[[], bool]) -> None:
        """Runs until cancelled, from the end of the faults on. `has_gap`: a leader's local log starts above
        the end of what is remote."""
        is_closing = False
        while not self.stays_off:
            await asyncio.sleep(GAP_CHECK_S)
            if has_gap() is is_closing:
                continue
            is_closing = not is_closing
            await self._switch(OFF if is_closing else ON)
            self._done["gaps after tiering was off"] += is_closing

    async def _check_refusal(self) -> None:
        error = await alter_topic(self._brokers, TOPIC, {ENABLE: "false", DELETE: "false"})
        if error is not ErrorCode.INVALID_CONFIG:
            raise Violation(f"tiering was switched off without deleting what is remote: {error.name}")
        self._done["switching off refused"] += 1

    async def _switch(self, settings: Mapping[str, str]) -> None:
        error = await alter_topic(self._brokers, TOPIC, settings)
        if error is not ErrorCode.NONE:
            raise Violation(f"{settings} is refused: {error.name}")
        self._done["tiering switched on" if settings is ON else "tiering switched off"] += 1
