"""CPU seconds and resident memory of the broker's processes, and of everything else on the machine."""

import os
import time

TICK = os.sysconf("SC_CLK_TCK")


def _stat_fields(pid):
    with open(f"/proc/{pid}/stat") as handle:
        return handle.read().rsplit(")", 1)[1].split()


def cpu_seconds(pid):
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / TICK


def start_time(pid):
    """Process start on the CLOCK_BOOTTIME scale, seconds (10 ms ticks)."""
    return int(_stat_fields(pid)[19]) / TICK


def memory_mib(pid):
    wanted = {"VmHWM": 0, "VmRSS": 0, "RssAnon": 0, "Threads": 0}
    with open(f"/proc/{pid}/status") as handle:
        for line in handle:
            name = line.split(":")[0]
            if name in wanted:
                wanted[name] = int(line.split()[1])
    return wanted["VmHWM"] / 1024, wanted["VmRSS"] / 1024, wanted["RssAnon"] / 1024, wanted["Threads"]


def machine_cpu():
    """(busy, steal) CPU seconds of the whole machine since boot."""
    with open("/proc/stat") as handle:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, handle.readline().split()[1:9])
    return (user + nice + system + irq + softirq) / TICK, steal / TICK


def own_cpu():
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def read_from_disk(pid):
    """Bytes that the process has caused to be read from disk since its start."""
    try:
        with open(f"/proc/{pid}/io") as handle:
            return next(int(line.split()[1]) for line in handle if line.startswith("read_bytes:"))
    except PermissionError:  # the process of another user
        return 0


class Meter:
    """Context manager: use `report(bytes)` after the block."""

    def __init__(self, pids):
        self.pids = pids

    def __enter__(self):
        for pid in self.pids:
            try:
                with open(f"/proc/{pid}/clear_refs", "w") as handle:
                    handle.write("5")  # resets the peak (VmHWM)
            except OSError:
                pass
        self.broker0 = {pid: cpu_seconds(pid) for pid in self.pids}
        self.disk0 = {pid: read_from_disk(pid) for pid in self.pids}
        self.own0, (self.busy0, self.steal0) = own_cpu(), machine_cpu()
        self.t0 = time.monotonic()
        return self

    def __exit__(self, *_):
        self.wall = time.monotonic() - self.t0
        busy, steal = machine_cpu()
        self.broker = sum(cpu_seconds(pid) - self.broker0[pid] for pid in self.pids)
        self.own = own_cpu() - self.own0
        self.disk = sum(read_from_disk(pid) - self.disk0[pid] for pid in self.pids)
        self.other = max(busy - self.busy0 - self.broker - self.own, 0.0)
        self.steal = steal - self.steal0
        memory = [memory_mib(pid) for pid in self.pids] or [(0, 0, 0, 0)]
        self.peak, self.rss, self.anon, self.threads = (sum(column) for column in zip(*memory, strict=True))

    def report(self, payload_bytes=None):
        """`other_cpu_s`: CPU time of all other processes and the kernel. A large value means a disturbed
        run. `disk_read_mb`: read by the brokers from disk, because the page cache did not have it."""
        out = {
            "wall_s": round(self.wall, 3),
            "broker_cpu_s": round(self.broker, 2),
            "broker_cpu_pct": round(100 * self.broker / self.wall, 1),
            "generator_cpu_s": round(self.own, 2),
            "other_cpu_s": round(self.other, 2),
            "steal_s": round(self.steal, 2),
            "disk_read_mb": round(self.disk / 1e6, 1),
            "peak_rss_mib": round(self.peak, 1),
            "rss_mib": round(self.rss, 1),
            "rss_anon_mib": round(self.anon, 1),
            "threads": self.threads,
        }
        if payload_bytes:
            out["broker_cpu_s_per_gb"] = round(self.broker / (payload_bytes / 1e9), 3)
        return out


def wait_quiet(pids, share, quiet_timeout_s):
    """Waits until all but the given processes use less than `share` of a core, or for quiet_timeout_s."""
    deadline = time.monotonic() + quiet_timeout_s
    while time.monotonic() < deadline:
        with Meter(pids) as meter:
            time.sleep(0.5)
        if meter.other / meter.wall < share:
            return True
    return False


def percentiles(samples, scale=1e3):
    """Milliseconds from seconds; the sample count tells how far to trust the last one."""
    if not samples:
        return {"latency_n": 0}
    ordered = sorted(samples)
    last = len(ordered) - 1

    def at(share):
        return round(ordered[min(int(share * len(ordered)), last)] * scale, 3)

    return {
        "p50_ms": at(0.50),
        "p99_ms": at(0.99),
        "p999_ms": at(0.999),
        "max_ms": round(ordered[last] * scale, 3),
        "latency_n": len(ordered),
    }
