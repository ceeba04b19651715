# What hosts read when they boot. Nothing here is secret: secrets are parameters that bin/make-secrets creates, outside of
# terraform and its state.

locals {
  boot    = file("${path.module}/files/boot.sh")
  unit    = file("${path.module}/../host/tierlog@.service")
  package = var.package.requirements == null ? var.package.sha256 : sha256(var.package.requirements)
}

resource "aws_s3_object" "boot" {
  bucket  = aws_s3_bucket.history.id
  key     = "${local.prefixes.install}/${sha256(local.boot)}/boot"
  content = local.boot

  depends_on = [aws_s3_bucket_server_side_encryption_configuration.history]
}

resource "aws_s3_object" "unit" {
  bucket  = aws_s3_bucket.history.id
  key     = "${local.prefixes.install}/${sha256(local.unit)}/tierlog@.service"
  content = local.unit

  depends_on = [aws_s3_bucket_server_side_encryption_configuration.history]
}

resource "aws_s3_object" "requirements" {
  count = var.package.requirements == null ? 0 : 1

  bucket  = aws_s3_bucket.history.id
  key     = "${local.prefixes.install}/${local.package}/requirements.txt"
  content = var.package.requirements

  depends_on = [aws_s3_bucket_server_side_encryption_configuration.history]
}

resource "aws_ssm_parameter" "host" {
  for_each = local.hosts

  name        = "${local.path}/${each.key}/host.env"
  description = "What the host ${each.key} is"
  type        = "String"
  tags        = local.tags
  value = join("", [for key, value in {
    REGION           = local.region
    HOST             = each.key
    ROLE             = each.value.role
    DOMAIN           = local.domain
    ZONE_ID          = aws_route53_zone.hosts.zone_id
    PARAMETERS       = local.path
    NODES            = join(" ", keys(each.value.nodes))
    DISKS            = each.value.role == "broker" ? local.disks_per_host : 1
    VOLUME_ID        = each.value.role == "voter" ? aws_ebs_volume.voter[each.key].id : ""
    BUCKET           = aws_s3_bucket.history.bucket
    BOOT_KEY         = aws_s3_object.boot.key
    BOOT_SHA256      = sha256(local.boot)
    UNIT_KEY         = aws_s3_object.unit.key
    PYTHON           = "python3.11"
    PACKAGE_URL      = var.package.wheels == null ? "s3://${aws_s3_bucket.history.bucket}/${aws_s3_object.requirements[0].key}" : var.package.wheels
    PACKAGE_SHA256   = local.package
    PACKAGE_INDEX    = var.package.index_url == null ? "" : var.package.index_url
    PCA_ARN          = var.acm_pca_arn == null ? "" : var.acm_pca_arn
    PCA_ALGORITHM    = "SHA256WITHECDSA"
    CERTIFICATE_DAYS = 90 # renewed in the last 30, before `tierlog cluster health` warns
    TLS_NAMES        = join(" ", compact(["${each.key}.${local.domain}", var.outside == null || each.value.role == "voter" ? "" : var.outside.hostname]))
    CLOUDWATCH_AGENT = var.cloudwatch_agent
  } : "${key}='${value}'\n"])
}

resource "aws_ssm_parameter" "node" {
  for_each = local.nodes

  name        = "${local.path}/${each.value.host}/nodes/${each.key}.toml"
  description = "Settings of node ${each.key}"
  type        = "String"
  tier        = "Intelligent-Tiering" # more than 4 KiB with many settings
  value       = local.settings[each.key]
  tags        = local.tags
}

resource "aws_ssm_parameter" "agent" {
  count = var.cloudwatch_agent ? 1 : 0

  name        = "${local.path}/agent"
  description = "Settings of the CloudWatch agent"
  type        = "String"
  tags        = local.tags
  value = jsonencode({
    metrics = {
      namespace         = "tierlog/${var.name}"
      append_dimensions = { AutoScalingGroupName = "$${aws:AutoScalingGroupName}" }
      metrics_collected = {
        mem  = { measurement = ["mem_used_percent"] }
        disk = { measurement = ["used_percent"], resources = ["*"], ignore_file_system_types = ["sysfs", "devtmpfs", "tmpfs", "overlay"], drop_device = true }
      }
      aggregation_dimensions = [["AutoScalingGroupName", "path"], ["AutoScalingGroupName"]]
    }
  })
}
