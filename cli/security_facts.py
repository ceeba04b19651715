"""Facts for `tierlog security check`: of a settings file and its files, or of a running cluster.

Returns findings: `security_findings` has the rules.
"""

import os
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tierlog.base.clock import SystemClock
from tierlog.cli.errors import CliError
from tierlog.cli.security_findings import (
    Finding,
    Level,
    of_acls,
    of_admin_api,
    of_certificate,
    of_settings,
    of_tokens,
    of_users,
    open_admin_api,
)
from tierlog.cli.targets import READ_TIMEOUT_S
from tierlog.config.definitions import InvalidSetting, SettingType
from tierlog.config.node import NODE_SETTINGS, NodeSettings
from tierlog.config.providers import referenced_files
from tierlog.config.tls import listener_setting

PROBE_TIMEOUT_S = 3.0
SECONDS_PER_DAY = 86_400
RENEW = "Replace the file by renaming: brokers notice it by themselves (docs/explanation/security.md)."

# ---- a settings file ------------------------------------------------------------------------------


def of_file(file: Path, days: int) -> list[Finding]:
    """Findings of a node that runs with this file and this environment. `days`: until when a certificate
    expires soon. Raises CliError."""
    from tierlog.cli.node import read_settings
    from tierlog.config.sources import read_environment, read_toml

    settings = read_settings(file=file, options={})  # raises CliError for what cannot be read
    texts = read_toml(file)
    where = str(file)
    return [
        *of_settings(where, settings),
        *of_admin_api(where, settings),
        *_of_secrets(file, texts),
        *_of_readable(_secret_files(settings, {**texts, **read_environment(os.environ)})),
        *_of_readable_data([Path(one) for one in settings.log_dirs]),
        *_of_certificates(where, settings, days),
    ]


def _of_secrets(file: Path, texts: Mapping[str, str]) -> Iterator[Finding]:
    """Passwords and keys in the settings file itself."""
    names = [name for name, text in texts.items() if _is_secret(name) and text and "${" not in text]
    if not names:
        return
    readers = _readers(file)
    yield Finding(
        check="secret-in-settings",
        level=Level.OPEN if readers else Level.WEAK,
        where=str(file),
        what=f"the file has the value of {', '.join(sorted(names))}"
        + (f", and {readers} can read it" if readers else ""),
        next="Put each value into a file of its own that only the user of tierlog can read, and refer to it "
        "as ${file:/path:key} or ${directory:/path:file}.",
    )


def _is_secret(name: str) -> bool:
    of_listener = listener_setting(name)
    setting = NODE_SETTINGS.get(of_listener[1] if of_listener else name)
    return setting is not None and setting.type is SettingType.PASSWORD


def _secret_files(settings: NodeSettings, texts: Mapping[str, str]) -> list[Path]:
    """Files with keys and passwords."""
    found = [path for name, text in texts.items() if _is_secret(name) for path in referenced_files(text)]
    found += [Path(settings.ssl_keystore_location)] if settings.ssl_keystore_location else []
    for _, setting, value in settings.listener_overrides:
        found += [Path(str(value))] if setting == "ssl.keystore.location" and value else []
    found += list(settings.quorum_files[1:2])
    return list(dict.fromkeys(found))


def _of_readable(files: list[Path]) -> Iterator[Finding]:
    for file in files:
        if readers := _readers(file):
            yield Finding(
                check="readable-file",
                level=Level.OPEN,
                where=str(file),
                what=f"{readers} can read this file, which has a key or a password",
                next=f"Run: chmod 600 {file}",
            )


def _of_readable_data(directories: list[Path]) -> Iterator[Finding]:
    for directory in directories:
        if _is_open_to_all(directory):
            yield Finding(
                check="readable-data",
                level=Level.OPEN,
                where=str(directory),
                what="every account of the machine can read the records in this directory, and the verifiers "
                "of passwords",
                next=f"Run: chmod 700 {directory}",
            )


def _is_open_to_all(directory: Path) -> bool:
    try:
        return all(one.stat().st_mode & stat.S_IXOTH for one in (directory, *directory.absolute().parents))
    except OSError:
        return False


def _readers(file: Path) -> str:
    """Which accounts besides the owner's can read the file; "" if none."""
    try:
        mode = file.stat().st_mode
    except OSError:
        return ""  # the node reports files that are missing when it starts
    if mode & stat.S_IROTH:
        return "every account of the machine"
    return "the file's group" if mode & stat.S_IRGRP else ""


def _of_certificates(where: str, settings: NodeSettings, days: int) -> Iterator[Finding]:
    """Certificates of listeners and of the quorum, which are loaded as a node does."""
    from cryptography import x509

    from tierlog.broker.security.tls_files import ListenerTls

    now_s = SystemClock().now_ms() // 1000
    for listener in settings.client_listeners:
        if listener.protocol.has_tls:
            try:
                tls = ListenerTls(listener.name, settings.for_listener(listener.name))
            except InvalidSetting as unusable:
                yield _unusable(where, str(unusable))
                continue
            what = f"the certificate of listener {listener.name}"
            yield from of_certificate(where, _days_left(tls.expires_at_s, now_s), days, what, RENEW)
            if tls.trust_expires_at_s is not None:
                what = f"a CA in the truststore of listener {listener.name}"
                yield from of_certificate(where, _days_left(tls.trust_expires_at_s, now_s), days, what, RENEW)
    for name, path in zip(("certificate", "CA"), settings.quorum_files[::2], strict=False):
        try:
            loaded = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as failure:
            yield _unusable(where, f"{path}: {failure}")
            continue
        expires_s = min(int(one.not_valid_after_utc.timestamp()) for one in loaded)
        left, remedy = _days_left(expires_s, now_s), "Replace it as docs/howto/quorum-tls.md describes."
        yield from of_certificate(where, left, days, f"the {name} of the quorum", remedy)


def _days_left(expires_s: int, now_s: int) -> int:
    return (expires_s - now_s) // SECONDS_PER_DAY


def _unusable(where: str, why: str) -> Finding:
    return Finding(
        check="certificate",
        level=Level.EXPIRED,
        where=where,
        what=f"a certificate cannot be used: {why}",
        next="Replace the file.",
    )


# ---- a running cluster ----------------------------------------------------------------------------


def of_cluster(bootstrap: str | None, admin: str | None, days: int) -> list[Finding]:
    """Findings of all brokers that run, and of the admin APIs of all nodes. Raises CliError."""
    from tierlog.cli import acls, users
    from tierlog.cli.client import KafkaClient

    found: list[Finding] = []
    with KafkaClient(bootstrap, timeout_s=READ_TIMEOUT_S) as client:
        has_authorizer = False
        brokers = [broker.node_id for broker in client.metadata([]).brokers]
        client.require(brokers)
        for broker in brokers:
            settings = settings_of(client, broker)
            has_authorizer |= bool(settings.authorizer_class_name)
            found += of_settings(f"broker {broker}", settings)
        found += of_users(users.rows(client))
        if has_authorizer:
            found += of_acls(acls.find(client, [acls.Filter()]))
        found += of_tokens(_tokens(client), SystemClock().now_ms())
    return [*found, *_of_nodes(bootstrap, admin, days)]


def settings_of(client: Any, broker: int) -> NodeSettings:
    """Settings as the broker describes them: without passwords, and without those of single listeners."""
    from tierlog.cli import configs

    rows = configs.described(
        client, configs.BROKER_RESOURCE, str(broker), f"settings of broker {broker}", broker=broker
    )
    values = {
        row.name.replace(".", "_"): NODE_SETTINGS[row.name].parse(row.value)
        for row in rows
        if row.name in NODE_SETTINGS and row.value is not None
    }
    return NodeSettings(**values)  # type: ignore[arg-type]


def _tokens(client: Any) -> list[Any]:
    """Delegation tokens that the user may see; none from a cluster without tokens."""
    from tierlog.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest

    response = client.call(DescribeDelegationTokenRequest(owners=None))
    return [] if response.error_code else list(response.tokens)


def _of_nodes(bootstrap: str | None, admin: str | None, days: int) -> Iterator[Finding]:
    """Whether the admin APIs of the nodes are open, and the certificates of the brokers' listeners. Raises
    CliError if none responds."""
    from tierlog.cli.admin import AdminApi, admin_api

    api = admin_api(admin, bootstrap, timeout_s=READ_TIMEOUT_S)
    quorum, brokers = api.get("/v1/quorum"), api.get("/v1/cluster")["brokers"]
    members = {**quorum["voters"], **quorum.get("learners", {})}
    urls = {int(node): url for node, url in members.items() if url}
    urls |= {broker["id"]: broker["admin_url"] for broker in brokers if broker["admin_url"]}
    urls.setdefault(quorum["node_id"], api.url)
    registered = {broker["id"] for broker in brokers}
    for node, url in sorted(urls.items()):
        if _is_open(url):
            yield open_admin_api(f"node {node}", url)
        if node not in registered:
            continue
        try:
            rows = AdminApi(url, timeout_s=PROBE_TIMEOUT_S).get("/v1/certificates")["certificates"]
        except CliError:  # a broker that is down; `cluster health` names it
            continue
        for row in rows:
            what = f"the certificate of listener {row['listener']}"
            yield from of_certificate(f"broker {node}", int(row["days_left"]), days, what, RENEW)
            if row["reload_error"]:
                yield _unusable(f"broker {node}", row["reload_error"])


def _is_open(url: str) -> bool:
    """Whether the admin API answers without a login. The probe has no secrets, so it accepts the certificate
    of any CA."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        urllib.request.urlopen(f"{url}/v1/quorum", timeout=PROBE_TIMEOUT_S, context=context).close()
    except (OSError, HTTPException):  # HTTPError, for a refusal, is an OSError
        return False
    return True
