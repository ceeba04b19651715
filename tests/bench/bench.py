#!/usr/bin/env python3
"""Runs a load case against a Kafka-compatible broker. Prints a JSON line per repetition, then a summary.

    bench.py --bootstrap 127.0.0.1:19092 --pid 123[,456] CASE [options]

The result of the warm-up run is discarded. Then --reps repetitions follow, each with a new topic.
The summary line has [min, median, max] of every figure.
"""

import argparse
import json
import statistics
import sys
import time

import cleaning
import clients
import exactly_once
import fanout
import raw
import secure
import system
from meter import wait_quiet
from topics import Topics

MIB = 1 << 20
NOT_SHOWN = (
    "label",
    "case",
    "pid",
    "bootstrap",
    "classpath",
    "start",
    "stop",
    "pid_file",
    "tls",
    "sasl",
    "ca",
)
"""Options that a result line does not repeat under `options`."""

CASES = {
    "raw-produce": raw.raw_produce,
    "raw-fetch": raw.raw_fetch,
    "fan-out": fanout.fan_out,
    "produce-while-compacting": cleaning.produce_while_compacting,
    "rd-produce": clients.rd_produce,
    "rd-e2e": clients.rd_e2e,
    "rd-consume": clients.rd_consume,
    "java-perf": clients.java_perf,
    "transactions": exactly_once.transactions,
    "copy": exactly_once.copy,
    "visible": exactly_once.visible,
    "transactional-produce": exactly_once.transactional_produce,
    "rebalance": exactly_once.rebalance,
    "heartbeats": exactly_once.heartbeats,
    "logins": secure.logins,
    "login-storm": secure.login_storm,
    "acls": secure.acls,
    "connections": system.connections,
    "fairness": system.fairness,
    "idle": system.idle,
    "create-topic": system.create_topic,
}


def summary(results):
    """[min, median, max] of each figure over all repetitions."""
    figures = {}
    for key in results[0]:
        values = [result[key] for result in results]
        figures[key] = [min(values), round(statistics.median(values), 3), max(values)]
    return figures


def size(text):
    """Number of bytes of an option: "512", "64k", "1.5m" or "2g", in powers of 1024. Raises ValueError."""
    unit = {"k": 1 << 10, "m": MIB, "g": 1 << 30}.get(text[-1].lower())
    return int(float(text[:-1]) * unit) if unit else int(text)


def argument_parser():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument(
        "--pid", default="", help="process ids of all nodes, comma-separated; their usage is summed"
    )
    parser.add_argument("--label", default="", help="copied into every line of output")
    parser.add_argument("case", choices=[*CASES, "startup", "fill", "tier-fill", "delete"])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-s", type=float, default=5.0, help="seconds of the warm-up run; 0: none")
    parser.add_argument("--rest", type=float, default=1.5, help="seconds of pause before each repetition")
    parser.add_argument(
        "--quiet",
        type=float,
        default=0.2,
        help="share of one core that other processes may use during a repetition",
    )
    parser.add_argument("--retries", type=int, default=3, help="how many disturbed repetitions are repeated")
    parser.add_argument(
        "--quiet-timeout",
        type=float,
        default=30.0,
        help="seconds to wait until other processes use less than --quiet",
    )
    parser.add_argument("--max-bytes", type=size, default=4 << 30, help="a run ends after this or --seconds")
    parser.add_argument("--batch", type=size, default=16 << 10, help="bytes of one record batch (raw cases)")
    parser.add_argument("--records", type=int, default=0, help="records in a batch (default: 1 KiB each)")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--rf", type=int, default=1, help="replication factor of topics that it creates")
    parser.add_argument("--connections", type=int, default=1, help="raw-produce: connections to each leader")
    parser.add_argument(
        "--retain",
        type=size,
        default=0,
        help="raw-produce, fan-out, java-perf: retention.bytes, divided among the partitions",
    )
    parser.add_argument("--depth", type=int, default=5, help="requests in flight on a connection")
    parser.add_argument("--acks", type=int, default=1)
    parser.add_argument(
        "--rate", type=float, default=0, help="per second: requests (raw), messages (rd, java)"
    )
    parser.add_argument("--size", type=size, default=1024, help="bytes of a message (rd, java)")
    parser.add_argument("--linger", type=float, default=5, help="linger.ms (rd)")
    parser.add_argument("--batch-consume", action="store_true")
    parser.add_argument(
        "--max-partition", type=size, default=MIB, help="maximum bytes per partition of a Fetch"
    )
    parser.add_argument("--fill-bytes", type=size, default=2 << 30)
    parser.add_argument("--topic", default=None)
    parser.add_argument(
        "--to-offset",
        type=int,
        default=0,
        help="raw-fetch: offset at which to start again from 0 (0: log end)",
    )
    parser.add_argument(
        "--segment", type=size, default=64 * MIB, help="tier-fill: segment.bytes and local.retention.bytes"
    )
    parser.add_argument("--count", type=int, default=5_000_000, help="records of java-perf, at most of copy")
    parser.add_argument("--classpath", help="java-perf: class path of Kafka's command line tools")
    parser.add_argument("--readers", type=int, default=5, help="fan-out: consumers of the partition")
    parser.add_argument("--request", choices=["metadata", "produce"], default="metadata")
    parser.add_argument("--start", help="startup: shell command that starts the broker")
    parser.add_argument("--stop", help="startup: shell command that stops it")
    parser.add_argument("--pid-file", help="startup: where the start command leaves the pid")
    parser.add_argument("--idle", type=float, default=10.0, help="startup: seconds before the memory is read")
    return parser


def add_options_of_groups(parser):
    """Options of the cases in exactly_once.py."""
    parser.add_argument("--per", type=int, default=1, help="transactions, copy: records of a transaction")
    parser.add_argument("--members", type=int, default=20, help="rebalance, heartbeats: of the group")
    parser.add_argument("--protocol", choices=["classic", "consumer"], default="classic")


def add_options_of_security(parser):
    """Options of the cases in secure.py, and of raw cases over TLS."""
    parser.add_argument("--tls", help="raw-produce, raw-fetch: address of the broker's listener with TLS")
    parser.add_argument("--sasl", help="logins, login-storm: address of its listener with TLS and SCRAM")
    parser.add_argument("--ca", help="file of the CA of its certificate")
    parser.add_argument("--at-once", type=int, default=16, help="logins, login-storm: logins in progress")


def main():
    parser = argument_parser()
    add_options_of_groups(parser)
    add_options_of_security(parser)
    options = parser.parse_args()
    pids = [int(text) for text in options.pid.split(",") if text]
    common = {"label": options.label, "case": options.case}
    chosen = {
        name: value
        for name, value in vars(options).items()
        if name not in NOT_SHOWN and value != parser.get_default(name)
    }

    def print_result(kind, figures):
        print(json.dumps({**common, "kind": kind, "options": chosen, **figures}), flush=True)

    if options.case == "startup":
        results = []
        for result in system.startup(options, options.reps):
            print_result("rep", result)
            results.append(result)
        print_result("summary", summary(results))
        return
    topics = Topics(options.bootstrap, options.rf)
    if options.case == "fill":
        print(raw.fill(options, topics))
    elif options.case == "tier-fill":
        raw.tier_fill(options, topics, pids)
    elif options.case == "delete":
        topics.delete(options.topic)
    elif not pids:
        parser.error("--pid is needed: CPU and memory are half of the result")
    else:
        repeat(options, topics, pids, print_result)


def repeat(options, topics, pids, print_result):
    """Run a warm-up, then options.reps repetitions on a quiet machine. Prints each result and the summary.

    A repetition is disturbed if other processes used more than options.quiet of a core. It is repeated, up to
    options.retries times in all.
    """
    case = CASES[options.case]
    if options.warm_s:
        case(options, topics, pids, True)
    results, retries = [], options.retries
    while len(results) < options.reps:
        time.sleep(options.rest)
        wait_quiet(pids, options.quiet, options.quiet_timeout)
        result = case(options, topics, pids, False)
        disturbed = result["other_cpu_s"] > options.quiet * result["wall_s"]
        if disturbed and retries:
            retries -= 1
            print_result("disturbed", result)
            continue
        print_result("rep", {**result, "disturbed": disturbed})
        results.append(result)
    print_result("summary", summary(results))


if __name__ == "__main__":
    sys.exit(main())
