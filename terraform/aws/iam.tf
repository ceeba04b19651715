# Two roles: hosts of brokers reach the history, hosts of voters do not. tests/terraform compares the policy of the
# history with the requests that the object store sends.

locals {
  arn_prefix = "arn:${local.partition}"
  parameters = "${local.arn_prefix}:ssm:${local.region}:${local.account}:parameter${local.path}"

  assume_role = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })

  package_objects = var.package.wheels == null ? [] : ["${local.arn_prefix}:s3:::${trimprefix(var.package.wheels, "s3://")}"]

  allowed_to_all = concat(
    [
      {
        Sid      = "Install"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = concat(["${aws_s3_bucket.history.arn}/${local.prefixes.install}/*"], local.package_objects)
      },
      {
        Sid       = "Decrypt"
        Effect    = "Allow"
        Action    = "kms:Decrypt"
        Resource  = local.kms_key
        Condition = { StringEquals = { "kms:ViaService" = ["s3.${local.region}.amazonaws.com", "ssm.${local.region}.amazonaws.com"] } }
      },
    ],
    [for statement in [
      {
        Sid    = "SessionManager"
        Effect = "Allow"
        Action = [
          "ssm:UpdateInstanceInformation",
          "ssmmessages:CreateControlChannel",
          "ssmmessages:CreateDataChannel",
          "ssmmessages:OpenControlChannel",
          "ssmmessages:OpenDataChannel",
        ]
        Resource = "*"
      },
    ] : statement if var.session_manager],
    [for statement in [
      {
        Sid       = "Metrics"
        Effect    = "Allow"
        Action    = "cloudwatch:PutMetricData"
        Resource  = "*"
        Condition = { StringEquals = { "cloudwatch:namespace" = "tierlog/${var.name}" } }
      },
      {
        Sid      = "MetricsTags"
        Effect   = "Allow"
        Action   = "ec2:DescribeTags"
        Resource = "*"
      },
      {
        Sid      = "MetricsSettings"
        Effect   = "Allow"
        Action   = "ssm:GetParameter"
        Resource = "${local.parameters}/agent"
      },
    ] : statement if var.cloudwatch_agent],
    [for statement in [
      {
        Sid      = "Certificates"
        Effect   = "Allow"
        Action   = ["acm-pca:IssueCertificate", "acm-pca:GetCertificate", "acm-pca:GetCertificateAuthorityCertificate"]
        Resource = var.acm_pca_arn
      },
    ] : statement if var.acm_pca_arn != null],
  )

  # role -> what its hosts may read and which names they may write
  allowed_to_role = {
    for role, hosts in { broker = local.broker_hosts, voter = local.voter_hosts } : role => [
      {
        Sid    = "Parameters"
        Effect = "Allow"
        Action = ["ssm:GetParameter", "ssm:GetParametersByPath"]
        Resource = flatten([
          "${local.parameters}/${role}-*",
          [for kind in role == "broker" ? ["nodes", "brokers"] : ["nodes"] : ["${local.parameters}/secrets/${kind}", "${local.parameters}/secrets/${kind}/*"]],
        ])
      },
      {
        Sid      = "OwnNames"
        Effect   = "Allow"
        Action   = "route53:ChangeResourceRecordSets"
        Resource = aws_route53_zone.hosts.arn
        Condition = {
          "ForAllValues:StringEquals" = {
            "route53:ChangeResourceRecordSetsNormalizedRecordNames" = [for host in keys(hosts) : "${host}.${local.domain}"]
            "route53:ChangeResourceRecordSetsRecordTypes"           = ["A"]
            "route53:ChangeResourceRecordSetsActions"               = ["UPSERT"]
          }
        }
      },
    ]
  }

  history_policy = {
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "Objects"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
        Resource = "${aws_s3_bucket.history.arn}/${local.prefixes.history}/*"
      },
      {
        # Without a condition on s3:prefix: with it, S3 answers 403 instead of 404 to a GET of an object that is gone.
        Sid      = "List"
        Effect   = "Allow"
        Action   = ["s3:ListBucket", "s3:ListBucketMultipartUploads"]
        Resource = aws_s3_bucket.history.arn
      },
      {
        Sid       = "Encrypt"
        Effect    = "Allow"
        Action    = ["kms:GenerateDataKey", "kms:Decrypt"]
        Resource  = local.kms_key
        Condition = { StringEquals = { "kms:ViaService" = "s3.${local.region}.amazonaws.com" } }
      },
    ]
  }

  volumes_policy = {
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "Attach"
        Effect    = "Allow"
        Action    = "ec2:AttachVolume"
        Resource  = ["${local.arn_prefix}:ec2:${local.region}:${local.account}:volume/*", "${local.arn_prefix}:ec2:${local.region}:${local.account}:instance/*"]
        Condition = { StringEquals = { "aws:ResourceTag/tierlog:cluster" = var.name, "aws:ResourceTag/tierlog:role" = "voter" } }
      },
      {
        Sid      = "Describe"
        Effect   = "Allow"
        Action   = "ec2:DescribeVolumes"
        Resource = "*"
      },
    ]
  }
}

resource "aws_iam_role" "host" {
  for_each = local.allowed_to_role

  name               = "tierlog-${var.name}-${each.key}"
  assume_role_policy = local.assume_role
  tags               = local.tags
}

resource "aws_iam_role_policy" "host" {
  for_each = local.allowed_to_role

  name   = "host"
  role   = aws_iam_role.host[each.key].id
  policy = jsonencode({ Version = "2012-10-17", Statement = concat(local.allowed_to_all, each.value) })
}

resource "aws_iam_role_policy" "history" {
  name   = "history"
  role   = aws_iam_role.host["broker"].id
  policy = jsonencode(local.history_policy)
}

resource "aws_iam_role_policy" "volumes" {
  name   = "volumes"
  role   = aws_iam_role.host["voter"].id
  policy = jsonencode(local.volumes_policy)
}

resource "aws_iam_instance_profile" "host" {
  for_each = local.allowed_to_role

  name = "tierlog-${var.name}-${each.key}"
  role = aws_iam_role.host[each.key].name
  tags = local.tags
}
