# Six hosts with three brokers each, five voters, a NAT gateway in each zone, clients outside, alarms.

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
  default     = 6
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = { team = "platform" }
}

provider "aws" {
  region = var.region
}

resource "aws_sns_topic" "on_call" {
  name = "tierlog-on-call"
}

module "tierlog" {
  source = "../.."

  name                 = "orders"
  tags                 = var.tags
  broker_hosts         = var.broker_hosts
  broker_instance_type = "i4g.xlarge"
  brokers_per_host     = 3
  voters               = 5
  voter_instance_type  = "m7g.medium"
  nat_gateways         = 3
  package              = { wheels = var.wheels, sha256 = var.wheels_sha256 }
  client_cidrs         = ["10.0.0.0/8"]
  operator_cidrs       = ["10.40.0.0/16"]
  cloudwatch_agent     = true
  alarm_topic_arns     = [aws_sns_topic.on_call.arn]

  outside = {
    hostname = "orders.example.com"
    cidrs    = ["198.51.100.0/24"]
  }

  settings = {
    "log.local.retention.ms" = "86400000" # one day on disk, the rest in the bucket
  }
}

output "tierlog" {
  description = "All outputs of the module."
  value       = module.tierlog
}
