# Which nodes there are: hosts, their zones, ids, ports and settings.

data "aws_region" "current" {}
data "aws_caller_identity" "current" {}
data "aws_partition" "current" {}

data "aws_ec2_instance_type" "broker" {
  instance_type = var.broker_instance_type
}

data "aws_ec2_instance_type" "voter" {
  instance_type = var.voter_instance_type
}

locals {
  region    = data.aws_region.current.name
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition
  tags      = merge(var.tags, { "tierlog:cluster" = var.name })
  domain    = coalesce(var.domain, "${var.name}.internal")
  path      = "/tierlog/${var.name}"

  # A broker uses one core. One is left to the kernel, which moves the bytes.
  brokers_per_host = coalesce(var.brokers_per_host, max(1, data.aws_ec2_instance_type.broker.default_cores - 1))
  disks_per_host   = max(1, sum(concat([0], [for disk in data.aws_ec2_instance_type.broker.instance_disks : disk.count])))

  # The ports of the first broker of a host; the next ones count upward.
  ports = { clients = 9092, brokers = 9292, outside = 9492, admin = 9644 }

  voter_hosts = {
    for number in range(1, var.voters + 1) : "voter-${number}" => {
      role  = "voter"
      zone  = (number - 1) % 3
      nodes = { (tostring(number)) = 1 }
    }
  }
  broker_hosts = {
    for number in range(1, var.broker_hosts + 1) : "broker-${number}" => {
      role  = "broker"
      zone  = (number - 1) % 3
      nodes = { for slot in range(1, local.brokers_per_host + 1) : tostring(number * 100 + slot) => slot }
    }
  }
  hosts = merge(local.voter_hosts, local.broker_hosts)
  nodes = merge([
    for host, about in local.hosts : {
      for id, slot in about.nodes : id => { host = host, role = about.role, zone = local.zones[about.zone], slot = slot }
    }
  ]...)
  brokers = { for id, node in local.nodes : id => node if node.role == "broker" }

  voters = [for host, about in local.voter_hosts : "${keys(about.nodes)[0]}@${host}.${local.domain}:${local.ports.admin}"]

  # Unique to this cluster, and known to all of its nodes without a secret: the zone is created with the cluster.
  cluster_id = substr(replace(replace(base64sha256(aws_route53_zone.hosts.zone_id), "+", "0"), "/", "1"), 0, 22)
}

locals {
  secrets = "/run/tierlog/secrets"

  settings_of_all = {
    "cluster.id"                        = local.cluster_id
    "controller.quorum.voters"          = local.voters
    "controller.quorum.secret"          = "$${directory:${local.secrets}:quorum}"
    "controller.quorum.ssl.certificate" = "${local.secrets}/tls.pem"
    "controller.quorum.ssl.key"         = "${local.secrets}/tls.pem"
    "controller.quorum.ssl.ca"          = "${local.secrets}/ca.pem"
    "admin.authentication"              = "basic"
    "admin.admins"                      = "User:admin"
    "admin.viewers"                     = "User:prometheus"
    "super.users"                       = "User:broker;User:admin"
  }

  settings_of_brokers = {
    "process.roles"                            = ["broker"]
    "listener.security.protocol.map"           = join(",", [for name in local.listeners : "${name}:SASL_SSL"])
    "inter.broker.listener.name"               = "BROKERS"
    "ssl.keystore.location"                    = "${local.secrets}/tls.pem"
    "ssl.truststore.location"                  = "${local.secrets}/ca.pem"
    "sasl.enabled.mechanisms"                  = "SCRAM-SHA-512"
    "sasl.jaas.config"                         = "$${directory:${local.secrets}:broker.jaas}"
    "connections.max.reauth.ms"                = 3600000
    "authorizer.class.name"                    = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    "object.store.url"                         = "s3://${aws_s3_bucket.history.bucket}/${local.prefixes.history}?region=${local.region}"
    "default.replication.factor"               = 3
    "min.insync.replicas"                      = 2
    "offsets.topic.replication.factor"         = 3
    "transaction.state.log.replication.factor" = 3
    "transaction.state.log.min.isr"            = 2
    "auto.create.topics.enable"                = false
    "replica.selector.class"                   = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
  }

  listeners = concat(["BROKERS", "CLIENTS"], var.outside == null ? [] : ["OUTSIDE"])

  # id -> settings file. JSON's strings, numbers, booleans and lists are valid TOML.
  settings = {
    for id, node in local.nodes : id => join("", [
      for key, value in merge(
        local.settings_of_all,
        { "process.roles" = ["controller"] },
        { for key, value in local.settings_of_brokers : key => value if node.role == "broker" },
        { for key, value in try(local.addresses[id], {}) : key => value },
        var.settings,
        {
          "node.id"        = tonumber(id)
          "broker.rack"    = "${node.zone}/${node.host}"
          "admin.listener" = "0.0.0.0:${local.ports.admin + node.slot - 1}"
          "log.dirs"       = [for disk in range(node.role == "broker" ? local.disks_per_host : 1) : "/var/lib/tierlog/disk-${disk}/${id}"]
        },
      ) : "${jsonencode(key)} = ${jsonencode(value)}\n"
    ])
  }
  addresses = {
    for id, node in local.brokers : id => {
      "listeners" = join(",", [for name in local.listeners : "${name}://:${local.ports[lower(name)] + node.slot - 1}"])
      "advertised.listeners" = join(",", [
        for name in local.listeners : name == "OUTSIDE" ?
        "OUTSIDE://${var.outside.hostname}:${local.outside_ports[id]}" :
        "${name}://${node.host}.${local.domain}:${local.ports[lower(name)] + node.slot - 1}"
      ])
    }
  }
}
