# The cluster and its nodes. Networks and clients: variables_network.tf.

variable "name" {
  description = "Name of the cluster: part of the names of all resources, and of the path of its parameters."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,18}[a-z0-9]$", var.name))
    error_message = "name must have 2 to 20 lower-case letters, digits and hyphens, begin with a letter and not end with a hyphen."
  }
}

variable "tags" {
  description = "Tags of all resources."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.tags) : !startswith(key, "aws:") && !startswith(key, "tierlog:")])
    error_message = "tags must not begin with aws: (reserved by AWS) or tierlog: (set by this module)."
  }
}

variable "broker_hosts" {
  description = "Number of hosts of brokers. Host N is in zone (N - 1) modulo 3, so multiples of three are balanced."
  type        = number
  default     = 3

  validation {
    condition     = var.broker_hosts >= 3 && var.broker_hosts <= 60 && floor(var.broker_hosts) == var.broker_hosts
    error_message = "broker_hosts must be a whole number from 3 (one in each zone) to 60."
  }
}

variable "broker_instance_type" {
  description = "Instance type of the hosts of brokers. It needs NVMe instance storage."
  type        = string
  default     = "i4g.xlarge"

  validation {
    condition     = can(regex("^(i[0-9][a-z]*|im[0-9][a-z]*|is[0-9][a-z]*|[a-z]+[0-9]+[a-z]*d[a-z]*)\\.[a-z0-9]+$", var.broker_instance_type))
    error_message = "broker_instance_type must have NVMe instance storage, such as i4g.xlarge, im4gn.2xlarge or m7gd.large."
  }
}

variable "brokers_per_host" {
  description = "Brokers on each host; each uses one core. Default: the cores of the instance type less one, for the kernel. Set it before you change the instance type of a cluster."
  type        = number
  default     = null

  validation {
    condition     = var.brokers_per_host == null ? true : var.brokers_per_host >= 1 && var.brokers_per_host <= 32 && floor(var.brokers_per_host) == var.brokers_per_host
    error_message = "brokers_per_host must be a whole number from 1 to 32."
  }
}

variable "voters" {
  description = "Number of voters of the metadata quorum, each on a host of its own. Five survive the loss of two."
  type        = number
  default     = 3

  validation {
    condition     = contains([3, 5], var.voters)
    error_message = "voters must be 3 or 5."
  }
}

variable "voter_instance_type" {
  description = "Instance type of the voters' hosts. It may have another architecture than that of the brokers only with a package that has wheels for both."
  type        = string
  default     = "t4g.small"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]*\\.[a-z0-9]+$", var.voter_instance_type))
    error_message = "voter_instance_type must be an instance type, such as t4g.small."
  }
}

variable "voter_volume_gib" {
  description = "Size in GiB of the EBS volume of each voter, which outlives its instance."
  type        = number
  default     = 20

  validation {
    condition     = var.voter_volume_gib >= 8 && var.voter_volume_gib <= 1024
    error_message = "voter_volume_gib must be from 8 to 1024."
  }
}

variable "root_volume_gib" {
  description = "Size in GiB of the root volume of each host."
  type        = number
  default     = 16

  validation {
    condition     = var.root_volume_gib >= 8 && var.root_volume_gib <= 1024
    error_message = "root_volume_gib must be from 8 to 1024."
  }
}

variable "ami_id" {
  description = "Image of all hosts, of the Amazon Linux 2023 family. Default: the newest one, for new instances only."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null ? true : can(regex("^ami-[0-9a-f]{8,17}$", var.ami_id))
    error_message = "ami_id must be the id of an image, such as ami-0123456789abcdef0."
  }
}

variable "package" {
  description = <<-END
    The pinned software: either `wheels`, an archive in S3 that bin/make-package makes, and its `sha256`; or
    `requirements`, the text of a requirements file whose lines all have hashes, installed from `index_url`.
  END
  type = object({
    wheels       = optional(string)
    sha256       = optional(string)
    requirements = optional(string)
    index_url    = optional(string)
  })

  validation {
    condition     = (var.package.wheels == null) != (var.package.requirements == null)
    error_message = "package needs either wheels or requirements, and not both."
  }
  validation {
    condition     = var.package.wheels == null ? true : can(regex("^s3://[a-z0-9.-]{3,63}/.+\\.tar\\.gz$", var.package.wheels))
    error_message = "package.wheels must be an archive in S3, as s3://bucket/key.tar.gz."
  }
  validation {
    condition     = var.package.wheels == null ? true : can(regex("^[0-9a-f]{64}$", var.package.sha256))
    error_message = "package.sha256 must be the SHA-256 of package.wheels in 64 hexadecimal digits (bin/make-package prints it)."
  }
  validation {
    condition = var.package.requirements == null ? true : alltrue([
      for line in split("\n", replace(var.package.requirements, "\\\n", " ")) :
      strcontains(line, "--hash=sha256:") if trimspace(line) != "" && !startswith(trimspace(line), "#")
    ])
    error_message = "package.requirements must have --hash=sha256:... on each requirement."
  }
  validation {
    condition     = var.package.requirements == null ? true : can(regex("^https://[^@]+$", var.package.index_url))
    error_message = "package.requirements needs package.index_url, which must begin with https:// and have no login, which would be in the state."
  }
}

variable "acm_pca_arn" {
  description = "ARN of a root CA of ACM Private CA, with an ECDSA key and for this cluster alone, that signs a certificate for each host. Default: one certificate for all hosts, in the parameter secrets/nodes/tls.pem."
  type        = string
  default     = null

  validation {
    condition     = var.acm_pca_arn == null ? true : can(regex("^arn:aws[a-z-]*:acm-pca:[a-z0-9-]+:[0-9]{12}:certificate-authority/.+$", var.acm_pca_arn))
    error_message = "acm_pca_arn must be the ARN of a certificate authority of ACM Private CA."
  }
}

variable "settings" {
  description = "Further settings of all nodes by their names (docs/reference/settings.md). They override those of this module."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key in keys(var.settings) : !contains(["node.id", "process.roles", "controller.quorum.voters", "log.dirs", "broker.rack"], key)])
    error_message = "settings must not have node.id, process.roles, controller.quorum.voters, log.dirs or broker.rack: this module sets them for each node."
  }
  validation {
    condition     = alltrue([for key, value in var.settings : !can(regex("(secret|password|jaas|keystore\\.key$)", key)) || can(regex("^\\$\\{", value))])
    error_message = "settings must not have secrets, which would be in the state: use a reference such as $${directory:/run/tierlog/secrets:NAME}."
  }
}

variable "bucket_name" {
  description = "Name of the bucket of history. Default: the cluster's name and a suffix that AWS chooses."
  type        = string
  default     = null

  validation {
    condition     = var.bucket_name == null ? true : can(regex("^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$", var.bucket_name))
    error_message = "bucket_name must have 3 to 63 lower-case letters, digits and hyphens (a dot breaks TLS)."
  }
}

variable "bucket_versioning" {
  description = "Whether the bucket keeps deleted objects for bucket_noncurrent_days: the way back from a deletion by mistake."
  type        = bool
  default     = true
}

variable "bucket_noncurrent_days" {
  description = "Days for which deleted objects stay, with bucket_versioning."
  type        = number
  default     = 30

  validation {
    condition     = var.bucket_noncurrent_days >= 1 && var.bucket_noncurrent_days <= 3650
    error_message = "bucket_noncurrent_days must be from 1 to 3650."
  }
}

variable "bucket_abort_uploads_days" {
  description = "Days after which unfinished multipart uploads are removed."
  type        = number
  default     = 3

  validation {
    condition     = var.bucket_abort_uploads_days >= 1 && var.bucket_abort_uploads_days <= 365
    error_message = "bucket_abort_uploads_days must be from 1 to 365."
  }
}

variable "bucket_force_destroy" {
  description = "Whether `terraform destroy` deletes the history in the bucket. For tests."
  type        = bool
  default     = false
}

variable "kms_key_arn" {
  description = "KMS key that encrypts the bucket and the secrets. Default: a new one."
  type        = string
  default     = null

  validation {
    condition     = var.kms_key_arn == null ? true : can(regex("^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+$", var.kms_key_arn))
    error_message = "kms_key_arn must be the ARN of a KMS key, not of an alias."
  }
}

variable "session_manager" {
  description = "Whether operators can open a shell on the hosts by Session Manager. There is no SSH."
  type        = bool
  default     = true
}

variable "cloudwatch_agent" {
  description = "Whether the CloudWatch agent reports disk space and memory, with an alarm for full disks."
  type        = bool
  default     = false
}

variable "cloudwatch_dashboard" {
  description = "Whether there is a dashboard in CloudWatch with hosts, CPU, network, history and, with cloudwatch_agent, disks and memory."
  type        = bool
  default     = true
}

variable "alarm_topic_arns" {
  description = "SNS topics that alarms notify. Without one there are no alarms."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for arn in var.alarm_topic_arns : can(regex("^arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:.+$", arn))])
    error_message = "alarm_topic_arns must be ARNs of SNS topics."
  }
}
