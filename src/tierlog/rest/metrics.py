"""Metrics of the gateway, in Prometheus' text format, version 0.0.4."""

from collections.abc import Iterator
from typing import NamedTuple

from tierlog.rest.gateway import Gateway

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric(NamedTuple):
    name: str
    kind: str
    doc: str


CATALOGUE = [
    Metric("tierlog_rest_requests_total", "counter", "Requests by method, path of the route, and status"),
    Metric("tierlog_rest_request_seconds", "histogram", "Time of requests; streams count until they end"),
    Metric("tierlog_rest_records_produced_total", "counter", "Records that were written"),
    Metric("tierlog_rest_bytes_produced_total", "counter", "Bytes of their keys and values"),
    Metric("tierlog_rest_records_failed_total", "counter", "Records that the broker refused or lost"),
    Metric("tierlog_rest_records_consumed_total", "counter", "Records that were sent to clients"),
    Metric("tierlog_rest_bytes_consumed_total", "counter", "Bytes of their lines"),
    Metric("tierlog_rest_streams", "gauge", "Streams that are open, of records in either direction"),
    Metric("tierlog_rest_connections", "gauge", "Connections of clients"),
    Metric(
        "tierlog_rest_connections_refused_total",
        "counter",
        "Connections over --max-connections, each of which ended an idle one or was closed",
    ),
    Metric("tierlog_rest_sessions", "gauge", "Principals with open connections to brokers"),
    Metric("tierlog_rest_login_failures_total", "counter", "Logins that the brokers refused"),
    Metric("tierlog_rest_memory_bytes", "gauge", "Bytes of requests and responses that the gateway holds"),
    Metric("tierlog_rest_memory_limit_bytes", "gauge", "The most that it may hold (--memory)"),
    Metric("tierlog_rest_memory_refusals_total", "counter", "Requests refused because it held too much"),
    Metric("tierlog_rest_slow_clients_total", "counter", "Streams ended because the client took no data"),
]


def exposition(gateway: Gateway) -> bytes:
    """The page of all metrics."""
    lines: list[str] = []
    for metric in CATALOGUE:
        lines += [f"# HELP {metric.name} {metric.doc}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{name} {value}" for name, value in _samples(metric.name, gateway)]
    return "".join(f"{line}\n" for line in lines).encode()


def _samples(name: str, gateway: Gateway) -> Iterator[tuple[str, float]]:
    counts, budget = gateway.counts, gateway.budget
    match name.removeprefix("tierlog_rest_"):
        case "requests_total":
            for (method, path, status), count in sorted(counts.requests.items()):
                path = path.replace("\\", r"\\").replace('"', r"\"")
                yield f'{name}{{method="{method}",path="{path}",status="{status}"}}', count
        case "request_seconds":
            for bound, count in counts.seconds.cumulative():
                yield f'{name}_bucket{{le="{"+Inf" if bound is None else f"{bound:g}"}"}}', count
            yield f"{name}_count", counts.seconds.count
            yield f"{name}_sum", counts.seconds.total
        case "records_produced_total":
            yield name, counts.records_produced
        case "bytes_produced_total":
            yield name, counts.bytes_produced
        case "records_failed_total":
            yield name, counts.records_failed
        case "records_consumed_total":
            yield name, counts.records_consumed
        case "bytes_consumed_total":
            yield name, counts.bytes_consumed
        case "streams":
            yield name, counts.streams
        case "connections":
            yield name, 0 if gateway.listener is None else gateway.listener.connections
        case "connections_refused_total":
            yield name, 0 if gateway.listener is None else gateway.listener.over_limit
        case "sessions":
            yield name, len(gateway.sessions)
        case "login_failures_total":
            yield name, gateway.sessions.failures
        case "memory_bytes":
            yield name, budget.used
        case "memory_limit_bytes":
            yield name, budget.most
        case "memory_refusals_total":
            yield name, budget.refused
        case "slow_clients_total":
            yield name, counts.slow_clients
