"""terraform/aws: form, validity, what follows from each variable, and the message of each invalid value.

`terraform test` runs with a mocked provider, without AWS. 90 s on two busy cores, a third of it CPU time.
"""

import json
import subprocess
from collections.abc import Iterator

import pytest
from terraform_cli import ROOT, Terraform, module_copy, require_terraform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODULE = ROOT / "terraform" / "aws"
EXAMPLES = sorted(path.name for path in (MODULE / "examples").iterdir())
WHEELS = '{ wheels = "s3://packages/tierlog.tar.gz", sha256 = "' + "0" * 64 + '" }'
VALID = {"name": '"orders"', "package": WHEELS}

INVALID = {
    "name": [
        ('"Orders"', "name must have 2 to 20 lower-case letters"),
        ('"orders-"', "not end with a hyphen"),
    ],
    "tags": [
        ('{ "aws:x" = "1" }', "must not begin with aws:"),
        ('{ "tierlog:x" = "1" }', "set by this module"),
    ],
    "broker_hosts": [("2", "from 3 (one in each zone) to 60"), ("3.5", "must be a whole number")],
    "broker_instance_type": [
        ('"m7g.large"', "must have NVMe instance storage"),
        ('"i4g"', "such as i4g.xlarge"),
    ],
    "brokers_per_host": [("0", "must be a whole number from 1 to 32")],
    "voters": [("4", "voters must be 3 or 5")],
    "voter_instance_type": [('"small"', "must be an instance type, such as t4g.small")],
    "voter_volume_gib": [("1", "must be from 8 to 1024")],
    "root_volume_gib": [("4", "must be from 8 to 1024")],
    "ami_id": [('"al2023"', "must be the id of an image")],
    "package": [
        ("{}", "needs either wheels or requirements, and not both"),
        ('{ wheels = "tierlog.tar.gz", sha256 = "' + "0" * 64 + '" }', "must be an archive in S3"),
        ('{ wheels = "s3://packages/tierlog.tar.gz", sha256 = "abc" }', "in 64 hexadecimal digits"),
        ('{ requirements = "tierlog==0.1.0", index_url = "https://i.example" }', "must have --hash=sha256"),
        ('{ requirements = "tierlog --hash=sha256:1" }', "needs package.index_url"),
        ('{ requirements = "a --hash=sha256:1", index_url = "https://u:p@i.example" }', "have no login"),
    ],
    "acm_pca_arn": [('"arn:aws:acm:x"', "must be the ARN of a certificate authority")],
    "settings": [
        ('{ "node.id" = "1" }', "this module sets them for each node"),
        ('{ "delegation.token.secret.key" = "x" }', "must not have secrets, which would be in the state"),
        ('{ "ssl.keystore.key" = "x" }', "must not have secrets, which would be in the state"),
    ],
    "bucket_name": [('"my.bucket"', "a dot breaks TLS")],
    "bucket_noncurrent_days": [("0", "must be from 1 to 3650")],
    "bucket_abort_uploads_days": [("0", "must be from 1 to 365")],
    "kms_key_arn": [('"alias/tierlog"', "must be the ARN of a KMS key, not of an alias")],
    "alarm_topic_arns": [('["on-call"]', "must be ARNs of SNS topics")],
    "vpc_cidr": [
        ('"10.0.0.0/8"', "must be an IPv4 network of /16 to /22"),
        ('"10.0.0"', "such as 10.40.0.0/16"),
    ],
    "availability_zones": [
        ('["a", "b"]', "must name three different zones"),
        ('["a", "a", "b"]', "different zones"),
    ],
    "nat_gateways": [("2", "must be 1 or 3")],
    "vpc_id": [('"vpc"', "must be the id of a VPC"), ('"vpc-0123456789abcdef0"', "must be set together")],
    "subnet_ids": [('["a", "b"]', "must name three different subnets")],
    "s3_endpoint_route_table_ids": [
        ('["table"]', "must be ids of route tables"),
        ('["rtb-0123456789abcdef0"]', "needs vpc_id"),
    ],
    "domain": [('"orders"', "must be a domain name in lower case")],
    "client_cidrs": [('["10.0.0.1"]', "must be networks such as 10.0.0.0/8")],
    "client_security_group_ids": [('["clients"]', "must be ids of security groups")],
    "operator_cidrs": [('["0.0.0.0/0"]', "not the whole internet")],
    "outside": [
        ('{ hostname = "orders", cidrs = ["198.51.100.0/24"] }', "must be a domain name in lower case"),
        ('{ hostname = "orders.example.com", cidrs = [] }', "must name the networks of the clients"),
        (
            '{ hostname = "orders.example.com", cidrs = ["198.51.100.0/24"] }\n'
            '  vpc_id = "vpc-0123456789abcdef0"\n  subnet_ids = ["a", "b", "c"]',
            "must name three subnets if vpc_id is set",
        ),
    ],
}
"""Variable -> invalid values in the language of terraform, and a part of the message."""

COMPARED = ("vpc_id", "subnet_ids", "s3_endpoint_route_table_ids", "outside")
"""Variables that are compared with each other: terraform does so only while the other one is valid."""

WITHOUT_INVALID_VALUES = {
    *("bucket_versioning", "bucket_force_destroy", "session_manager"),
    *("cloudwatch_agent", "cloudwatch_dashboard"),
}
"""Variables of type bool."""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    return module_copy(tmp_path_factory.mktemp("module"))


def variables() -> dict[str, str]:
    """Variable -> its block."""
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(MODULE.glob("variables*.tf")))
    blocks = text.split('\nvariable "')[1:]
    return {block.split('"', 1)[0]: block for block in blocks}


def test_files_are_formatted() -> None:
    require_terraform()
    done = subprocess.run(
        ["terraform", "fmt", "-check", "-recursive", str(ROOT / "terraform")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_tflint_has_no_findings() -> None:
    """It builds tflint the first time, and fails where that is not possible."""
    tflint = subprocess.check_output([ROOT / ".ci" / "get-tflint.sh"], text=True).strip()
    config = ROOT / "terraform" / ".tflint.hcl"
    done = subprocess.run(
        [tflint, "--recursive", f"--chdir={ROOT / 'terraform'}", f"--config={config}", "--format=compact"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_variable_has_a_type_a_description_and_invalid_values() -> None:
    found = variables()
    assert found.keys() == INVALID.keys() | WITHOUT_INVALID_VALUES
    for name, block in found.items():
        assert "description = " in block and "type " in block, name
        assert ("validation {" in block) == (name in INVALID), name
        assert block.count("error_message") <= len(INVALID.get(name, ())), f"{name}: a message is not tested"


def test_each_variable_is_set_in_a_test() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in sorted(MODULE.glob("tests/*.tftest.hcl")))
    assert [name for name in variables() if f"\n    {name} " not in text and f"\n  {name} " not in text] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_valid(module: Terraform, example: str) -> None:
    terraform = module_copy(module.directory.parents[1], f"examples/{example}")
    assert json.loads(terraform.run("validate", "-json").stdout)["diagnostics"] == []


@pytest.mark.nightly
def test_resources_follow_from_the_variables(module: Terraform) -> None:
    done = module.run("test", "-no-color")
    assert "0 failed" in done.stdout


def test_a_bucket_that_cannot_be_destroyed_keeps_its_key(module: Terraform) -> None:
    """terraform destroys what a resource depends on only after the resource."""
    assert '"aws_s3_bucket.history" -> "aws_kms_key.new"' in module.run("graph").stdout


def runs() -> Iterator[dict[str, tuple[str, str]]]:
    """Variable -> invalid value and message, for each run. terraform reports the invalid variables of a run
    together: the first values of most variables are in one run, the second ones in the next."""
    together = {name: values for name, values in INVALID.items() if name not in COMPARED}
    for number in range(max(map(len, together.values()))):
        yield {name: values[number] for name, values in together.items() if len(values) > number}
    for name in COMPARED:
        for value in INVALID[name]:
            yield {name: value}


@pytest.mark.nightly
def test_invalid_values_are_refused_with_a_message(module: Terraform) -> None:
    expected: dict[str, set[str]] = {}
    for number, cases in enumerate(runs()):
        given = {**VALID, **{name: value for name, (value, _) in cases.items()}}
        text = "\n".join(f"  {variable} = {value}" for variable, value in given.items())
        file = module.directory / "invalid" / f"{number}.tftest.hcl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f'mock_provider "aws" {{\n  source = "./tests/mocks"\n}}\n'
            f'run "case" {{\n  command = plan\n  variables {{\n{text}\n  }}\n}}\n'
        )
        expected[f"invalid/{number}.tftest.hcl"] = {message for _, message in cases.values()}
    done = module.run("test", "-json", "-test-directory=invalid", check=False)
    said: dict[str, str] = {}
    for line in done.stdout.splitlines():
        event = json.loads(line)
        if event["type"] == "diagnostic":
            detail = " ".join(event["diagnostic"].get("detail", "").split())
            said[event["@testfile"]] = said.get(event["@testfile"], "") + detail
    missing = {
        file: [message for message in messages if message not in said.get(file, "")]
        for file, messages in expected.items()
    }
    assert missing == {file: [] for file in expected}
