"""Rounds of a chaos run: a healthy cluster, a fault, its heal, and the time to recovery."""

import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from havoc import doctor, faults, figures, upgrades
from havoc.nodes import ChaosFailed, until
from havoc.stage import FAULTS, Fault, Stage
from havoc.workload import Workload

REGISTERED = (faults, upgrades)
"""Modules that enter their faults into FAULTS."""

REGAIN_WITHIN_S = 30.0
RECOVER_WITHIN_S = 60.0
TIERED_WITHIN_S = 60.0
LEAST_OF_OFFERED = 0.8


@dataclass(slots=True)
class Round:
    """`unavailable_s`: the longest time in which a partition acknowledged nothing, from the fault to the end
    of the round; `after_heal_s`: from the heal until all partitions did; `regained_s`: until 95 % again.
    `found`: what `tierlog doctor` named, if it was asked."""

    fault: str
    what: str = ""
    baseline: float = 0.0  # acknowledgements a second
    unavailable_s: float = 0.0
    after_heal_s: float | None = None
    regained_s: float | None = None
    found: doctor.Found | None = None
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.what or self.fault}: {self.baseline:.0f}/s before, {self.unavailable_s:.1f} s without"
        text += f", served {_seconds(self.after_heal_s)} and 95 % {_seconds(self.regained_s)} after the heal"
        text += f"; doctor: {self.found}" if self.found else ""
        return text + "".join(f"; {problem}" for problem in self.problems)


def chosen(names: Sequence[str], rounds: int, rng: random.Random) -> list[Fault]:
    """Faults in random order, each equally often."""
    found: list[str] = []
    while len(found) < rounds:
        found += rng.sample(list(names), len(names))
    return [FAULTS[name] for name in found[:rounds]]


def play(
    stage: Stage,
    workload: Workload,
    fault: Fault,
    *,
    baseline_s: float,
    fault_s: float,
    offered: float,
    tell: Callable[[str], None],
    asks_doctor: bool = False,
) -> Round:
    """`offered`: records per second that producers send. With `asks_doctor`, the fault lasts until `tierlog
    doctor` names it, or its time for that is over. Raises ChaosFailed if the cluster is unhealthy before the
    fault."""
    done = Round(fault.name)
    await_in_sync(stage)
    until(lambda: _is_served(workload, offered), "what is offered is taken", RECOVER_WITHIN_S)
    began = workload.mark("baseline")
    time.sleep(baseline_s)
    hurt = workload.now()
    # no more than is offered: what had waited for the first leaders may come within these seconds
    done.baseline = min(figures.rate(workload.acks, began, hurt), offered)
    if done.baseline < LEAST_OF_OFFERED * offered:
        done.problems.append(
            f"invalid: {done.baseline:.0f}/s were acknowledged before the fault, of {offered:g}"
        )
    healed = hurt
    try:
        with fault.play(stage) as done.what:
            entered = workload.mark(done.what)
            hurt = hurt if fault.hurts_early else entered
            tell(done.what)
            done.found = doctor.find(stage.cluster, fault.name) if asks_doctor else None
            time.sleep(max(0.0, fault_s - (done.found.seconds or doctor.WITHIN_S if done.found else 0.0)))
            healed = workload.mark("heal")
        regained = until(lambda: _regained(workload, healed, done.baseline), "95 % again", REGAIN_WITHIN_S)
        tell(f"healed; throughput is back after {regained:.1f} s")
        until(lambda: in_sync(stage), "all replicas are in sync", RECOVER_WITHIN_S)
        if stage.tiered:
            _await_tiers(stage)
    except Exception as failure:  # whatever it is, it is what the round has shown
        done.problems.append(f"{type(failure).__name__}: {failure}")
    _measure(done, fault, workload, hurt, healed)
    if done.found and done.found.is_late:
        done.problems.append(f"doctor has not named it within {doctor.WITHIN_S:g} s: {done.found}")
    workload.mark("end of the round")
    return done


def hurt(stage: Stage, workload: Workload, fault: Fault, fault_s: float, tell: Callable[[str], None]) -> None:
    """Inject a fault and heal it, without measuring its cost."""
    with fault.play(stage) as what:
        workload.mark(what)
        tell(what)
        time.sleep(fault_s)
    workload.mark("heal")


def _measure(done: Round, fault: Fault, workload: Workload, hurt: float, healed: float) -> None:
    end = workload.now()
    done.unavailable_s = figures.unavailable_s(workload.acks, hurt, end)
    done.after_heal_s = figures.served_again_s(workload.acks, healed, end)
    done.regained_s = figures.regained_s(workload.acks, healed, end, done.baseline)
    if done.regained_s is None or done.regained_s > REGAIN_WITHIN_S:
        done.problems.append(f"not at 95 % within {REGAIN_WITHIN_S:g} s")
    if fault.within_s is not None and done.unavailable_s > fault.within_s:
        done.problems.append(f"{done.unavailable_s:.1f} s without, {fault.within_s:g} are allowed")


def _regained(workload: Workload, healed: float, baseline: float) -> bool:
    return figures.regained_s(workload.acks, healed, workload.now(), baseline) is not None


def _is_served(workload: Workload, offered: float) -> bool:
    now = workload.now()
    return figures.rate(workload.acks, now - figures.WINDOW_S, now) >= LEAST_OF_OFFERED * offered


def await_in_sync(stage: Stage) -> None:
    """Wait until all replicas are in sync and preferred replicas are leaders. Raises ChaosFailed."""
    until(lambda: in_sync(stage), "all replicas are in sync", RECOVER_WITHIN_S)
    until(lambda: _elected(stage), "the preferred replicas lead", RECOVER_WITHIN_S)


def _await_tiers(stage: Stage) -> None:
    """Wait until all current records are in the object store, once their segments are full."""
    due: dict[int, int] = {}

    def looked() -> bool:
        due.update((tier["partition"], tier["high_watermark"]) for tier in stage.tiers())
        return True

    def is_remote() -> bool:
        return all((tier["remote_end_offset"] or 0) >= due[tier["partition"]] for tier in stage.tiers())

    until(looked, "leaders report their tier status", RECOVER_WITHIN_S)
    until(is_remote, "uploads continue", TIERED_WITHIN_S)


def in_sync(stage: Stage) -> bool:
    rows = stage.partitions()
    return all(set(row["in_sync"]) == set(row["replicas"]) for row in rows)


def _elected(stage: Stage) -> bool:
    rows = stage.partitions()
    wanted = [[row["topic"], row["partition"]] for row in rows if row["leader"] != row["replicas"][0]]
    if wanted:
        stage.controller().admin.post("/v1/partitions/elect", {"partitions": wanted})
    return not wanted


def check_faults(names: Sequence[str], shape: Collection[str]) -> None:
    unknown = [name for name in names if name not in FAULTS]
    if unknown:
        raise ChaosFailed(f"no such faults: {', '.join(unknown)}; there are {', '.join(FAULTS)}")
    for fault in map(FAULTS.__getitem__, names):
        if fault.only and fault.only not in shape:
            raise ChaosFailed(f"{fault.name} is only for --{fault.only}")


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"
