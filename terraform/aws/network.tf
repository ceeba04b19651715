# The VPC with three private subnets for hosts and three public ones for NAT gateways and load balancer, or given ones.

data "aws_availability_zones" "available" {
  state = "available"

  filter { # no local zones
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

data "aws_subnet" "given" {
  count = length(var.subnet_ids)

  id     = var.subnet_ids[count.index]
  vpc_id = var.vpc_id
}

locals {
  new_vpc = var.vpc_id == null ? 1 : 0
  vpc_id  = var.vpc_id == null ? aws_vpc.new[0].id : var.vpc_id
  # Of the subnets that there are: the region's list changes, also while a zone fails.
  zones      = local.new_vpc == 0 ? data.aws_subnet.given[*].availability_zone : aws_subnet.private[*].availability_zone
  new_zones  = length(var.availability_zones) == 3 ? var.availability_zones : slice(data.aws_availability_zones.available.names, 0, 3)
  subnet_ids = local.new_vpc == 0 ? var.subnet_ids : aws_subnet.private[*].id
}

resource "aws_vpc" "new" {
  count = local.new_vpc

  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true
  tags                 = merge(local.tags, { Name = var.name })
}

resource "aws_internet_gateway" "new" {
  count = local.new_vpc

  vpc_id = aws_vpc.new[0].id
  tags   = merge(local.tags, { Name = var.name })
}

resource "aws_subnet" "private" {
  count = 3 * local.new_vpc

  vpc_id            = aws_vpc.new[0].id
  availability_zone = local.new_zones[count.index]
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, count.index)
  tags              = merge(local.tags, { Name = "${var.name}-private-${count.index + 1}" })

  # Another zone would replace the subnet, and with it the volumes of the voters.
  lifecycle {
    ignore_changes = [availability_zone]
  }
}

resource "aws_subnet" "public" {
  count = 3 * local.new_vpc

  vpc_id            = aws_vpc.new[0].id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(var.vpc_cidr, 4, 8 + count.index)
  tags              = merge(local.tags, { Name = "${var.name}-public-${count.index + 1}" })
}

resource "aws_route_table" "public" {
  count = local.new_vpc

  vpc_id = aws_vpc.new[0].id
  tags   = merge(local.tags, { Name = "${var.name}-public" })
}

resource "aws_route" "internet" {
  count = local.new_vpc

  route_table_id         = aws_route_table.public[0].id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.new[0].id
}

resource "aws_route_table_association" "public" {
  count = 3 * local.new_vpc

  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public[0].id
}

resource "aws_eip" "nat" {
  count = var.nat_gateways * local.new_vpc

  domain = "vpc"
  tags   = merge(local.tags, { Name = "${var.name}-nat-${count.index + 1}" })
}

resource "aws_nat_gateway" "new" {
  count = var.nat_gateways * local.new_vpc

  allocation_id = aws_eip.nat[count.index].id
  subnet_id     = aws_subnet.public[count.index].id
  tags          = merge(local.tags, { Name = "${var.name}-${count.index + 1}" })
}

resource "aws_route_table" "private" {
  count = 3 * local.new_vpc

  vpc_id = aws_vpc.new[0].id
  tags   = merge(local.tags, { Name = "${var.name}-private-${count.index + 1}" })
}

resource "aws_route" "nat" {
  count = 3 * local.new_vpc

  route_table_id         = aws_route_table.private[count.index].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.new[count.index % var.nat_gateways].id
}

resource "aws_route_table_association" "private" {
  count = 3 * local.new_vpc

  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private[count.index].id
}

# Uploads and reads of history do not pass the NAT gateways, which would cost more than the storage.
resource "aws_vpc_endpoint" "s3" {
  count = local.new_vpc == 1 || length(var.s3_endpoint_route_table_ids) > 0 ? 1 : 0

  vpc_id            = local.vpc_id
  service_name      = "com.amazonaws.${local.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = local.new_vpc == 1 ? aws_route_table.private[*].id : var.s3_endpoint_route_table_ids
  tags              = merge(local.tags, { Name = "${var.name}-s3" })
}

# Each host writes its own record when it boots, so this is empty for terraform; `destroy` removes the records with it.
resource "aws_route53_zone" "hosts" {
  name          = local.domain
  comment       = "hosts of the tierlog cluster ${var.name}"
  force_destroy = true
  tags          = local.tags

  vpc {
    vpc_id = local.vpc_id
  }
}
