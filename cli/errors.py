"""Errors of commands: a message, a hint about what to do next, and a stable exit code."""

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line, as docs/reference/cli.md lists them."""

    OK = 0
    FAILED = 1  # the request was refused, or the response was invalid
    USAGE = 2  # invalid arguments
    UNREACHABLE = 3  # no response from the address
    NOT_FOUND = 4  # the topic, partition or offset does not exist
    DEGRADED = 5  # `cluster health`, `doctor`: everything is served, with less redundancy than configured
    UNAVAILABLE = 6  # `cluster health`, `doctor`: some requests are not served
    INSECURE = 7  # `security check`: it has findings
    INTERRUPTED = 130  # 128 + SIGINT, as in shells


class CliError(Exception):
    """Ends a command. `message`: what happened; `hint`: what the user can do; `status`: status of the HTTP
    response, 0 if there was none."""

    def __init__(
        self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED, status: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.status = status


def unreachable(address: str, reason: object) -> CliError:
    """No response from a bootstrap address or admin URL."""
    hint = (
        "Is a broker running there? Start one with `tierlog dev`, start the nodes of a local cluster with "
        "`tierlog cluster start`, or give another address with --bootstrap or --admin "
        "(TIERLOG_BOOTSTRAP, TIERLOG_ADMIN)."
    )
    return CliError(f"cannot reach {address}: {reason}", hint=hint, code=ExitCode.UNREACHABLE)


SILENT_HINT = (
    "A node that does not respond is paused, overloaded or cut off: `tierlog doctor` names the cause and the "
    "remedy. `tierlog cluster health` shows what the others still serve."
)


def no_response(failures: Iterable[str]) -> CliError:
    """Nodes that a command needs do not respond. `failures`: one for each of them."""
    return CliError("no response: " + "; ".join(failures), hint=SILENT_HINT, code=ExitCode.UNREACHABLE)


def unknown_topic(name: str) -> CliError:
    hint = f"List topics with `tierlog topic list`, or create it with `tierlog topic create {name}`."
    return CliError(f"topic {name!r} does not exist", hint=hint, code=ExitCode.NOT_FOUND)


def no_partition(topic: str, partition: int, count: int) -> CliError:
    """`count`: number of partitions of the topic."""
    numbers = f"It has {count} partitions, numbered from 0" if count != 1 else "It has only partition 0"
    hint = f"{numbers}: see `tierlog topic describe {topic}`."
    return CliError(f"topic {topic} has no partition {partition}", hint=hint, code=ExitCode.NOT_FOUND)


def no_topic_name() -> CliError:
    return usage("a topic needs a name", hint="For example: tierlog topic create orders")


def unknown_broker(broker: int, problem: str = "is not registered") -> CliError:
    hint = "List the registered brokers with `tierlog broker list`."
    return CliError(f"broker {broker} {problem}", hint=hint, code=ExitCode.NOT_FOUND)


def usage(message: str, hint: str = "") -> CliError:
    return CliError(message, hint=hint, code=ExitCode.USAGE)
