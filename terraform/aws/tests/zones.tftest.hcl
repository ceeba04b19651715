# A cluster keeps its zones: the list of the region's zones changes, and volumes of voters cannot move.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name    = "orders"
  package = { wheels = "s3://packages/tierlog.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

run "given_zones" {
  variables {
    availability_zones = ["eu-central-1c", "eu-central-1a", "eu-central-1b"]
  }

  assert {
    condition     = aws_subnet.private[0].availability_zone == "eu-central-1c" && aws_subnet.public[0].availability_zone == "eu-central-1c"
    error_message = "subnets follow the given zones"
  }
  assert {
    condition     = aws_ebs_volume.voter["voter-1"].availability_zone == "eu-central-1c"
    error_message = "the volume of a voter is in the zone of its host"
  }
}

run "other_zones_of_the_region" {
  command = plan

  assert {
    condition     = join(" ", aws_subnet.private[*].availability_zone) == "eu-central-1c eu-central-1a eu-central-1b"
    error_message = "subnets stay in their zones"
  }
  assert {
    condition     = aws_ebs_volume.voter["voter-1"].availability_zone == "eu-central-1c"
    error_message = "volumes of voters stay"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["101"].value, "\"broker.rack\" = \"eu-central-1c/broker-1\"\n")
    error_message = "racks stay"
  }
}
