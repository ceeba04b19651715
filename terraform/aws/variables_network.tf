# Networks, names and clients.

variable "vpc_cidr" {
  description = "Addresses of a new VPC. Without effect if vpc_id is set."
  type        = string
  default     = "10.40.0.0/16"

  validation {
    condition     = can(cidrhost(var.vpc_cidr, 0)) && try(tonumber(split("/", var.vpc_cidr)[1]), 0) >= 16 && try(tonumber(split("/", var.vpc_cidr)[1]), 99) <= 22
    error_message = "vpc_cidr must be an IPv4 network of /16 to /22, such as 10.40.0.0/16."
  }
}

variable "availability_zones" {
  description = "Three zones of a new VPC, which keeps them: a later change has no effect. Default: the first three of the region."
  type        = list(string)
  default     = []

  validation {
    condition     = contains([0, 3], length(distinct(var.availability_zones))) && length(var.availability_zones) == length(distinct(var.availability_zones))
    error_message = "availability_zones must name three different zones, or none."
  }
}

variable "nat_gateways" {
  description = "NAT gateways of a new VPC: 3 (one for each zone), or 1, which is cheaper. Hosts use them to reach APIs of AWS; traffic to S3 does not pass them."
  type        = number
  default     = 1

  validation {
    condition     = contains([1, 3], var.nat_gateways)
    error_message = "nat_gateways must be 1 or 3."
  }
}

variable "vpc_id" {
  description = "An existing VPC with DNS support and DNS host names. Default: a new one."
  type        = string
  default     = null

  validation {
    condition     = var.vpc_id == null ? true : can(regex("^vpc-[0-9a-f]{8,17}$", var.vpc_id))
    error_message = "vpc_id must be the id of a VPC, such as vpc-0123456789abcdef0."
  }
  validation {
    condition     = (var.vpc_id == null) == (length(var.subnet_ids) == 0)
    error_message = "vpc_id and subnet_ids must be set together."
  }
}

variable "subnet_ids" {
  description = "Three private subnets of vpc_id, in three zones, with a route to the APIs of AWS. Their order is that of the hosts: do not change it."
  type        = list(string)
  default     = []

  validation {
    condition     = contains([0, 3], length(distinct(var.subnet_ids))) && length(var.subnet_ids) == length(distinct(var.subnet_ids))
    error_message = "subnet_ids must name three different subnets."
  }
}

variable "s3_endpoint_route_table_ids" {
  description = "Route tables of vpc_id that get a gateway endpoint for S3. Leave it empty if they have one."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for id in var.s3_endpoint_route_table_ids : can(regex("^rtb-[0-9a-f]{8,17}$", id))])
    error_message = "s3_endpoint_route_table_ids must be ids of route tables, such as rtb-0123456789abcdef0."
  }
  validation {
    condition     = var.vpc_id != null || length(var.s3_endpoint_route_table_ids) == 0
    error_message = "s3_endpoint_route_table_ids needs vpc_id: a new VPC has an endpoint."
  }
}

variable "domain" {
  description = "Private domain of the hosts' names. Default: the cluster's name and .internal."
  type        = string
  default     = null

  validation {
    condition     = var.domain == null ? true : can(regex("^([a-z0-9-]+\\.)+[a-z0-9-]+$", var.domain))
    error_message = "domain must be a domain name in lower case, such as log.example.internal."
  }
}

variable "client_cidrs" {
  description = "Networks whose clients may connect to the brokers, beside the VPC's own hosts in client_security_group_ids."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.client_cidrs : can(cidrhost(cidr, 0))])
    error_message = "client_cidrs must be networks such as 10.0.0.0/8."
  }
}

variable "client_security_group_ids" {
  description = "Security groups whose members may connect to the brokers."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for id in var.client_security_group_ids : can(regex("^sg-[0-9a-f]{8,17}$", id))])
    error_message = "client_security_group_ids must be ids of security groups, such as sg-0123456789abcdef0."
  }
}

variable "operator_cidrs" {
  description = "Networks that may connect to the admin API and the metrics: operators and Prometheus."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for cidr in var.operator_cidrs : can(cidrhost(cidr, 0)) && cidr != "0.0.0.0/0"])
    error_message = "operator_cidrs must be networks such as 10.0.8.0/24, and not the whole internet."
  }
}

variable "outside" {
  description = <<-END
    A network load balancer for clients outside of the VPC, with one port for each broker: `hostname`, which the
    certificate must name; `cidrs`, the networks of the clients; `internal`, whether it has private addresses only;
    `subnet_ids`, its subnets in an existing VPC; `zone_id`, a Route 53 zone that gets the record of `hostname`.
  END
  type = object({
    hostname   = string
    cidrs      = list(string)
    internal   = optional(bool, false)
    subnet_ids = optional(list(string), [])
    zone_id    = optional(string)
  })
  default = null

  validation {
    condition     = var.outside == null ? true : can(regex("^([a-z0-9-]+\\.)+[a-z0-9-]+$", var.outside.hostname))
    error_message = "outside.hostname must be a domain name in lower case, such as log.example.com."
  }
  validation {
    condition     = var.outside == null ? true : length(var.outside.cidrs) > 0 && alltrue([for cidr in var.outside.cidrs : can(cidrhost(cidr, 0))])
    error_message = "outside.cidrs must name the networks of the clients, such as 198.51.100.0/24."
  }
  validation {
    condition     = var.outside == null || var.vpc_id == null ? true : length(var.outside.subnet_ids) == 3
    error_message = "outside.subnet_ids must name three subnets if vpc_id is set."
  }
}
