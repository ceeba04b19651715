"""Bad invocations of every command: a non-zero exit status, no traceback, and a next step in each message."""

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_inline import call, commands
from mounts import read_only

from tierlog.cli import node
from tierlog.testing import TierlogBroker

INVOCATIONS = """
frobnicate
--frobnicate
topic
topic frobnicate
dev --port -1
dev --port 65536
dev --port x
dev --admin-port 70000
dev --port 0 --data-dir {file}
dev --port 0 --data-dir {file}/below
dev --port 0 --data-dir /proc/tierlog
dev --port 0 --object-store foo
dev --port 0 --object-store s3://
dev --port 0 --object-store gs://x
dev --port 0 --object-store s3://bucket?regoin=x
dev --port 0 --object-store s3://bucket?endpoint
dev --port 0 --object-store s3://bucket?endpoint=minio:9000
dev --port 0 --object-store s3://[bad
dev --port 0 --object-store 's3://a bucket/'
dev --port 0 --object-store file://relative/directory
dev --port 0 --object-store file:///
dev --port 0 --object-store file:relative
dev --port 0 --object-store 's3://bucket?region='
dev --port 0 --object-store file://{file}
dev --port 0 --object-store file://{file}/below
dev --port 0 --set node.id
dev --port 0 --set =5
dev --port 0 --set log.segment.byte=5
dev --port 0 --set log.segment.bytes=99999999999
dev --port 0 --set num.partitions=many
dev --port 0 --set listeners=nowhere
dev --port 0 --set listeners=SSL://127.0.0.1:0
dev --port 0 --set listeners=SSL://127.0.0.1:0 --set ssl.keystore.location={file}
dev --port 0 --set listener.name.other.ssl.client.auth=required
dev --port 0 --set listener.name.plaintext.node.id=1
certs create --directory {file}
certs create --directory {tmp} --client ../x
certs create --directory {tmp} --days 0
server --config {tmp}/missing.toml
server --config {tmp}
server --config {file}
server --set node.id=x
server --set node.id=99999999999
server --set listeners=PLAINTEXT://:x --set log.dirs={tmp}
server --set log.dirs={file} --set listeners=PLAINTEXT://127.0.0.1:0 --set admin.listener=127.0.0.1:0
server --set object.store.url=s3:// --set log.dirs={tmp}
produce
produce nowhere
produce bad/name
produce there --partition 2147483648
produce there --partition 99999999999999999999
produce there --partition -1
produce there --partition 7
produce there --partition x
produce there --compression gzap
produce there --header novalue
produce there --file {tmp}/missing
produce there --file {tmp}
produce there --bootstrap nowhere
produce there --bootstrap 127.0.0.1:99999
produce there --bootstrap ''
produce there --bootstrap {closed}
produce there --null-marker NULL --compression lz5
consume
consume nowhere
consume there --timestamp 99999999999999999999
consume there --timestamp -5x
consume there --timestamp yesterday
consume there --timestamp 0001-01-01T00:00:00+14:00
consume there --timestamp ²
consume there --offset -1
consume there --offset 9223372036854775808
consume there --offset 99999999999999999999
consume there --offset 5 --exit-at-end
consume there --offset 5 --timestamp 5
consume there --from-beginning --offset 1
consume there --partition 2147483648
consume there --partition 99
consume there --partition -1
consume there --count 0
consume there --group ''
consume there --format xml
consume there --bootstrap {closed}
consume there --bootstrap ,
rest --port 70000
rest --bootstrap nowhere
rest --bootstrap ,
rest --bootstrap {closed} --port 0
rest --bootstrap {closed} --memory 0
rest --bootstrap {closed} --max-streams x
rest --bootstrap {closed} --max-streams 5 --max-connections 5
rest --bootstrap {closed} --key {file}
rest --bootstrap {closed} --certificate {file}
rest --bootstrap {closed} --certificate {tmp}/missing
rest --bootstrap {closed} --client-config {tmp}/missing
rest --bootstrap {closed} --registry localhost:8081
rest --bootstrap {closed} --registry http://user:password@localhost:8081
rest --bootstrap {closed} --registry-login {file}
topic create
topic create ''
topic create .
topic create bad/name
topic create {long}
topic create there
topic create new --partitions 0
topic create new --partitions -2
topic create new --partitions 2147483648
topic create new --partitions 99999999999999999999
topic create new --partitions 2147483647
topic create new --partitions x
topic create new --replication-factor 0
topic create new --replication-factor 9
topic create new --replication-factor 32768
topic create new --config novalue
topic create new --config no.such.setting=1
topic create new --config max.message.bytes=99999999999
topic create new --config retention.ms=9223372036854775808
topic create new --config retention.ms=soon
topic create new --config segment.bytes=1
topic create new --config cleanup.policy=none
topic create new --bootstrap {closed}
topic list --bootstrap {closed}
topic list --bootstrap :
topic list --bootstrap host:
topic list extra
topic describe
topic describe nowhere
topic describe ''
topic describe there --bootstrap {closed}
topic alter
topic alter there
topic alter nowhere --config retention.ms=1
topic alter there --config max.message.bytes=99999999999
topic alter there --config segment.bytes=2147483648
topic alter there --config retention.ms=1h
topic alter there --config no.such.setting=1
topic alter there --unset nosuch
topic alter there --unset retention.mss
topic alter there --config retention.ms=1 --unset retention.ms
topic delete
topic delete there
topic delete nowhere --yes
topic delete '' --yes
topic trim
topic trim there
topic trim there --offset -1
topic trim there --offset 5 --timestamp 5
topic trim there --timestamp yesterday
topic trim there --offset 5 --partition 9
topic trim nowhere --offset 5 --yes
topic list --output xml
topic analyze
topic analyze nowhere
topic analyze there --since yesterday
topic analyze there --since 1h --until 2h
topic analyze there --partition 9
topic analyze there --top 0
topic analyze there --sample-mib 0
topic add-partitions there
topic add-partitions there 0
topic add-partitions there 1
topic add-partitions there 2147483648
topic add-partitions there 2147483647
topic add-partitions there 99999999999999999999
topic add-partitions nowhere 3
cluster logdirs nowhere
cluster logdirs ''
cluster logdirs --admin {closed_admin}
cluster versions --admin {closed_admin}
cluster versions --admin nowhere
cluster self-test --test fly
cluster self-test --node 4711
cluster self-test --seconds 0
cluster self-test --seconds nan
cluster self-test --disk-mib 1000
cluster self-test --admin {closed_admin}
cluster self-test --admin nowhere
cluster config
cluster config get no.such.setting
cluster config get --broker 99
cluster config get --bootstrap {closed}
cluster config set
cluster config set novalue
cluster config set no.such.setting=1
cluster config set num.partitions=5
cluster config set max.connections=5000 --broker 99
cluster config export --format xml
cluster config export --output {tmp}
cluster config export --output {tmp}/missing/file
cluster config export --bootstrap {closed}
cluster config diff
cluster config diff {tmp}/missing
cluster config diff {file}
cluster config diff {file} --brokers 1,1
cluster config diff --brokers 1,99
cluster config diff --brokers 1
cluster config import
cluster config import {file} --yes
cluster config import {tmp}/missing --yes
cluster config import {tmp} --yes
cluster config import {file} --format xml
cluster config lint
cluster config lint {file}
cluster config lint {tmp}/missing
cluster finalize --admin {closed_admin}
cluster finalize --dry-run --admin {closed_admin}
cluster rollout
cluster rollout --hosts hosts
cluster rollout --hosts nowhere --command 'ssh {{host}}'
cluster rollout --hosts , --command 'ssh {{host}}'
cluster rollout --hosts hosts --command true
cluster rollout --hosts hosts --command 'ssh {{host}} {{version}}'
cluster rollout --hosts hosts --command 'ssh {{host}}' --steps {file}
cluster rollout --hosts hosts --steps {tmp}/missing
cluster rollout --hosts hosts --command 'ssh {{host}}' --ignore node
cluster rollout --hosts hosts --command 'ssh {{host}}' --wait 0
cluster rollout --hosts hosts --command 'ssh {{host}}' --wait nan
cluster rollout --hosts hosts --command 'ssh {{host}}' --state {tmp}
cluster rollout --hosts hosts --command 'ssh {{host}}' --state {file}/below
cluster rollout --hosts hosts --command 'ssh {{host}}' --admin {closed_admin}
cluster rollout --hosts hosts --command 'ssh {{host}}'
tier verify nowhere
tier verify --sample 0
tier verify --sample x
tier verify --resume {file}
tier verify --admin {closed_admin}
tier gc
tier gc --dry-run --admin {closed_admin}
tier snapshots create nightly
tier snapshots create nightly t --lease soon
tier snapshots create nightly t --admin {closed_admin}
tier snapshots end
tier snapshots end nightly --admin {closed_admin}
tier snapshots list --admin {closed_admin}
tier status nowhere
tier status --admin nowhere
tier status --admin http://
tier status --admin http://127.0.0.1:99999
tier status --admin {closed_admin}
tier status --admin ''
tier flush
tier flush nowhere
tier explain there
tier explain there 9 0
tier explain there 0 x
tier explain there 0 5
tier explain there -1 0
tier explain there 2147483648 0
tier explain there 0 9223372036854775808
tier explain there 0 99999999999999999999
tier explain nowhere 0 0
acl list
acl list --allow-host ::1
acl list --operation fly
acl create
acl create --allow-principal ada --operation read
acl create --allow-principal ada --topic t
acl create --topic t --operation read
acl create --allow-principal ada --topic t --operation fly
acl create --allow-principal ada --topic t --operation cluster-action
acl create --allow-principal ada --topic t --operation read --resource-pattern-type match
acl create --deny-host ::1 --topic t --operation read
acl create --allow-principal ada --topic t --operation read
acl create --allow-principal ada --user bob --operation read
acl create --allow-principal ada --delegation-token t --operation create-tokens
token create
token create --max-lifetime soon
token create --max-lifetime 0h
token create --max-lifetime -1h
token create --output /
token create --output /nowhere/job.properties
token describe
token describe nosuch
token list
token renew
token renew nosuch
token renew nosuch --period 0m
token expire
token expire nosuch
token expire nosuch --yes
token expire nosuch --after never
acl delete
acl delete --topic t
acl delete --topic t --yes
acl delete --topic t --resource-pattern-filter some
quota list --user a --user-defaults
quota list --ip ::1 --user a
quota set
quota set producer_byte_rate=5
quota set producer_byte_rate --user ada
quota set producer_byte_rate=fast --user ada
quota set producer_byte_rate=-1 --user ada
quota set producer_byte_rate=nan --user ada
quota set no_such_rate=5 --user ada
quota set connection_creation_rate=5 --user ada
quota set connection_creation_rate=5 --ip 'not an address'
quota set producer_byte_rate=5 --ip ::1
quota set producer_byte_rate=5 --user ''
user create
user create ''
user create ada
user create ada --password-file {tmp}/missing
user create ada --password-file {tmp}
user create ada --password-file /dev/null
user create ada --password-file {file} --mechanism PLAIN
user create ada --password-file {file} --iterations 100
user create ada --password-file {file} --iterations 99999
user describe
user describe eve
user describe ''
user alter eve --password-file {file}
user delete eve --yes
user delete ''
user list --client-config {tmp}/missing
user list --client-config {tmp}
storage
storage format
storage format --add-scram x
storage format --add-scram 'PLAIN=[name=a,password=b]'
storage format --add-scram 'SCRAM-SHA-256=[name=a]'
storage format --add-scram 'SCRAM-SHA-256=[password=b]'
storage format --add-scram 'SCRAM-SHA-256=[name=a,password=b,iterations=5]'
storage format --add-scram 'SCRAM-SHA-256=[name=a,password=b,role=c]'
storage format --add-scram 'SCRAM-SHA-256=[name=a,salt=x,saltedpassword=?]'
storage format --add-scram 'SCRAM-SHA-256=[name=a,password-file={tmp}/missing]' --set log.dirs={tmp}/new
storage format --add-scram 'SCRAM-SHA-256=[name=a,password=b]' --set log.dirs={file}
quota remove
quota remove --user nobody
quota remove no_such_rate --user nobody
quota remove --user ada --user-defaults
generate
generate dashboards
generate dashboards {file}
generate dashboards {file}/below
generate clients
generate clients {file}
generate clients {tmp}/x --profile nosuch
generate connect
generate connect {file}
generate connect {tmp}/x --group 'a b'
generate prometheus
generate prometheus {tmp}/x --job kafka
generate prometheus {tmp}/x --admin http://127.0.0.1:1
generate systemd
generate systemd {file}
generate systemd {tmp}/x --program relative
generate systemd {tmp}/x --user 'a b'
generate alerts
generate alerts {file}
group describe
group describe ''
group describe nowhere
group describe nowhere --watch
group describe nowhere --members --state
group describe nowhere --bootstrap {closed}
group list --bootstrap {closed}
group delete
group delete '' --yes
group delete nowhere
group delete nowhere --yes
group seek readers
group seek readers there 0 -1
group seek readers there 0 9223372036854775808
group seek readers there 0 5
group seek readers there 9 0
group seek readers nowhere 0 0
group reset readers
group reset readers --to-latest
group reset readers --topic there
group reset readers --topic there --to-latest --to-earliest
group reset readers --topic there --all-topics --to-latest
group reset readers --all-topics --to-latest --yes
group reset readers --topic there --to-latest
group reset readers --topic nowhere --to-latest --yes
group reset readers --topic there:9 --to-latest --yes
group reset readers --topic there:x --to-latest --yes
group reset readers --topic there --to-offset -1
group reset readers --topic there --to-offset 9223372036854775808
group reset readers --topic there --to-datetime yesterday
group reset readers --topic there --by-duration 5
group reset readers --topic there --shift-by -1 --yes
group reset readers --from-file {tmp}/missing
group reset readers --from-file {file}
group reset readers --from-file {file} --topic there
group offset-delete readers
group offset-delete readers --topic there --yes
group export
group export nowhere
group export nowhere --format xml
group import
group import {tmp}/missing --yes
group import {tmp} --yes
group import {file} --yes
group import {file} --group '' --yes
txn list --open-longer-than -1
txn list --producer-id x
txn describe
txn describe nowhere
txn find-hanging --older-than -1
txn find-hanging --topic nowhere
txn abort there
txn abort there 0 -1
txn abort there 0 5 --yes
txn abort there 9 0 --yes
txn abort nowhere 0 0 --yes
spark backfill
spark backfill --path {tmp}/missing --topic t --to {tmp}/out
spark backfill --path {tmp} --topic t --to {tmp}/out --format xml
spark audit --path {tmp}/missing
spark audit --path {tmp}
spark compact --path {tmp} --topic t
spark compact --path {tmp}/missing --topic t --admin {closed_admin}
spark load --path {tmp} --topic t
spark load --path {tmp} --topic t --name n --admin {closed_admin}
spark replay --path {tmp} --topic t
spark replay --path {tmp}/missing --topic t --to-bootstrap {closed} --checkpoint {tmp}/c
spark rewrite --path {tmp} --topic t --codec zstd
spark rewrite --path {tmp}/missing --topic t --admin {closed_admin} --codec zstd
spark stats --path {tmp}/missing
spark stats --path {tmp} --bucket 1
security check --config {tmp}/missing
security check --config {tmp}
security check --config {file} --bootstrap {closed}
security check --days 0
security check --ignore nosuch
security check --bootstrap {closed}
security roles viewer
security roles --bootstrap {closed}
spark package --output {tmp}/missing/archive.tar.gz
cluster up --nodes 0
cluster up --nodes 100
cluster up --voters 8
cluster up --port 65536
cluster up --port 65000 --nodes 3
cluster up --data-dir {file}
cluster up --data-dir {file}/below
cluster up --set novalue --data-dir {tmp}/cluster
cluster up --set no.such.setting=1 --data-dir {tmp}/cluster
cluster up --set num.partitions=many --data-dir {tmp}/cluster
cluster up --secure --set super.users=ada --data-dir {tmp}/cluster
cluster down
cluster down --data-dir {tmp}
cluster down --data-dir {file}
cluster status
cluster status --data-dir {broken}
cluster start
cluster start 99 --data-dir {tmp}
cluster stop
cluster stop 1
cluster stop x
cluster kill 1 --data-dir {tmp}
cluster pause 1 --data-dir {tmp}
cluster resume 1 --data-dir {tmp}
cluster info --bootstrap {closed}
cluster info --admin {closed_admin} --json
doctor --admin {closed_admin}
doctor --bootstrap {closed}
doctor --bundle {file}
doctor --bundle {tmp}
doctor --bundle {file} --admin {closed_admin}
debug
debug bundle --admin {closed_admin} --output {tmp}/new.tar.gz
debug bundle --log {tmp}/missing.log
cluster health --admin {closed_admin}
cluster health --admin nowhere
cluster health --admin ''
cluster health --wait -1
cluster health --wait nan
broker list --admin {closed_admin}
broker drain
broker drain 99
broker drain x
broker drain 99999999999999999999
broker drain 1 --timeout 0
broker drain 1 --timeout nan
broker decommission 99
broker decommission 1 --force
broker decommission 2147483648
broker settings 99
broker settings 2147483648
broker alter
broker alter --config novalue
broker alter --config no.such.setting=1
broker alter --config num.partitions=5
broker alter --config message.max.bytes=99999999999
broker alter --unset log.retention.mss
broker alter 99 --config log.retention.ms=5
partition list nowhere
partition list --offline --moving
partition move there 0
partition move there 0 --to x
partition move there 0 --to ''
partition move there 0 --to 99
partition move there 0 --to 1,1
partition move there 0 --to 2147483648
partition move there 0 --to 1 --cancel
partition move there 0 --to 1 --throttle 0
partition move there 0 --to 1 --throttle 99999999999999999999
partition move there 9 --to 1
partition move there 2147483648 --to 1
partition move nowhere 0 --to 1
partition move-dir there 0
partition move-dir there 0 --to relative
partition move-dir there 9 --to {tmp}
partition move-dir there 0 --to {tmp}
partition move-dir there 0 --to {tmp} --broker 99
partition move-dir nowhere 0 --to {tmp}
partition elect nowhere
partition elect there 9
partition elect there 2147483648
partition elect there -1
partition balance --admin {closed_admin}
partition balance --explain --execute
partition balance --explain --seconds 0
partition balance --explain --max-moves 0
partition balance --execute --throttle 0
partition unthrottle --admin {closed_admin}
quorum status --admin {closed_admin}
quorum add 7
quorum add 7 nowhere
quorum add 7 http://nowhere.invalid
quorum add 2147483648 http://127.0.0.1:1
quorum add 99999999999999999999 http://127.0.0.1:1
quorum remove
quorum remove 1
quorum remove 99
quorum remove 99999999999999999999
quorum recover {tmp}
quorum recover {file}
quorum recover {tmp}/missing
quorum recover {tmp} --metadata-dir {file}
plan
plan --rate 5MB/s
plan --rate fast --retention 5y
plan --rate 0MB/s --retention 5y
plan --rate 5MB --retention 5y
plan --rate 1.2.3MB/s --retention 5y
plan --rate 5MB/s --retention soon
plan --rate 5MB/s --retention 0d
plan --rate 5MB/s --retention 5y --local -1h
plan --rate 5MB/s --retention 5y --replicas 0
plan --rate 5MB/s --retention 5y --prices {file}
plan --rate 5MB/s --retention 5y --prices {tmp}/missing
profile
profile create
profile create prod
profile create pr/od -b {closed}
profile create prod -b {closed} --user ada --password secret
profile create prod -b {closed} --protocol TLS
profile use
profile use nosuch
profile list extra
profile show nosuch
profile show
profile delete
profile delete nosuch --yes
profile prompt extra
topic list --profile nosuch
log dump
log dump {tmp}/missing
log dump {file}
log dump {tmp} --from -1
log verify {file}
log verify {tmp}/missing
log rebuild-index {file}
log rebuild-index {tmp} --index-interval-bytes -1
""".strip().splitlines()


def refuse_to_serve(state: str) -> None:
    """Fails a test whose bad invocation would start a node that runs forever."""
    raise AssertionError(f"the node started: {state}")


@pytest.fixture(scope="module")
def places(
    tierlog_session_broker: TierlogBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """Values of the words in braces. The topic `there` has one partition and no records."""
    top = tmp_path_factory.mktemp("bad")
    (top / "file").write_text("no TOML = [")
    (top / "empty").mkdir()
    (top / "broken").mkdir()
    (top / "broken" / "cluster.json").write_text("{")
    closed = "127.0.0.1:1"
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "notify", refuse_to_serve)
        patch.setenv("XDG_STATE_HOME", str(top / "state"))  # no cluster of the user's
        patch.setenv("XDG_CONFIG_HOME", str(top / "config"))
        patch.setenv("TIERLOG_BOOTSTRAP", tierlog_session_broker.bootstrap)
        patch.setenv("TIERLOG_ADMIN", tierlog_session_broker.admin_url)
        assert call("topic", "create", "there", "--partitions", "1").code == 0
        yield {
            "tmp": str(top / "empty"),
            "file": str(top / "file"),
            "broken": str(top / "broken"),
            "long": "x" * 250,
            "closed": closed,
            "closed_admin": f"http://{closed}",
        }
        call("topic", "delete", "there", "--yes")
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("line", INVOCATIONS)
def test_bad_invocation_has_an_error_and_a_hint(line: str, places: dict[str, str]) -> None:
    ended = call(*shlex.split(line.format_map(places)))
    said = ended.stderr + ended.stdout * (not ended.stderr)
    assert ended.code not in (0, 130), said
    assert "Traceback" not in said
    problem, _, hint = said.partition("tierlog: ")[2].partition("\n")
    if problem:
        assert hint.strip(), f"no next step: {said}"
    else:
        assert "Try 'tierlog" in said or "`tierlog " in said or "─ Commands ─" in said, (
            f"no next step: {said}"
        )
    assert list(Path(places["tmp"]).iterdir()) == []


@pytest.mark.parametrize("directory", ["", "below"])
def test_read_only_data_directory_is_rejected(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "notify", refuse_to_serve)
    data_dir = str(tmp_path / directory)
    with read_only(tmp_path):
        ended = call("dev", "--port", "0", "--data-dir", data_dir)
    assert ended.code == 1 and data_dir in ended.stderr and "--data-dir" in ended.stderr


def test_every_command_has_bad_invocations() -> None:
    tried = {" ".join(line.split()[:count]) for line in INVOCATIONS for count in (1, 2, 3)}
    assert len(INVOCATIONS) >= 200
    assert set(commands()) <= tried
