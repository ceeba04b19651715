# Answers of AWS on which the plan depends.

mock_data "aws_availability_zones" {
  defaults = { names = ["eu-central-1a", "eu-central-1b", "eu-central-1c"] }
}

mock_data "aws_region" {
  defaults = { name = "eu-central-1" }
}

mock_data "aws_caller_identity" {
  defaults = { account_id = "123456789012" }
}

mock_data "aws_partition" {
  defaults = { partition = "aws" }
}

mock_data "aws_ec2_instance_type" {
  defaults = {
    default_cores           = 4
    supported_architectures = ["arm64"]
    instance_disks          = [{ count = 1, size = 937, type = "ssd" }]
  }
}

mock_data "aws_ssm_parameter" {
  defaults = { insecure_value = "ami-0123456789abcdef0" }
}

# Identifiers whose form the provider checks where they are used.

mock_resource "aws_launch_template" {
  defaults = { id = "lt-0123456789abcdef0", latest_version = 1 }
}

mock_resource "aws_lb" {
  defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:loadbalancer/net/tierlog/1", dns_name = "tierlog.example.net", zone_id = "Z1" }
}

mock_resource "aws_lb_target_group" {
  defaults = { arn = "arn:aws:elasticloadbalancing:eu-central-1:123456789012:targetgroup/tierlog/1" }
}

mock_resource "aws_s3_bucket" {
  defaults = { arn = "arn:aws:s3:::tierlog-history" }
}

mock_resource "aws_kms_key" {
  defaults = { arn = "arn:aws:kms:eu-central-1:123456789012:key/new" }
}

mock_resource "aws_iam_role" {
  defaults = { arn = "arn:aws:iam::123456789012:role/tierlog" }
}

mock_resource "aws_route53_zone" {
  defaults = { zone_id = "Z0123456789", arn = "arn:aws:route53:::hostedzone/Z0123456789" }
}
