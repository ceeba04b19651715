"""The larger examples of terraform/aws, applied to moto, changed and destroyed.

`minimal` is in test_aws_hosts.py. Hosts do not boot here. Takes eight minutes on two
busy cores, one of CPU time.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aws_emulator
import boto3
import pytest
from terraform_cli import Terraform, module_copy, require_terraform

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]

APPLY = ("-auto-approve", "-no-color", "-input=false", "-parallelism=20")


@pytest.fixture
def aws(tmp_path: Path) -> Iterator[dict[str, str]]:
    require_terraform()
    package = {"TF_VAR_wheels": "s3://packages/tierlog.tar.gz", "TF_VAR_wheels_sha256": "0" * 64}
    with aws_emulator.running(tmp_path) as env:
        yield {**env, **package}


def client(aws: dict[str, str], name: str) -> Any:
    return boto3.client(
        name,
        endpoint_url=aws["AWS_ENDPOINT_URL"],
        region_name=aws_emulator.REGION,
        aws_access_key_id="x",
        aws_secret_access_key="x",
    )


def applied(terraform: Terraform, *options: str) -> str:
    """The last line of what terraform did."""
    said = terraform.run("apply", *APPLY, *options).stdout
    return next(line for line in said.splitlines() if line.startswith("Apply complete!"))


def test_production_is_applied_grown_and_destroyed(aws: dict[str, str], tmp_path: Path) -> None:
    terraform = module_copy(tmp_path, "examples/production", aws)
    assert " 0 changed, 0 destroyed." in applied(terraform)
    outputs = terraform.outputs()
    assert len(outputs["hosts"]) == 11
    assert outputs["outside_bootstrap_servers"].split(",")[5] == "orders.example.com:20601"
    listeners = client(aws, "elbv2").describe_load_balancers()["LoadBalancers"]
    ports = client(aws, "elbv2").describe_listeners(LoadBalancerArn=listeners[0]["LoadBalancerArn"])[
        "Listeners"
    ]
    assert sorted(each["Port"] for each in ports) == [
        20000 + host * 100 + slot for host in range(1, 7) for slot in (1, 2, 3)
    ]
    change = applied(terraform, "-var", "broker_hosts=7", "-var", 'tags={team="logs"}')
    assert " 0 destroyed." in change and "Resources: 0 added" not in change
    assert len(terraform.outputs()["hosts"]) == 12
    terraform.run("destroy", *APPLY)
    assert client(aws, "s3").list_buckets()["Buckets"] == []


def test_existing_vpc_is_used_and_kept(aws: dict[str, str], tmp_path: Path) -> None:
    ec2 = client(aws, "ec2")
    vpc = ec2.create_vpc(CidrBlock="10.50.0.0/16")["Vpc"]["VpcId"]
    subnets = [
        ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.50.{number}.0/24", AvailabilityZone=f"{aws_emulator.REGION}{zone}"
        )["Subnet"]["SubnetId"]
        for number, zone in enumerate("cab")
    ]
    table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
    given = {
        "TF_VAR_vpc_id": vpc,
        "TF_VAR_subnet_ids": "[" + ",".join(f'"{subnet}"' for subnet in subnets) + "]",
        "TF_VAR_route_table_ids": f'["{table}"]',
    }
    terraform = module_copy(tmp_path, "examples/existing-vpc", {**aws, **given})
    assert " 0 changed, 0 destroyed." in applied(terraform)
    zones = {host: about["zone"] for host, about in terraform.outputs()["hosts"].items()}
    assert [zones[f"broker-{number}"][-1] for number in (1, 2, 3)] == ["c", "a", "b"]
    again = applied(
        terraform
    )  # moto forgets descriptions of rules and policies of groups, which are set again
    assert " 0 added," in again and " 0 destroyed." in again
    terraform.run("destroy", *APPLY)
    assert [each["VpcId"] for each in ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]] == [vpc]
