"""`tierlog cluster versions` and `finalize`: the builds of the nodes, and the end of an upgrade."""

from typing import TYPE_CHECKING, Annotated

import typer

from tierlog.cli.errors import CliError
from tierlog.cli.options import Admin, Bootstrap, ClientConfig, Json, Yes, confirm
from tierlog.cli.output import print_json, print_outcome, print_rows, print_status
from tierlog.cli.targets import READ_TIMEOUT_S

if TYPE_CHECKING:
    from tierlog.cli.versions import Upgrade

COLUMNS = {
    "node": "node",
    "build": "build",
    "formats": "tierlog.format",
    "wire": "wire",
    "format": "finalised",
    "state": "state",
}
FINAL = "It cannot be undone, and no node can go back to an older version afterwards."


def versions(
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """Show the build of each node, the format and wire versions that it supports, and what is finalised."""
    from tierlog.cli.admin import admin_api
    from tierlog.cli.versions import as_json as document
    from tierlog.cli.versions import assess, observe_versions

    nodes = observe_versions(admin_api(admin, bootstrap, timeout_s=READ_TIMEOUT_S))
    upgrade = assess(nodes)
    if as_json:
        print_json(document(nodes, upgrade))
        return
    print_rows(COLUMNS, [node.row for node in nodes], title=f"Versions, tierlog.format {upgrade.format}")
    if upgrade.is_finalized:
        print_status("All nodes support the finalised version and no newer one.")
    elif not upgrade.obstacles:
        print_status(
            f"All nodes support tierlog.format {upgrade.target}: `tierlog cluster finalize` raises it. "
            "Until then each node can go back to its previous version."
        )
    for obstacle in upgrade.obstacles:
        print_status(f"Not to be finalised yet: {obstacle}.")


def finalize(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check, and show what would become possible; change nothing.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    admin: Admin = None,
    bootstrap: Bootstrap = None,
    client_config: ClientConfig = None,
) -> None:
    """End an upgrade: raise tierlog.format to the highest version that all nodes support.

    Refused while a node does not respond or is older. Newer formats are written only from then on. It cannot
    be undone, and no node can go back to an older version afterwards.
    """
    from tierlog.cli.admin import admin_api
    from tierlog.cli.versions import assess, observe_versions

    api = admin_api(admin, bootstrap, changes=not dry_run)
    upgrade = assess(observe_versions(api))
    if upgrade.obstacles or upgrade.target is None:
        raise CliError(
            "nothing was changed: " + ("; ".join(upgrade.obstacles) or "no node has announced its versions"),
            hint="Upgrade and start all nodes first, or remove those that will not return: "
            "`tierlog cluster versions`.",
        )
    change = {"format": upgrade.target, "before": upgrade.format}
    if upgrade.format == upgrade.target:
        print_outcome(
            f"tierlog.format is {upgrade.target} already", {**change, "changed": False}, as_json=as_json
        )
        return
    if not as_json:
        _describe(upgrade)
    if not dry_run and not yes:
        confirm(f"Raise tierlog.format to {upgrade.target}?")
    api.post("/v1/versions/finalize", {"format": upgrade.target, "dry_run": dry_run})
    done = "can be raised" if dry_run else "is raised"
    print_outcome(
        f"tierlog.format {done} from {upgrade.format} to {upgrade.target}",
        {**change, "changed": not dry_run, "enables": list(upgrade.enables)},
        as_json=as_json,
    )


def _describe(upgrade: "Upgrade") -> None:
    print_status(f"tierlog.format {upgrade.target} makes possible:")
    for line in upgrade.enables:
        print_status(f"  {line}")
    print_status(FINAL)
