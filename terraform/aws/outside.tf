# Clients outside of the VPC: a network load balancer that passes TLS on, with a port for each broker.

locals {
  # The load balancer has at most 50 listeners. A broker's port follows from its id.
  outside_ports = { for id, node in local.brokers : id => 20000 + tonumber(id) }
}

resource "aws_security_group" "outside" {
  count = var.outside == null ? 0 : 1

  name_prefix = "tierlog-${var.name}-outside-"
  description = "Load balancer of the tierlog cluster ${var.name}"
  vpc_id      = local.vpc_id
  tags        = merge(local.tags, { Name = "tierlog-${var.name}-outside" })

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "outside" {
  for_each = toset(var.outside == null ? [] : var.outside.cidrs)

  security_group_id = aws_security_group.outside[0].id
  description       = "clients outside"
  ip_protocol       = "tcp"
  from_port         = 20000
  to_port           = 29999
  cidr_ipv4         = each.value
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "outside" {
  count = var.outside == null ? 0 : 1

  security_group_id            = aws_security_group.outside[0].id
  description                  = "brokers"
  ip_protocol                  = "tcp"
  from_port                    = local.ports.outside
  to_port                      = local.ports.outside + local.brokers_per_host - 1
  referenced_security_group_id = local.group["broker"]
  tags                         = local.tags
}

resource "aws_lb" "outside" {
  count = var.outside == null ? 0 : 1

  name                             = "tierlog-${var.name}"
  load_balancer_type               = "network"
  internal                         = var.outside.internal
  security_groups                  = [aws_security_group.outside[0].id]
  subnets                          = local.new_vpc == 0 ? var.outside.subnet_ids : var.outside.internal ? local.subnet_ids : aws_subnet.public[*].id
  enable_cross_zone_load_balancing = true # a name with the addresses of all zones leads to the broker of one
  tags                             = local.tags

  lifecycle {
    precondition {
      condition     = length(local.brokers) <= 50
      error_message = "outside needs a port for each broker, and a load balancer has at most 50: choose fewer broker_hosts or brokers_per_host."
    }
  }
}

resource "aws_lb_target_group" "broker" {
  for_each = var.outside == null ? {} : local.brokers

  name                   = "tierlog-${var.name}-${each.key}"
  port                   = local.ports.outside + each.value.slot - 1
  protocol               = "TCP"
  target_type            = "instance"
  vpc_id                 = local.vpc_id
  preserve_client_ip     = false # the group of the brokers admits the load balancer only
  deregistration_delay   = 30
  connection_termination = true
  tags                   = local.tags

  health_check {
    protocol            = "TCP"
    interval            = 10
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_listener" "broker" {
  for_each = aws_lb_target_group.broker

  load_balancer_arn = aws_lb.outside[0].arn
  port              = local.outside_ports[each.key]
  protocol          = "TCP"
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = each.value.arn
  }
}

resource "aws_route53_record" "outside" {
  count = try(var.outside.zone_id, null) == null ? 0 : 1

  zone_id = var.outside.zone_id
  name    = var.outside.hostname
  type    = "A"

  alias {
    name                   = aws_lb.outside[0].dns_name
    zone_id                = aws_lb.outside[0].zone_id
    evaluate_target_health = false
  }
}
