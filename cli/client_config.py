"""The file of `--client-config`, or the profile: client settings for the connections of the command that
runs.

A secure local cluster has such a file, which is used for its addresses if the option is not given. The login
in the file also serves for the admin API, if that wants a password. Kafka's logins do not reveal the password
to the broker, and this one does: therefore it goes only to nodes with a certificate of TIERLOG_ADMIN_CA, and
to this machine. Nodes name each other's addresses, also over plain HTTP, where the network can change them.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tierlog.base.addresses import is_confidential
from tierlog.cli.errors import CliError, usage
from tierlog.client.admin import basic_credentials, set_defaults, variable
from tierlog.client.connection import OpenSocket, open_socket

if TYPE_CHECKING:
    from tierlog.cli.cluster_files import ClusterPlan
    from tierlog.cli.profiles import Profile
    from tierlog.client.security import ClientSecurity

HINT = "Use the settings of Kafka's clients: security.protocol, sasl.mechanism, sasl.jaas.config, ssl.…"


@dataclass(slots=True)
class _Chosen:
    """Files of the command that runs. Threads of the command share them."""

    file: Path | None = None
    local: Path | None = None
    """Directory of the local cluster that the command names. None: the one that was started last."""
    profile: "Profile | None" = None
    """Not used together with a file."""
    challenged: set[str] = field(default_factory=set)
    """Servers of admin APIs that have asked for a password."""


_chosen = _Chosen()


def remember(file: Path | None) -> Path | None:
    """Keep the file for the command. Called with the option of each command, also if it is not given."""
    _chosen.file, _chosen.local, _chosen.profile = file, None, None
    set_defaults({})
    _chosen.challenged.clear()
    return file


def use_local(directory: Path) -> None:
    """Keep the local cluster that a command without the option was given."""
    _chosen.file, _chosen.local, _chosen.profile = None, directory, None
    set_defaults({})


def choose_profile(name: str | None, given: Sequence[str]) -> "Profile | None":
    """Keep the profile for the command: the named one, that of TIERLOG_PROFILE, or the one in use. `given`:
    options and variables that name addresses or client settings, and leave the profile out. Raises
    CliError for a profile that is named and left out."""
    from tierlog.cli.profiles import VARIABLE, load

    if given:
        if name is not None:
            hint = f"Leave out {' and '.join(given)}, or --profile."
            raise usage(f"--profile {name} and {given[0]} name two targets", hint=hint)
        return None
    profiles = load()
    wanted = name or os.environ.get(VARIABLE) or profiles.current
    if wanted:
        _chosen.profile = profiles.named(wanted)
        set_defaults(_chosen.profile.admin_variables())
    return _chosen.profile


def profile_in_use() -> "Profile | None":
    """The profile of the command."""
    return _chosen.profile


def bootstrap_servers() -> str | None:
    """bootstrap.servers of the file. Raises CliError."""
    return None if _chosen.file is None else _properties(_chosen.file).get("bootstrap.servers")


def socket_opener(bootstrap: str) -> OpenSocket:
    """How connections to these brokers are opened; plain ones without a file. Raises CliError."""
    if _is_of_profile(bootstrap):
        return _security().open_socket
    file = _file_for(bootstrap)
    return open_socket if file is None else _security(file).open_socket


def client_properties(bootstrap: str) -> dict[str, str]:
    """The settings by which connections to these brokers are opened. Raises CliError."""
    if _chosen.profile is not None and _is_of_profile(bootstrap):
        return _chosen.profile.client_properties()
    file = _file_for(bootstrap)
    return {} if file is None else _properties(file)


def _is_of_profile(bootstrap: str) -> bool:
    """Also brokers that the profile's admin API has named."""
    profile = _chosen.profile
    return profile is not None and profile.bootstrap in (None, bootstrap)


def _file_for(bootstrap: str) -> Path | None:
    return _chosen.file or _local_file(bootstrap.split(","), lambda _, plan: plan.bootstrap.split(","))


def admin_login(url: str) -> dict[str, str]:
    """The header with the login for the admin API at the URL: at once for the local cluster, and with a file
    only after the API has asked for a password (`accept_challenge`). Raises CliError."""
    server, file = _server(url), _chosen.file
    if _chosen.profile is not None:
        return _login_of_profile(_chosen.profile, url)
    if file is None:
        file = _local_file([server], _urls_of_running_nodes)
    elif server not in _chosen.challenged:
        file = None
    security = None if file is None or not _is_trusted(url) else _security(file)
    if security is None or not security.mechanism or security.by_token:
        return {}
    return basic_credentials(security.user, security.password)


def accept_challenge(url: str, challenges: Iterable[str]) -> bool:
    """Whether a request may be repeated with `admin_login`. `challenges`: the headers WWW-Authenticate."""
    wants_password = any(one.lower().startswith("basic") for one in challenges)
    has_login = _chosen.file is not None or _chosen.profile is not None
    if not has_login or not wants_password or not _is_trusted(url):
        return False
    if _server(url) in _chosen.challenged:  # the login was wrong
        return False
    _chosen.challenged.add(_server(url))
    return True


def _login_of_profile(profile: "Profile", url: str) -> dict[str, str]:
    """Its login for the admin API, or else that for brokers once the API has asked. A node that names an
    address of this machine gets it over TLS only: at that port may be the process of another user."""
    if not _is_trusted(url) or not (url.startswith("https:") or profile.is_of_this_machine):
        return {}
    if token := profile.secret("admin-token"):
        return {"Authorization": f"Bearer {token}"}
    if user := profile.values.get("admin-user"):
        return basic_credentials(user, profile.secret("admin-password"))
    if _server(url) not in _chosen.challenged or "user" not in profile.values:
        return {}
    return basic_credentials(profile.values["user"], profile.secret("password"))


def _is_trusted(url: str) -> bool:
    return is_confidential(url) and (not url.startswith("https:") or bool(variable("TIERLOG_ADMIN_CA")))


def _server(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _urls_of_running_nodes(directory: Path, plan: "ClusterPlan") -> Iterable[str]:
    """While a node is down, the process of another user may be at its port."""
    from tierlog.broker.diagnosis.evidence import ProcessState
    from tierlog.cli.cluster_processes import states

    running = states(directory, plan)
    return [url for node, url in plan.admin_urls.items() if running[node] is not ProcessState.DOWN]


def _local_file(
    addresses: Iterable[str], known: "Callable[[Path, ClusterPlan], Iterable[str]]"
) -> Path | None:
    """The file of the local cluster, if it is secure and has all these addresses."""
    from tierlog.cli import cluster_files

    directory = _chosen.local or cluster_files.last_started()
    plan = None if directory is None else cluster_files.load(directory)
    if directory is None or plan is None or not plan.secure:
        return None
    from tierlog.cli.local_security import LocalSecurity

    own = set(known(directory, plan))
    is_local = all(address.strip() in own for address in addresses)
    file = LocalSecurity(directory).client_file
    return file if is_local and file.exists() else None


def _security(file: Path | None = None) -> "ClientSecurity":
    """That of a file, or of the profile."""
    from tierlog.client.security import client_security
    from tierlog.config.definitions import InvalidSetting

    if file is None:
        profile = _chosen.profile
        try:
            return client_security({} if profile is None else profile.client_properties())
        except InvalidSetting as wrong:
            hint = "See it with `tierlog profile show`."
            raise usage(f"profile {'' if profile is None else profile.name}: {wrong}", hint=hint) from None
    try:
        return client_security(_properties(file))
    except InvalidSetting as wrong:
        raise _invalid(file, wrong) from None


def _properties(file: Path) -> dict[str, str]:
    from tierlog.client.properties import read_properties
    from tierlog.config.definitions import InvalidSetting

    try:
        return read_properties(file)
    except InvalidSetting as wrong:
        raise _invalid(file, wrong) from None


def _invalid(file: Path, wrong: Exception) -> CliError:
    return usage(f"{file}: {wrong}".replace(f"{file}: {file}:", f"{file}:"), hint=HINT)
