# Alarms on what AWS itself sees. Those of tierlog's metrics: docs/monitoring/alerts.yml, for Prometheus.

locals {
  alarmed_hosts = length(var.alarm_topic_arns) == 0 ? {} : local.hosts
}

resource "aws_cloudwatch_metric_alarm" "host_down" {
  for_each = local.alarmed_hosts

  alarm_name          = "tierlog-${var.name}-${each.key}-down"
  alarm_description   = "No instance of ${each.key} is in service. docs/runbooks/lost-broker.md"
  namespace           = "AWS/AutoScaling"
  metric_name         = "GroupInServiceInstances"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.host[each.key].name }
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  period              = 60
  evaluation_periods  = 5
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}

resource "aws_cloudwatch_metric_alarm" "host_impaired" {
  for_each = local.alarmed_hosts

  alarm_name          = "tierlog-${var.name}-${each.key}-impaired"
  alarm_description   = "The status checks of ${each.key} fail."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.host[each.key].name }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 3
  treat_missing_data  = "missing"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}

resource "aws_cloudwatch_metric_alarm" "disk_full" {
  for_each = var.cloudwatch_agent ? merge([
    for host, about in local.alarmed_hosts : {
      for disk in range(about.role == "broker" ? local.disks_per_host : 1) : "${host}-disk-${disk}" => { host = host, path = "/var/lib/tierlog/disk-${disk}" }
    }
  ]...) : {}

  alarm_name          = "tierlog-${var.name}-${each.key}-full"
  alarm_description   = "A disk of ${each.value.host} is nearly full. docs/runbooks/full-disk.md"
  namespace           = "tierlog/${var.name}"
  metric_name         = "disk_used_percent"
  dimensions          = { AutoScalingGroupName = aws_autoscaling_group.host[each.value.host].name, path = each.value.path }
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 80
  period              = 300
  evaluation_periods  = 2
  treat_missing_data  = "missing"
  alarm_actions       = var.alarm_topic_arns
  ok_actions          = var.alarm_topic_arns
  tags                = local.tags
}
