# Which addresses reach which ports. Rules are resources of their own, so that others can be added outside of the module.

resource "aws_security_group" "hosts" {
  for_each = toset(["broker", "voter"])

  name_prefix = "tierlog-${var.name}-${each.key}-"
  description = "Hosts of ${each.key}s of the tierlog cluster ${var.name}"
  vpc_id      = local.vpc_id
  tags        = merge(local.tags, { Name = "tierlog-${var.name}-${each.key}" })

  lifecycle {
    create_before_destroy = true
  }
}

locals {
  group = { for role, group in aws_security_group.hosts : role => group.id }

  # name -> role that listens, first port, ports, and one source: a role, a group or a network
  ports_of_voters  = 1
  ports_of_brokers = local.brokers_per_host
  rules = merge(
    {
      for pair in setproduct(["broker", "voter"], ["broker", "voter"]) : "admin-of-${pair[0]}-from-${pair[1]}" => {
        to = pair[0], port = local.ports.admin, group = local.group[pair[1]], cidr = null
      }
    },
    { "replication" = { to = "broker", port = local.ports.brokers, group = local.group["broker"], cidr = null } },
    { for index, id in var.client_security_group_ids : "clients-of-group-${index}" => { to = "broker", port = local.ports.clients, group = id, cidr = null } },
    { for cidr in var.client_cidrs : "clients-${cidr}" => { to = "broker", port = local.ports.clients, group = null, cidr = cidr } },
    { for pair in setproduct(["broker", "voter"], var.operator_cidrs) : "admin-of-${pair[0]}-${pair[1]}" => { to = pair[0], port = local.ports.admin, group = null, cidr = pair[1] } },
    { for index in range(var.outside == null ? 0 : 1) : "outside" => { to = "broker", port = local.ports.outside, group = aws_security_group.outside[0].id, cidr = null } },
  )
}

resource "aws_vpc_security_group_ingress_rule" "hosts" {
  for_each = local.rules

  security_group_id            = local.group[each.value.to]
  description                  = each.key
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port + (each.value.to == "broker" ? local.ports_of_brokers : local.ports_of_voters) - 1
  referenced_security_group_id = each.value.group
  cidr_ipv4                    = each.value.cidr
  tags                         = local.tags
}

# Hosts reach each other, and APIs of AWS by HTTPS. Names and time come from the VPC, which no group filters.
resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = local.group

  security_group_id = each.value
  description       = "APIs of AWS, packages"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "nodes" {
  for_each = { for pair in setproduct(["broker", "voter"], ["broker", "voter"]) : "${pair[0]}-to-${pair[1]}" => pair }

  security_group_id            = local.group[each.value[0]]
  description                  = "nodes, from ${each.key}"
  ip_protocol                  = "tcp"
  from_port                    = local.ports.clients
  to_port                      = local.ports.admin + local.brokers_per_host - 1
  referenced_security_group_id = local.group[each.value[1]]
  tags                         = local.tags
}
