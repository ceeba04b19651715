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

variable "vpc_id" {
  description = "The VPC."
  type        = string
}

variable "subnet_ids" {
  description = "A subnet in each of three zones."
  type        = list(string)
}

variable "route_table_ids" {
  description = "Route tables of the subnets, which get the S3 gateway endpoint."
  type        = list(string)
  default     = []
}

variable "client_security_group_ids" {
  description = "Security groups of the clients."
  type        = list(string)
  default     = []
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
  description = "All outputs of the module."
  value       = module.tierlog
}
