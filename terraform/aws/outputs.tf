output "bootstrap_servers" {
  description = "Addresses of the first broker of each host, for clients in the VPC."
  value       = join(",", [for host in keys(local.broker_hosts) : "${host}.${local.domain}:${local.ports.clients}"])
}

output "outside_bootstrap_servers" {
  description = "Addresses for clients outside of the VPC; null without `outside`."
  value       = var.outside == null ? null : join(",", [for id, node in local.brokers : "${var.outside.hostname}:${local.outside_ports[id]}" if node.slot == 1])
}

output "outside_dns_name" {
  description = "The load balancer, which outside.hostname must name; null without `outside`."
  value       = var.outside == null ? null : aws_lb.outside[0].dns_name
}

output "admin_urls" {
  description = "Admin APIs of the voters, as TIERLOG_ADMIN takes them."
  value       = join(",", [for host in keys(local.voter_hosts) : "https://${host}.${local.domain}:${local.ports.admin}"])
}

output "bucket" {
  description = "Bucket of the history."
  value       = aws_s3_bucket.history.bucket
}

output "object_store_url" {
  description = "Where the history is, as Spark jobs and tierlog take it."
  value       = "s3://${aws_s3_bucket.history.bucket}/${local.prefixes.history}?region=${local.region}"
}

output "history_policy" {
  description = "What brokers may do with the bucket, in JSON."
  value       = jsonencode(local.history_policy)
}

output "kms_key_arn" {
  description = "Key of the bucket and the secrets."
  value       = local.kms_key
}

output "parameters" {
  description = "Path of the cluster's parameters in SSM Parameter Store."
  value       = local.path
}

output "domain" {
  description = "Private domain of the hosts."
  value       = local.domain
}

output "hosts" {
  description = "Name of each host -> its zone, auto scaling group and node ids."
  value = {
    for host, about in local.hosts : host => {
      zone               = local.zones[about.zone]
      auto_scaling_group = aws_autoscaling_group.host[host].name
      nodes              = keys(about.nodes)
    }
  }
}

output "security_group_ids" {
  description = "Security groups of the hosts of brokers and voters."
  value       = local.group
}

output "client_properties" {
  description = "Client settings of Kafka's tools and of TIERLOG_CLIENT_CONFIG, without the password."
  value       = <<-END
    bootstrap.servers=${join(",", [for host in keys(local.broker_hosts) : "${host}.${local.domain}:${local.ports.clients}"])}
    security.protocol=SASL_SSL
    ssl.truststore.type=PEM
    ssl.truststore.location=ca.pem
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="admin" password="PASSWORD";
  END
}

output "profile" {
  description = "The command that names this cluster for `tierlog`. Run it where ca.pem and admin.password are, such as /run/tierlog/secrets of a broker's host."
  value = join(" ", [
    "tierlog profile create ${var.name} --use",
    "--bootstrap ${join(",", [for host in keys(local.broker_hosts) : "${host}.${local.domain}:${local.ports.clients}"])}",
    "--admin ${join(",", [for host in keys(local.voter_hosts) : "https://${host}.${local.domain}:${local.ports.admin}"])}",
    "--user admin --password file:admin.password --ca ca.pem --admin-ca ca.pem",
  ])
}

output "dashboard" {
  description = "Name of the dashboard in CloudWatch; null without `cloudwatch_dashboard`."
  value       = one(aws_cloudwatch_dashboard.cluster[*].dashboard_name)
}

output "prometheus_scrape_config" {
  description = "A job for the scrape_configs of Prometheus, which logs in as prometheus."
  value = yamlencode({
    job_name   = "tierlog-${var.name}"
    scheme     = "https"
    tls_config = { ca_file = "ca.pem" }
    basic_auth = { username = "prometheus", password_file = "prometheus.password" }
    static_configs = [
      for id, node in local.nodes : {
        targets = ["${node.host}.${local.domain}:${local.ports.admin + node.slot - 1}"]
        labels  = { cluster = var.name, role = node.role, node = id, zone = node.zone }
      }
    ]
  })
}
