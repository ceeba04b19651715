"""terraform as a command, in a copy of the module, with the provider of a local mirror where there is one."""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REGISTRY = "registry.terraform.io"
"""Name of the directory in a mirror, as `terraform providers mirror` writes it."""


def require_terraform() -> None:
    if shutil.which("terraform") is None:
        pytest.skip("NOT RUN: there is no terraform here")


def environment(directory: Path) -> dict[str, str]:
    """Environment of terraform. A configuration file of the machine wins over a mirror."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("TIERLOG_", "AWS_", "TF_"))
    }
    configured = os.environ.get("TF_CLI_CONFIG_FILE", "")
    if configured and Path(configured).exists():
        kept["TF_CLI_CONFIG_FILE"] = configured
    else:
        mirror = os.environ.get("TIERLOG_TERRAFORM_MIRROR") or next(
            (found.parent for found in Path("/opt").glob(f"*/{REGISTRY}")), None
        )
        file = directory / "terraform.rc"
        block = f'filesystem_mirror {{ path = "{mirror}" }}' if mirror else "direct {}"
        file.write_text(f"provider_installation {{\n  {block}\n}}\n")
        kept["TF_CLI_CONFIG_FILE"] = str(file)
    return {**kept, "TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"}


@dataclass(frozen=True)
class Terraform:
    """A directory with a configuration."""

    directory: Path
    env: Mapping[str, str]

    def run(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["terraform", *arguments],
            cwd=self.directory,
            env=dict(self.env),
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"terraform {' '.join(arguments)}:\n{done.stdout[-6000:]}{done.stderr[-6000:]}"
            )
        return done

    def outputs(self) -> Any:
        """Outputs of an example's module."""
        return json.loads(self.run("output", "-json", "tierlog").stdout)


def module_copy(directory: Path, part: str = "", env: Mapping[str, str] | None = None) -> Terraform:
    """A copy of terraform/, initialized in terraform/aws or below it. Nothing is written into the tree."""
    require_terraform()
    ignored = shutil.ignore_patterns(".terraform*", "*.tfstate*")
    copy = directory / "terraform"
    if not copy.exists():
        shutil.copytree(ROOT / "terraform", copy, ignore=ignored)
    terraform = Terraform(copy / "aws" / part, {**environment(directory), **(env or {})})
    done = terraform.run("init", "-backend=false", "-input=false", "-no-color", check=False)
    if REGISTRY in done.stderr and "Failed to query available provider packages" in done.stderr:
        pytest.skip("NOT RUN: the AWS provider is neither in a mirror nor to be had from the registry")
    assert done.returncode == 0, done.stderr
    return terraform
