# A dashboard and alarms of what AWS itself sees. Those of tierlog's metrics are for Grafana and Prometheus: `tierlog generate`.

locals {
  alarmed_hosts = length(var.alarm_topic_arns) == 0 ? {} : local.hosts
  disks = merge([
    for host, about in local.hosts : {
      for disk in range(about.role == "broker" ? local.disks_per_host : 1) : "${host}-disk-${disk}" => { host = host, path = "/var/lib/tierlog/disk-${disk}" }
    }
  ]...)

  # title -> metrics of each host: namespace, name, statistic
  charts_of_hosts = {
    "Hosts in service"     = [["AWS/AutoScaling", "GroupInServiceInstances", "Minimum"]]
    "Failed status checks" = [["AWS/EC2", "StatusCheckFailed", "Maximum"]]
    "CPU, percent"         = [["AWS/EC2", "CPUUtilization", "Average"]]
    "Network, bytes"       = [["AWS/EC2", "NetworkIn", "Sum"], ["AWS/EC2", "NetworkOut", "Sum"]]
    "Memory, percent"      = [for name in ["mem_used_percent"] : ["tierlog/${var.name}", name, "Average"] if var.cloudwatch_agent]
  }
  charts = merge(
    {
      for title, metrics in local.charts_of_hosts : title => concat([
        for metric in metrics : [
          for host, group in aws_autoscaling_group.host :
          [metric[0], metric[1], "AutoScalingGroupName", group.name, { stat = metric[2], label = "${host} ${metric[1]}" }]
        ]
      ]...) if length(metrics) > 0
    },
    {
      "Disks, percent full" = [
        for name, disk in local.disks :
        ["tierlog/${var.name}", "disk_used_percent", "AutoScalingGroupName", aws_autoscaling_group.host[disk.host].name, "path", disk.path, { stat = "Maximum", label = name }]
        if var.cloudwatch_agent
      ]
      "History, bytes" = [
        ["AWS/S3", "BucketSizeBytes", "BucketName", aws_s3_bucket.history.bucket, "StorageType", "StandardStorage", { stat = "Average", period = 86400, label = "bucket" }]
      ]
      "Connections from outside" = [
        for balancer in aws_lb.outside : ["AWS/NetworkELB", "ActiveFlowCount", "LoadBalancer", balancer.arn_suffix, { stat = "Maximum", label = "load balancer" }]
      ]
    },
  )
}

resource "aws_cloudwatch_dashboard" "cluster" {
  count = var.cloudwatch_dashboard ? 1 : 0

  dashboard_name = "tierlog-${var.name}"
  dashboard_body = jsonencode({
    widgets = [
      for title, metrics in local.charts : {
        type       = "metric"
        width      = 12
        height     = 6
        properties = { title = title, region = local.region, view = "timeSeries", period = 60, metrics = metrics }
      } if length(metrics) > 0
    ]
  })
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
  for_each = { for name, disk in local.disks : name => disk if var.cloudwatch_agent && contains(keys(local.alarmed_hosts), disk.host) }

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
