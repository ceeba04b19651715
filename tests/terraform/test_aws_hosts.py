"""A cluster from terraform/aws on this machine: applied to moto, its hosts booted by their user data.

Three voters and three brokers, each in a network namespace with a disk of its own; tests/support/aws_hosts.py
says what is real. Takes ten minutes on two busy cores, and two of CPU time.
"""

import base64
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aws_emulator
import aws_hosts
import boto3
import pytest
from aws_hosts import Host, Network
from terraform_cli import ROOT, Terraform, module_copy, require_terraform
from waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1500)]

MODULE = ROOT / "terraform" / "aws"
VOTERS = ["voter-1", "voter-2", "voter-3"]
BROKERS = ["broker-1", "broker-2", "broker-3"]


@dataclass
class Cluster:
    """A cluster that was applied and booted."""

    terraform: Terraform
    network: Network
    outputs: Any
    clients: dict[str, Any]
    images: dict[str, Path]
    env: dict[str, str]
    booted: dict[str, str] = field(default_factory=dict)  # host -> output of its user data

    def instance(self, host: str) -> dict[str, Any]:
        groups = self.clients["autoscaling"].describe_auto_scaling_groups(
            AutoScalingGroupNames=[self.outputs["hosts"][host]["auto_scaling_group"]]
        )
        return dict(groups["AutoScalingGroups"][0]["Instances"][0])

    def user_data(self, host: str) -> str:
        """The user data of the launch template of the host's instance."""
        versions = self.clients["ec2"].describe_launch_template_versions(
            LaunchTemplateName=f"tierlog-small-{host}", Versions=["$Latest"]
        )
        data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]["UserData"]
        return base64.b64decode(data).decode()

    def boot(self, name: str) -> Host:
        """An instance of the host with its disk, booted. Names are those that hosts have written."""
        host = self.network.add(name, self.instance(name)["InstanceId"], self.images[name])
        self.booted[name] = host.boot(self.user_data(name))
        self.network.resolve(self.records())
        return host

    def waits_for_secrets(self, name: str) -> bool:
        host = self.network.hosts.get(name)
        return host is not None and host.runs() and "run bin/make-secrets" in host.boot_log()

    def replace(self, name: str, image: Path) -> None:
        """The host ends, and its auto scaling group starts another instance with this disk."""
        ended = self.instance(name)["InstanceId"]
        self.network.hosts[name].stop()
        self.clients["autoscaling"].terminate_instance_in_auto_scaling_group(
            InstanceId=ended, ShouldDecrementDesiredCapacity=False
        )
        until(lambda: self.instance(name)["InstanceId"] != ended, "another instance")
        self.images[name] = image
        self.boot(name)

    def records(self) -> dict[str, str]:
        zone = self.clients["route53"].list_hosted_zones()["HostedZones"][0]["Id"]
        sets = self.clients["route53"].list_resource_record_sets(HostedZoneId=zone)["ResourceRecordSets"]
        return {
            each["Name"].rstrip("."): each["ResourceRecords"][0]["Value"]
            for each in sets
            if each["Type"] == "A"
        }

    def secret(self, name: str) -> str:
        found = self.clients["ssm"].get_parameter(Name=f"/tierlog/small/secrets/{name}", WithDecryption=True)
        return str(found["Parameter"]["Value"])

    def tierlog(self, *arguments: str, text: str = "") -> str:
        """A command of the administrator, on the first voter's host: it has no listener for clients."""
        host, ca = self.network.hosts["voter-1"], "/run/tierlog/secrets/ca.pem"
        properties = self.outputs["client_properties"].replace(
            "PASSWORD", self.secret("brokers/admin.password")
        )
        properties = properties.replace("ca.pem", ca)
        script = (
            f"umask 077; cat > /run/admin.properties << 'END'\n{properties}\nEND\n"
            f"export TIERLOG_CLIENT_CONFIG=/run/admin.properties TIERLOG_ADMIN_CA={ca}\n"
            f"export TIERLOG_ADMIN={self.outputs['admin_urls']}\n"
            f'printf "{text}" | /opt/tierlog/bin/tierlog "$@"'
        )
        return host.command("sh", "-c", script, "tierlog", *arguments)

    def logs(self) -> str:
        return "\n".join(
            f"{name}: {host.log(node)[-3000:]}"
            for name, host in self.network.hosts.items()
            for node in self.outputs["hosts"][name]["nodes"]
        )


def package(directory: Path) -> tuple[Path, str]:
    """The archive of bin/make-package for this machine, and its SHA-256."""
    file = directory / "tierlog.tar.gz"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    made = aws_hosts.run(MODULE / "bin/make-package", file, os.uname().machine, env=environment)
    return file, made.stdout.split()[0]


def make_secrets(env: dict[str, str], outputs: Any) -> str:
    bin = f"{Path(sys.executable).parent}:{Path(aws_hosts.real_aws()).parent}"
    done = aws_hosts.run(
        MODULE / "bin/make-secrets",
        outputs["parameters"],
        outputs["domain"],
        outputs["kms_key_arn"],
        env={**os.environ, **env, "PATH": f"{bin}:{os.environ['PATH']}"},
    )
    return done.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_terraform()
    aws_hosts.require_hosts()
    directory = tmp_path_factory.mktemp("aws")
    port = 5000
    with (
        aws_hosts.network(directory, port) as network,
        aws_emulator.running(directory, aws_hosts.GATEWAY, port) as env,
    ):
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": aws_emulator.REGION}
        services = ("s3", "ec2", "autoscaling", "route53", "ssm")
        clients = {
            name: boto3.client(name, endpoint_url=env["AWS_ENDPOINT_URL"], **keys) for name in services
        }
        archive, sha256 = package(directory)
        where = {"LocationConstraint": aws_emulator.REGION}
        clients["s3"].create_bucket(Bucket="packages", CreateBucketConfiguration=where)
        clients["s3"].upload_file(str(archive), "packages", archive.name)
        variables = {"TF_VAR_wheels": f"s3://packages/{archive.name}", "TF_VAR_wheels_sha256": sha256}
        terraform = module_copy(directory, "examples/minimal", {**env, **variables})
        terraform.run("apply", "-auto-approve", "-no-color", "-input=false")
        outputs = terraform.outputs()
        images = {name: network.image(name) for name in [*VOTERS, *BROKERS]}
        made = Cluster(terraform, network, outputs, clients, images, env)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(made.boot, VOTERS[0])  # it installs the package for all
            until(lambda: first.done() or made.waits_for_secrets(VOTERS[0]), "no host waits", 300)
            make_secrets(env, outputs)
            first.result()
            list(pool.map(made.boot, [*VOTERS[1:], *BROKERS]))
        made.network.resolve(made.records())
        yield made


PRODUCE = """
import sys
from confluent_kafka import Producer
producer = Producer({
    "bootstrap.servers": sys.argv[1],
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": "/run/tierlog/secrets/ca.pem",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "admin",
    "sasl.password": open("/run/tierlog/secrets/admin.password").readline().strip(),
    "acks": "all",
})
def delivered(error, message):
    print("failed" if error else "delivered", error or message.offset())
for value in sys.argv[2:]:
    producer.produce("events", value.encode(), partition=0, on_delivery=delivered)
producer.flush(60)
"""
"""A program of confluent-kafka: bootstrap servers, then values of records."""


def produce(cluster: Cluster, *values: str) -> list[str]:
    host = cluster.network.hosts["broker-1"]
    servers = cluster.outputs["bootstrap_servers"]
    return host.command(sys.executable, "-c", PRODUCE, servers, *values).splitlines()


def await_health(cluster: Cluster) -> None:
    try:
        cluster.tierlog("cluster", "health", "--wait", "240")
    except AssertionError as failure:
        raise AssertionError(f"{failure}\n{cluster.logs()}") from None


def test_hosts_serve_clients_over_tls(cluster: Cluster) -> None:
    await_health(cluster)
    assert cluster.records() == {
        f"{name}.small.internal": host.address for name, host in cluster.network.hosts.items()
    }
    cluster.tierlog(
        "topic", "create", "events", "--partitions", "3", "--config", "remote.storage.enable=true"
    )
    assert produce(cluster, "first", "second") == ["delivered 0", "delivered 1"]
    cluster.tierlog("tier", "flush", "events")
    listed = cluster.clients["s3"].list_objects_v2(Bucket=cluster.outputs["bucket"], Prefix="history/")
    assert [found["Key"] for found in listed["Contents"] if found["Key"].endswith(".log")]


def test_a_host_without_secrets_tries_again(cluster: Cluster) -> None:
    said = cluster.booted["voter-1"]
    assert "no parameter /tierlog/small/secrets/nodes/quorum: run bin/make-secrets" in said
    assert said.endswith("started node 1\n")


def test_neither_state_nor_user_data_has_a_secret(cluster: Cluster) -> None:
    text = (cluster.terraform.directory / "terraform.tfstate").read_text(encoding="utf-8")
    text += "".join(cluster.user_data(name) + cluster.booted[name] for name in [*VOTERS, *BROKERS])
    names = [
        "nodes/quorum",
        "brokers/broker.password",
        "brokers/admin.password",
        "brokers/prometheus.password",
    ]
    secrets = [cluster.secret(name) for name in names]
    secrets += [cluster.secret(name).splitlines()[1] for name in ("nodes/tls.pem", "operator/ca.key")]
    assert all(len(secret) >= 32 for secret in secrets)
    assert [secret for secret in secrets if secret in text] == []
    assert make_secrets(cluster.env, cluster.outputs) == ""  # they exist, and stay


def test_another_boot_changes_nothing(cluster: Cluster) -> None:
    for name, node in (("broker-1", "101"), ("voter-2", "2")):
        host = cluster.network.hosts[name]
        before = host.process(node)
        said = host.command("/usr/local/lib/tierlog/fetch")
        assert "changed" not in said and "formatting" not in said and "installed" not in said
        assert host.process(node) == before
    assert cluster.network.hosts["broker-1"].command("/usr/local/lib/tierlog/boot", "renew") == ""


def test_a_new_instance_of_a_broker_copies_its_replicas(cluster: Cluster) -> None:
    old = cluster.network.hosts["broker-2"]
    cluster.replace("broker-2", cluster.network.image("another"))
    assert cluster.network.hosts["broker-2"].address != old.address
    await_health(cluster)
    listed = cluster.network.hosts["broker-2"].command("ls", "/var/lib/tierlog/disk-0/201")
    assert {"events-0", "events-1", "events-2"} <= set(listed.split())
    assert produce(cluster, "third") == ["delivered 2"]


def test_a_new_instance_of_a_voter_has_its_volume(cluster: Cluster) -> None:
    cluster.replace("voter-3", cluster.images["voter-3"])
    assert "formatting" not in cluster.booted["voter-3"]
    await_health(cluster)
    attached = [
        each["InstanceId"]
        for volume in cluster.clients["ec2"].describe_volumes()["Volumes"]
        if {"Key": "tierlog:host", "Value": "voter-3"} in volume.get("Tags", ())
        for each in volume["Attachments"]
        if each["Device"] == "/dev/sdf"  # the root volume has another name
    ]
    assert attached == [cluster.instance("voter-3")["InstanceId"]]


def test_a_host_is_added_and_the_cluster_is_destroyed(cluster: Cluster) -> None:
    change = [
        "-auto-approve",
        "-no-color",
        "-input=false",
        "-var",
        "broker_hosts=4",
        "-var",
        'tags={team="logs"}',
    ]
    done = cluster.terraform.run("apply", *change)
    assert " 0 destroyed." in done.stdout
    cluster.outputs = cluster.terraform.outputs()
    cluster.images["broker-4"] = cluster.network.image("broker-4")
    cluster.boot("broker-4")
    await_health(cluster)
    listed = cluster.tierlog("broker", "list")
    assert all(node in listed for node in ("101", "201", "301", "401"))
    for host in cluster.network.hosts.values():
        host.stop()
    cluster.terraform.run("destroy", *change)
    assert cluster.clients["s3"].list_buckets()["Buckets"][0]["Name"] == "packages"
    assert cluster.clients["route53"].list_hosted_zones()["HostedZones"] == []
