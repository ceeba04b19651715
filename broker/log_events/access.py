"""Log events of connections, logins, certificates and the audit log."""

from typing import Final

from tierlog.broker.log_events.event import Event

ACCESS: Final = {
    "admin.certificate.refused": Event(
        "refused a certificate for the admin API",
        "Use a certificate that the CA in controller.quorum.ssl.ca has signed: `tierlog certs`.",
    ),
    "admin.request.denied": Event(
        "denied an admin request",
        "Add the principal to admin.operators or admin.observers if it may do this.",
    ),
    "admin.token.refused": Event(
        "refused a token for the admin API",
        "Request a new token; `why` says what is wrong with this one.",
    ),
    "audit.entries.lost": Event(
        "entries of the audit log are lost",
        "Make space on the disk of audit.log.dir, or replace the disk: docs/howto/audit-log.md.",
    ),
    "audit.stopping.incomplete": Event(
        "the broker stops with audit entries that are not in the topic",
        "Read them in the files of audit.log.dir.",
    ),
    "audit.topic.waiting": Event(
        "entries of the audit log wait for their topic",
        "Nothing is lost. If it persists, `tierlog topic describe` says why the topic accepts no records.",
    ),
    "authentication.failed": Event(
        "authentication failed",
        "Correct the client's credentials. Many failures from one client may be an attack.",
    ),
    "certificate.cluster.reload_failed": Event(
        "cannot reload replaced certificates",
        "Correct the files of controller.quorum.ssl.*: the old certificate stays in use until it expires.",
    ),
    "certificate.cluster.reloaded": Event("reloaded replaced certificates of the nodes and the admin API"),
    "certificate.listener.reload_failed": Event(
        "cannot use a replaced certificate: the old one stays in use",
        "Correct the files of the listener's ssl.keystore.* and ssl.truststore.* settings.",
    ),
    "certificate.listener.reloaded": Event("reloaded replaced certificates of a listener"),
    "connection.closed": Event(
        "closed a connection",
        "`why` and `detail` say what the client did. Check its version, and that it speaks Kafka's protocol.",
    ),
    "connection.limited": Event(
        "connections are refused or wait",
        "Find the client that opens many connections, or raise the setting that `bound` names.",
    ),
    "connection.tls.failed": Event(
        "a TLS handshake failed",
        "Check the client's CA, its certificate, and that it uses TLS on this port.",
    ),
    "oauth.keys.unreadable": Event(
        "cannot read the keys of OAUTHBEARER tokens",
        "Check that the broker reaches the URL. The keys that it knows stay in use.",
    ),
    "user.first.ignored": Event(
        "first users were not taken, since the cluster existed or another broker registered first",
        "Create them with `tierlog user create`, and delete the file.",
    ),
}
