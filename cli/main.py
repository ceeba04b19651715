"""Entry point of the `tierlog` command: builds the command tree, and turns errors into exit codes."""

import sys
from typing import Annotated

import typer

from tierlog.base import build
from tierlog.cli.command_tree import command_tree
from tierlog.cli.commands import (
    acl,
    broker,
    certs,
    cluster,
    consume,
    dev,
    doctor,
    generate,
    group,
    log,
    partition,
    plan,
    produce,
    profile,
    quorum,
    quota,
    rest,
    security,
    spark,
    storage,
    tier,
    token,
    topic,
    txn,
    user,
)
from tierlog.cli.errors import CliError, ExitCode
from tierlog.cli.options import ConfigFile, Json, Settings, node_settings
from tierlog.cli.output import print_status

app = typer.Typer(
    name="tierlog",
    help="A distributed log that speaks the Kafka protocol and tiers its history to your object store.\n\n"
    "To get started: `tierlog dev`, then `tierlog topic create`, `tierlog produce` and `tierlog consume`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"tierlog {build.described()}\n")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command; the help is that of `app`."""


app.command("dev")(dev.dev)


@app.command()
def server(
    config: ConfigFile = None,
    sets: Settings = None,
    as_json: Json = False,
) -> None:
    """Run a node.

    TIERLOG_… environment variables override the settings of the file, and --set overrides both.
    """
    from tierlog.cli.node import read_settings, serve

    serve(read_settings(file=config, options=node_settings(sets)), as_json=as_json)


app.command("doctor")(doctor.doctor)
app.command("plan")(plan.plan)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("rest")(rest.rest)
app.add_typer(topic.app, name="topic")
app.add_typer(tier.app, name="tier")
app.add_typer(quota.app, name="quota")
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.add_typer(token.app, name="token")
app.add_typer(security.app, name="security")
app.add_typer(group.app, name="group")
app.add_typer(txn.app, name="txn")
app.add_typer(spark.app, name="spark")
app.add_typer(cluster.app, name="cluster")
app.add_typer(broker.app, name="broker")
app.add_typer(partition.app, name="partition")
app.add_typer(quorum.app, name="quorum")
app.add_typer(certs.app, name="certs")
app.add_typer(log.app, name="log")
app.add_typer(storage.app, name="storage")
app.add_typer(profile.app, name="profile")
app.add_typer(doctor.debug_app, name="debug")
app.add_typer(generate.app, name="generate")


def main() -> None:
    """Run the command; exits with a code of `errors.ExitCode`."""
    if sys.argv[1:] == ["--version"]:
        # a fast path for scripts: the command tree is not built
        sys.stdout.write(f"tierlog {build.described()}\n")
        return
    try:
        command_tree(app)(prog_name="tierlog")
    except CliError as error:
        print_status(f"tierlog: {error.message}" + (f"\n{error.hint}" if error.hint else ""))
        sys.exit(int(error.code))
    except KeyboardInterrupt:
        sys.exit(int(ExitCode.INTERRUPTED))
    except BrokenPipeError:
        sys.stderr.close()  # the reader closed the pipe: `tierlog consume | head`
        sys.exit(int(ExitCode.OK))


if __name__ == "__main__":
    main()
