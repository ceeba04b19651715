"""`tierlog doctor` and `tierlog debug bundle`: what is wrong with a cluster, and an archive that shows it."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError, ExitCode, unreachable
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json
from tierlog.cli.output import counted, print_json, print_status, print_text, size

if TYPE_CHECKING:
    from tierlog.broker.diagnosis.evidence import Evidence
    from tierlog.broker.diagnosis.findings import Finding

debug_app = typer.Typer(no_args_is_help=True, help="Collect what others need to find a fault.")

LOGS_MAX = 100


def doctor(
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            exists=True,
            dir_okay=False,
            help="Examine the bundle of `tierlog debug bundle` instead of a cluster.",
        ),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show what is wrong with the cluster, why, and what mends it, the most urgent first. Changes nothing.

    Exit codes: 5 if something is degraded or at risk; 6 if some requests are not served; 3 if no node
    responds. Advice alone is not a failure.
    """
    from tierlog.broker.diagnosis.findings import diagnose
    from tierlog.cli.bundle import read

    evidence = _gather(admin, bootstrap) if bundle is None else read(bundle)
    findings = diagnose(evidence)
    _print_findings(findings, evidence, as_json=as_json)
    if bundle is None and not evidence.answers.documents:  # a local cluster, whose processes are known
        raise typer.Exit(int(ExitCode.UNREACHABLE))
    if code := _exit_code(findings):
        raise typer.Exit(int(code))


@debug_app.callback()
def debug() -> None:
    """Without a callback typer would merge the only command into the group."""


@debug_app.command("bundle")
def bundle_(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", dir_okay=False, help="The archive. Default: tierlog-bundle-TIME.tar.gz here."
        ),
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(
            "--log",
            exists=True,
            dir_okay=False,
            help="Add the end of this log file. May be repeated. The logs of the local cluster, and the last "
            "1,000 lines of other nodes, are added anyway.",
        ),
    ] = None,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Write an archive with the state, metrics, settings and logs of all nodes, manifests, and the findings.

    It has no passwords and no records, but names of topics, groups, users and hosts. `tierlog doctor
    --bundle` reads it.
    """
    from tierlog.broker.diagnosis.findings import diagnose
    from tierlog.cli import evidence as gathering
    from tierlog.cli.bundle import write
    from tierlog.cli.targets import local_directory

    archive = output or Path(time.strftime("tierlog-bundle-%Y%m%dT%H%M%S.tar.gz"))
    logs = _logs(log or (), local_directory(admin, bootstrap))
    evidence = _gather(admin, bootstrap)
    findings = diagnose(evidence)
    answers, not_read = evidence.answers, [*evidence.not_read]
    others = [node for node in answers.documents if f"node-{node}.log" not in logs]
    lines = gathering.last_lines(answers, others, not_read)
    manifests = gathering.manifests(answers, not_read)
    texts = {f"logs/{name}": text for name, text in lines.items()}
    texts |= {f"manifests/{name}": text for name, text in manifests.items()}
    not_read += write(archive, evidence, findings, logs, texts)
    if as_json:
        print_json(
            {
                "file": str(archive),
                "bytes": archive.stat().st_size,
                "findings": len(findings),
                "not_read": not_read,
            }
        )
        return
    print_status(
        f"{archive}: {size(archive.stat().st_size)}, {counted(len(evidence.answers.documents), 'node')}, "
        f"{counted(len(logs) + len(lines), 'log')}, {counted(len(manifests), 'manifest')}, "
        f"{counted(len(findings), 'finding')}"
    )
    for text in not_read:
        print_status(f"not in it: {text}")


def _gather(admin: str | None, bootstrap: str | None) -> "Evidence":
    """Raises CliError if no node responds."""
    from tierlog.broker.diagnosis.evidence import QUORUM
    from tierlog.cli import cluster_files, cluster_processes
    from tierlog.cli.admin import AdminApi, admin_target, split_urls
    from tierlog.cli.evidence import gather
    from tierlog.cli.observation import TIMEOUT_S, in_parallel
    from tierlog.cli.targets import local_directory

    directory = local_directory(admin, bootstrap)
    plan = cluster_files.load(directory) if directory else None
    processes = cluster_processes.states(directory, plan) if directory and plan else {}
    urls = split_urls(admin_target(admin, bootstrap))
    evidence = gather(urls, bootstrap, processes=processes, roles=plan.roles if plan else {})
    if not processes and not evidence.answers.documents:
        in_parallel(AdminApi(urls[0], timeout_s=TIMEOUT_S).get, [QUORUM])  # its error says more
        raise unreachable(", ".join(urls), "no node responds")
    return evidence


def _logs(given: Sequence[Path], directory: Path | None) -> dict[str, Path]:
    """Name in the bundle -> log file, also of the local cluster in the directory. Raises CliError for two
    files of one name."""
    logs: dict[str, Path] = {}
    if directory is not None:
        found = sorted(directory.glob("node-*/broker.log"))[:LOGS_MAX]
        logs = {f"{path.parent.name}.log": path for path in found}
    for path in given:
        if logs.setdefault(path.name, path) is not path:
            raise CliError(f"two logs are named {path.name}", hint="Give copies with different names.")
    return logs


def _print_findings(findings: "Sequence[Finding]", evidence: "Evidence", *, as_json: bool) -> None:
    from tierlog.broker.diagnosis.findings import report

    if as_json:
        print_json(
            {
                "taken_at_ms": evidence.taken_at_ms,
                "answering": sorted(evidence.answers.documents),
                "findings": [asdict(one) for one in findings],
                "not_read": list(evidence.not_read),
            }
        )
        return
    nodes = counted(len(evidence.answers.documents), "node")
    taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(evidence.taken_at_ms / 1000))
    title = f"{counted(len(findings), 'finding')}, {nodes} responded, {taken}"
    print_text(f"{title}\n\n{report(findings)}" if findings else title)


def _exit_code(findings: "Sequence[Finding]") -> ExitCode:
    from tierlog.broker.diagnosis.metric_rules import Urgency

    found = {one.urgency for one in findings}
    if Urgency.UNAVAILABLE in found:
        return ExitCode.UNAVAILABLE
    return ExitCode.DEGRADED if found - {Urgency.ADVICE} else ExitCode.OK
