# The bucket of history, which also has what hosts install, and the key that encrypts it and the secrets.

locals {
  prefixes = { history = "history", install = "install" }
  kms_key  = var.kms_key_arn == null ? aws_kms_key.new[0].arn : var.kms_key_arn
}

resource "aws_kms_key" "new" {
  count = var.kms_key_arn == null ? 1 : 0

  description         = "history and secrets of the tierlog cluster ${var.name}"
  enable_key_rotation = true
  tags                = local.tags
}

resource "aws_kms_alias" "new" {
  count = var.kms_key_arn == null ? 1 : 0

  name          = "alias/tierlog-${var.name}"
  target_key_id = aws_kms_key.new[0].key_id
}

resource "aws_s3_bucket" "history" {
  bucket        = var.bucket_name
  bucket_prefix = var.bucket_name == null ? "tierlog-${var.name}-" : null
  force_destroy = var.bucket_force_destroy
  tags          = local.tags

  # `destroy` leaves a bucket that has history, and must then leave its key.
  depends_on = [aws_kms_key.new]
}

resource "aws_s3_bucket_versioning" "history" {
  bucket = aws_s3_bucket.history.id

  versioning_configuration {
    status = var.bucket_versioning ? "Enabled" : "Suspended"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "history" {
  bucket = aws_s3_bucket.history.id

  rule {
    bucket_key_enabled = true # one request to KMS for many objects

    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = local.kms_key
    }
  }
}

resource "aws_s3_bucket_public_access_block" "history" {
  bucket = aws_s3_bucket.history.id

  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "history" {
  bucket = aws_s3_bucket.history.id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

# No rule expires objects or moves them to an archive: tierlog deletes by retention.*, and a missing object is damage.
resource "aws_s3_bucket_lifecycle_configuration" "history" {
  bucket = aws_s3_bucket.history.id

  rule {
    id     = "abort-unfinished-uploads"
    status = "Enabled"
    filter {}

    abort_incomplete_multipart_upload {
      days_after_initiation = var.bucket_abort_uploads_days
    }
  }

  dynamic "rule" {
    for_each = var.bucket_versioning ? [1] : []

    content {
      id     = "delete-noncurrent-versions"
      status = "Enabled"
      filter {}

      noncurrent_version_expiration {
        noncurrent_days = var.bucket_noncurrent_days
      }
      expiration {
        expired_object_delete_marker = true
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.history]
}

resource "aws_s3_bucket_policy" "history" {
  bucket = aws_s3_bucket.history.id

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid       = "OnlyTls"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.history.arn, "${aws_s3_bucket.history.arn}/*"]
        Condition = { Bool = { "aws:SecureTransport" = "false" } }
      },
      {
        Sid       = "OnlyTls12"
        Effect    = "Deny"
        Principal = "*"
        Action    = "s3:*"
        Resource  = [aws_s3_bucket.history.arn, "${aws_s3_bucket.history.arn}/*"]
        Condition = { NumericLessThan = { "s3:TlsVersion" = "1.2" } }
      },
    ]
  })

  depends_on = [aws_s3_bucket_public_access_block.history]
}
