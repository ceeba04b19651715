# Each host is an auto scaling group of one: AWS replaces a host that fails, in the same zone and with the same name.

data "aws_ssm_parameter" "ami" {
  for_each = var.ami_id == null ? { broker = data.aws_ec2_instance_type.broker, voter = data.aws_ec2_instance_type.voter } : {}

  name = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-${contains(each.value.supported_architectures, "arm64") ? "arm64" : "x86_64"}"
}

locals {
  ami           = { for role in ["broker", "voter"] : role => var.ami_id == null ? data.aws_ssm_parameter.ami[role].insecure_value : var.ami_id }
  instance_type = { broker = var.broker_instance_type, voter = var.voter_instance_type }

  tags_of_host = {
    for host, about in local.hosts : host => merge(local.tags, { Name = "${var.name}-${host}", "tierlog:role" = about.role, "tierlog:host" = host })
  }
}

# Votes must not be lost: a voter's volume outlives its instance. Brokers have no such volume: a new one copies its
# replicas from the others.
resource "aws_ebs_volume" "voter" {
  for_each = local.voter_hosts

  availability_zone = local.zones[each.value.zone]
  size              = var.voter_volume_gib
  type              = "gp3"
  encrypted         = true
  tags              = local.tags_of_host[each.key]
}

resource "aws_launch_template" "host" {
  for_each = local.hosts

  name          = "tierlog-${var.name}-${each.key}"
  image_id      = local.ami[each.value.role]
  instance_type = local.instance_type[each.value.role]
  tags          = local.tags

  user_data = base64encode(templatefile("${path.module}/files/user-data.sh.tftpl", {
    region     = local.region
    parameters = "${local.path}/${each.key}"
  }))

  iam_instance_profile {
    name = aws_iam_instance_profile.host[each.value.role].name
  }
  vpc_security_group_ids = [local.group[each.value.role]]

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.root_volume_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume"])

    content {
      resource_type = tag_specifications.key
      tags          = local.tags_of_host[each.key]
    }
  }
}

resource "aws_autoscaling_group" "host" {
  for_each = local.hosts

  name                = "tierlog-${var.name}-${each.key}"
  min_size            = 1
  max_size            = 1
  desired_capacity    = 1
  vpc_zone_identifier = [local.subnet_ids[each.value.zone]]
  target_group_arns   = each.value.role == "broker" && var.outside != null ? [for id in keys(each.value.nodes) : aws_lb_target_group.broker[id].arn] : []
  enabled_metrics     = ["GroupInServiceInstances"]
  health_check_type   = "EC2" # the load balancer's checks must not replace a broker that copies its replicas
  # `terraform apply` must not wait for a cluster that needs its secrets first (bin/make-secrets).
  wait_for_capacity_timeout = "0"

  launch_template {
    id      = aws_launch_template.host[each.key].id
    version = aws_launch_template.host[each.key].latest_version
  }

  # Never two instances of one host.
  instance_maintenance_policy {
    min_healthy_percentage = 0
    max_healthy_percentage = 100
  }

  dynamic "tag" {
    for_each = local.tags_of_host[each.key]

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  depends_on = [
    aws_iam_role_policy.host, aws_iam_role_policy.history, aws_iam_role_policy.volumes,
    aws_ssm_parameter.host, aws_ssm_parameter.node, aws_route.nat, aws_vpc_endpoint.s3,
  ]
}
