# The smallest cluster that loses nothing when a zone fails: one broker in each of three zones, three voters, a new VPC.
# History is deleted with it: for tests.

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
  description = "Region of the cluster."
  type        = string
  default     = "eu-central-1"
}

variable "wheels" {
  description = "The archive that bin/make-package made, in S3."
  type        = string
}

variable "wheels_sha256" {
  description = "Its SHA-256."
  type        = string
}

variable "broker_hosts" {
  description = "Number of hosts of brokers."
  type        = number
  default     = 3
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}
}

provider "aws" {
  region = var.region
}

module "tierlog" {
  source = "../.."

  name                 = "small"
  tags                 = var.tags
  broker_hosts         = var.broker_hosts
  broker_instance_type = "m7gd.medium"
  brokers_per_host     = 1
  voter_instance_type  = "t4g.small"
  voter_volume_gib     = 8
  package              = { wheels = var.wheels, sha256 = var.wheels_sha256 }
  client_cidrs         = ["10.40.0.0/16"]
  operator_cidrs       = ["10.40.0.0/16"]
  bucket_force_destroy = true
}

output "tierlog" {
  description = "All outputs of the module."
  value       = module.tierlog
}
