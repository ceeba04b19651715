"""`tierlog profile …`: several clusters by name, with their addresses and logins."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tierlog.cli.options import Json, Yes, confirm
from tierlog.cli.output import counted, print_json, print_outcome, print_rows, print_text

if TYPE_CHECKING:
    from tierlog.cli.profiles import Profile

app = typer.Typer(no_args_is_help=True, help="Name clusters, with their addresses and logins.")

COLUMNS = {"in_use": "in use", "name": "name", "bootstrap": "bootstrap", "admin": "admin", "login": "login"}


def _names(incomplete: str) -> list[str]:
    """Names of profiles, for the shell."""
    from tierlog.cli.completions import profiles

    return profiles(incomplete)


Name = Annotated[str, typer.Argument(autocompletion=_names, help="Name of the profile.")]
Secret = str | None
PemFile = Path | None


def _secret(of_what: str, name: str) -> Any:
    return typer.Option(name, metavar="env:VARIABLE|file:PATH", help=f"{of_what}, by reference.")


def _pem(of_what: str, name: str) -> Any:
    return typer.Option(name, metavar="FILE", help=f"PEM file with {of_what}.")


@app.command()
def create(
    name: Name,
    addresses: Annotated[
        str | None, typer.Option("--bootstrap", "-b", metavar="HOST:PORT[,…]", help="Bootstrap brokers.")
    ] = None,
    admin_urls: Annotated[
        str | None,
        typer.Option("--admin", "-a", metavar="URL[,…]", help="Admin HTTP API. Default: found by brokers."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", help="security.protocol. Default: SASL_SSL with a user, SSL with a CA."),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", help="sasl.mechanism. Default: SCRAM-SHA-512 with a user.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="User of the login.")] = None,
    password: Annotated[Secret, _secret("Password of the user", "--password")] = None,
    ca: Annotated[PemFile, _pem("the CA of the brokers", "--ca")] = None,
    certificate: Annotated[PemFile, _pem("the client's certificate", "--certificate")] = None,
    key: Annotated[PemFile, _pem("the key of the certificate", "--key")] = None,
    key_password: Annotated[Secret, _secret("Password of the key", "--key-password")] = None,
    admin_user: Annotated[
        str | None, typer.Option("--admin-user", help="User for the admin API. Default: --user.")
    ] = None,
    admin_password: Annotated[Secret, _secret("Password of --admin-user", "--admin-password")] = None,
    admin_token: Annotated[Secret, _secret("Token for the admin API", "--admin-token")] = None,
    admin_ca: Annotated[PemFile, _pem("the CA of the admin API", "--admin-ca")] = None,
    admin_certificate: Annotated[PemFile, _pem("the operator's certificate", "--admin-certificate")] = None,
    admin_key: Annotated[PemFile, _pem("the key of the operator's certificate", "--admin-key")] = None,
    use: Annotated[bool, typer.Option("--use", help="Use it for the next commands.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a profile of this name.")] = False,
    as_json: Json = False,
) -> None:
    """Name a cluster. Secrets stay where they are: give their variable or file."""
    from tierlog.cli.errors import CliError
    from tierlog.cli.profiles import Profiles, changing, checked, save

    values = {
        "bootstrap": addresses, "admin": admin_urls, "protocol": protocol, "mechanism": mechanism,
        "user": user, "password": password, "ca": ca, "certificate": certificate, "key": key,
        "key-password": key_password, "admin-user": admin_user, "admin-password": admin_password,
        "admin-token": admin_token, "admin-ca": admin_ca, "admin-certificate": admin_certificate,
        "admin-key": admin_key,
    }  # fmt: skip
    profile = checked(name, {field: str(value) for field, value in values.items() if value})
    with changing() as before:
        if name in before.by_name and not replace:
            hint = "Choose another name, or give --replace."
            raise CliError(f"there is a profile {name} already", hint=hint)
        save(Profiles(name if use else before.current, {**before.by_name, name: profile}))
    how = "in use" if use else f"use it with `tierlog profile use {name}` or --profile {name}"
    print_outcome(f"profile {name} created; {how}", {"profile": name, "in_use": use}, as_json=as_json)


@app.command()
def use(name: Name, as_json: Json = False) -> None:
    """Use a profile for all next commands that give no addresses."""
    from tierlog.cli.profiles import Profiles, changing, save

    with changing() as before:
        profile = before.named(name)
        save(Profiles(name, before.by_name))
    where = profile.bootstrap or profile.admin
    print_outcome(f"profile {name} in use: {where}", {"profile": name, "in_use": True}, as_json=as_json)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the profiles."""
    from tierlog.cli.profiles import load

    profiles = load()
    rows = [_row(one, one.name == profiles.current) for _, one in sorted(profiles.by_name.items())]
    print_rows(COLUMNS, rows, title=counted(len(rows), "profile"), as_json=as_json)


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(autocompletion=_names, help="Name. Default: the profile in use.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a profile, with references instead of secrets."""
    from tierlog.cli.errors import CliError, ExitCode
    from tierlog.cli.profiles import LIST_HINT, VARIABLE, load

    profiles = load()
    wanted = name or os.environ.get(VARIABLE) or profiles.current
    if not wanted:
        raise CliError("no profile is in use", hint=LIST_HINT, code=ExitCode.NOT_FOUND)
    profile = profiles.named(wanted)
    document = {"name": wanted, "in_use": wanted == profiles.current, **profile.values}
    if as_json:
        print_json(document)
        return
    rows = [{"field": field, "value": value} for field, value in document.items()]
    print_rows({"field": "field", "value": "value"}, rows, title=f"Profile {wanted}")


@app.command()
def delete(name: Name, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a profile. The cluster and the files that it names stay as they are."""
    from tierlog.cli.profiles import Profiles, changing, load, save

    load().named(name)
    if not yes:
        confirm(f"Delete the profile {name}?")
    with changing() as before:
        rest = {other: one for other, one in before.by_name.items() if other != name}
        save(Profiles("" if before.current == name else before.current, rest))
    print_outcome(f"profile {name} deleted", {"profile": name, "deleted": True}, as_json=as_json)


@app.command()
def prompt(as_json: Json = False) -> None:
    """Print the target of the next command, for the prompt of a shell: PS1='$(tierlog profile prompt) $ '.

    The same rules as those of all commands; nothing for the default address.
    """
    from tierlog.cli.client_config import choose_profile
    from tierlog.cli.targets import bootstrap_target

    bootstrap, admin = os.environ.get("TIERLOG_BOOTSTRAP"), os.environ.get("TIERLOG_ADMIN")
    given = [
        name for name in ("TIERLOG_BOOTSTRAP", "TIERLOG_ADMIN", "TIERLOG_CLIENT_CONFIG") if name in os.environ
    ]
    profile = choose_profile(None, given)
    if profile is not None:
        target, name = profile.bootstrap or profile.admin or "", profile.name
    else:
        found = bootstrap_target(bootstrap)
        target, name = (bootstrap or admin or (found.addresses if "local" in found.found else "")), ""
    if as_json:
        print_json({"profile": name or None, "target": target or None})
    elif target:
        print_text(f"{name} ({target})" if name else target)


def _row(profile: "Profile", in_use: bool) -> dict[str, Any]:
    return {
        "in_use": in_use,
        "name": profile.name,
        "bootstrap": profile.bootstrap,
        "admin": profile.admin,
        "login": profile.login,
    }
