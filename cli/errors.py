"""How a command fails: an exit code that scripts can rely on, and a sentence that says what to do next."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell sees; docs/reference/cli.md lists them."""

    OK = 0
    FAILED = 1  # the broker refused, or an answer was not as it must be
    USAGE = 2  # the words or values given make no sense
    UNREACHABLE = 3  # nobody answers at the address
    NOT_FOUND = 4  # the topic, partition or offset does not exist
    DEGRADED = 5  # `cluster health`: all is served, but less may fail than should
    UNAVAILABLE = 6  # `cluster health`: something that is asked is not served
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CliError(Exception):
    """Ends a command: `message` says what happened, `hint` what the user can do about it. `status`: of the
    HTTP answer that said so; 0: there was none."""

    def __init__(
        self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED, status: int = 0
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
        self.status = status


def unreachable(address: str, reason: object) -> CliError:
    """Nobody answers at a bootstrap address or admin URL."""
    hint = (
        "Is a broker running there? `tierlog dev` starts one, `tierlog cluster start` those of a local "
        "cluster that are down; "
        "--bootstrap and --admin (or TIERLOG_BOOTSTRAP and TIERLOG_ADMIN) name another."
    )
    return CliError(f"cannot reach {address}: {reason}", hint=hint, code=ExitCode.UNREACHABLE)


def unknown_topic(name: str) -> CliError:
    hint = f"`tierlog topic list` shows what there is; `tierlog topic create {name}` makes it."
    return CliError(f"there is no topic {name!r}", hint=hint, code=ExitCode.NOT_FOUND)


def usage(message: str, hint: str = "") -> CliError:
    return CliError(message, hint=hint, code=ExitCode.USAGE)
