# A cluster in a VPC that exists, whose subnets reach the APIs of AWS, with a key and a bucket name of your own.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 5.60"
    }
  }
}

variable "region" {
  type    = string
  default = "eu-central-1"
}

variable "wheels" {
  type = string
}

variable "wheels_sha256" {
  type = string
}

variable "vpc_id" {
  type = string
}

variable "subnet_ids" {
  type = list(string)
}

variable "route_table_ids" {
  type    = list(string)
  default = []
}

variable "client_security_group_ids" {
  type    = list(string)
  default = []
}

provider "aws" {
  region = var.region
}

module "tierlog" {
  source = "../.."

  name                        = "shared"
  vpc_id                      = var.vpc_id
  subnet_ids                  = var.subnet_ids
  s3_endpoint_route_table_ids = var.route_table_ids
  domain                      = "tierlog.shared.internal"
  broker_instance_type        = "im4gn.large"
  brokers_per_host            = 1
  package                     = { wheels = var.wheels, sha256 = var.wheels_sha256 }
  client_security_group_ids   = var.client_security_group_ids
  bucket_versioning           = false
}

output "tierlog" {
  value = module.tierlog
}
