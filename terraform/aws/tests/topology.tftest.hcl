# Which hosts, nodes, ports, settings and permissions follow from the variables, with a mocked provider.
# tests/terraform adds a case for each invalid value, and asserts its message.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  name    = "orders"
  package = { wheels = "s3://packages/tierlog.tar.gz", sha256 = "0000000000000000000000000000000000000000000000000000000000000000" }
}

run "defaults" {
  assert {
    condition     = join(" ", keys(aws_autoscaling_group.host)) == "broker-1 broker-2 broker-3 voter-1 voter-2 voter-3"
    error_message = "three hosts of brokers and three of voters"
  }
  assert {
    condition     = join(" ", keys(aws_ssm_parameter.node)) == "1 101 102 103 2 201 202 203 3 301 302 303"
    error_message = "a host with four cores has three brokers, and ids follow from host and slot"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["203"].value, "\"broker.rack\" = \"eu-central-1b/broker-2\"\n")
    error_message = "the rack has the zone and the host"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["203"].value, "\"advertised.listeners\" = \"BROKERS://broker-2.orders.internal:9294,CLIENTS://broker-2.orders.internal:9094\"\n")
    error_message = "the third broker of a host has the third port"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["203"].value, "\"log.dirs\" = [\"/var/lib/tierlog/disk-0/203\"]\n")
    error_message = "a broker has a directory on each disk"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["1"].value, "\"process.roles\" = [\"controller\"]\n") && !strcontains(aws_ssm_parameter.node["1"].value, "advertised.listeners")
    error_message = "a voter serves no clients"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["1"].value, "[\"1@voter-1.orders.internal:9644\",\"2@voter-2.orders.internal:9644\",\"3@voter-3.orders.internal:9644\"]")
    error_message = "all nodes know the voters"
  }
  assert {
    condition     = length(distinct([for id, node in aws_ssm_parameter.node : regex("\"cluster.id\" = \"([A-Za-z0-9]{22})\"", node.value)[0]])) == 1
    error_message = "all nodes have the same cluster id"
  }
  assert {
    condition     = alltrue([for name, group in aws_autoscaling_group.host : group.min_size == 1 && group.max_size == 1])
    error_message = "each host is an auto scaling group of one"
  }
  assert {
    condition     = alltrue([for name, template in aws_launch_template.host : template.metadata_options[0].http_tokens == "required"])
    error_message = "only IMDSv2"
  }
  assert {
    condition     = alltrue([for name, template in aws_launch_template.host : !can(regex("(?i)password|secret", base64decode(template.user_data)))])
    error_message = "user data has no secrets"
  }
  assert {
    condition     = length(aws_ebs_volume.voter) == 3 && alltrue([for name, volume in aws_ebs_volume.voter : volume.encrypted && volume.size == 20])
    error_message = "each voter has an encrypted volume"
  }
  assert {
    condition     = aws_s3_bucket_versioning.history.versioning_configuration[0].status == "Enabled" && length(aws_s3_bucket_lifecycle_configuration.history.rule) == 2
    error_message = "the bucket has versions"
  }
  assert {
    condition     = length(aws_nat_gateway.new) == 1 && length(aws_vpc_endpoint.s3) == 1 && length(aws_subnet.private) == 3
    error_message = "a new VPC has a NAT gateway and an endpoint for S3"
  }
  assert {
    condition     = output.dashboard == "tierlog-orders" && !strcontains(aws_cloudwatch_dashboard.cluster[0].dashboard_body, "tierlog/orders")
    error_message = "the dashboard has no metrics of an agent that does not run"
  }
  assert {
    condition     = length(aws_lb.outside) == 0 && length(aws_cloudwatch_metric_alarm.host_down) == 0 && length(aws_kms_key.new) == 1
    error_message = "neither a load balancer nor alarms by default"
  }
  assert {
    condition     = output.bootstrap_servers == "broker-1.orders.internal:9092,broker-2.orders.internal:9092,broker-3.orders.internal:9092"
    error_message = "bootstrap servers are the first broker of each host"
  }
  assert {
    condition     = output.admin_urls == "https://voter-1.orders.internal:9644,https://voter-2.orders.internal:9644,https://voter-3.orders.internal:9644"
    error_message = "the admin URLs are those of the voters"
  }
  assert {
    condition     = output.profile == "tierlog profile create orders --use --bootstrap ${output.bootstrap_servers} --admin ${output.admin_urls} --user admin --password file:admin.password --ca ca.pem --admin-ca ca.pem"
    error_message = "the profile has the addresses, and the password by reference"
  }
  assert {
    condition     = strcontains(output.prometheus_scrape_config, "broker-3.orders.internal:9646") && !strcontains(output.client_properties, "PLAINTEXT")
    error_message = "Prometheus scrapes each broker; clients use TLS"
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.host["voter"].policy, "secrets/brokers") && strcontains(aws_iam_role_policy.host["broker"].policy, "secrets/brokers")
    error_message = "voters cannot read the passwords of brokers"
  }
  assert {
    condition     = !strcontains(join("", [for role, policy in aws_iam_role_policy.host : policy.policy]), "secrets/operator")
    error_message = "no host can read the key of the CA"
  }
  assert {
    condition     = strcontains(aws_iam_role_policy.host["broker"].policy, "ssmmessages:OpenDataChannel")
    error_message = "operators open shells by Session Manager"
  }
}

run "sizes" {
  variables {
    broker_hosts         = 6
    brokers_per_host     = 2
    broker_instance_type = "im4gn.2xlarge"
    voters               = 5
    voter_instance_type  = "m7g.medium"
    voter_volume_gib     = 50
    root_volume_gib      = 30
    ami_id               = "ami-0fedcba9876543210"
    tags                 = { team = "platform" }
    session_manager      = false
  }

  assert {
    condition     = length(aws_autoscaling_group.host) == 11 && length(aws_ssm_parameter.node) == 17
    error_message = "six hosts with two brokers, and five voters"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["402"].value, "\"broker.rack\" = \"eu-central-1a/broker-4\"\n")
    error_message = "the fourth host is in the first zone"
  }
  assert {
    condition     = aws_launch_template.host["broker-6"].instance_type == "im4gn.2xlarge" && aws_launch_template.host["voter-5"].instance_type == "m7g.medium"
    error_message = "instance types"
  }
  assert {
    condition     = aws_launch_template.host["broker-1"].image_id == "ami-0fedcba9876543210" && aws_launch_template.host["broker-1"].block_device_mappings[0].ebs[0].volume_size == 30
    error_message = "image and root volume"
  }
  assert {
    condition     = aws_ebs_volume.voter["voter-1"].size == 50 && aws_ebs_volume.voter["voter-1"].tags["team"] == "platform"
    error_message = "volume of a voter, with tags"
  }
  assert {
    condition     = !strcontains(aws_iam_role_policy.host["broker"].policy, "ssmmessages")
    error_message = "no shells without session_manager"
  }
}

run "bucket_and_settings" {
  variables {
    bucket_name               = "orders-history"
    bucket_versioning         = false
    bucket_abort_uploads_days = 7
    bucket_noncurrent_days    = 60
    bucket_force_destroy      = true
    kms_key_arn               = "arn:aws:kms:eu-central-1:123456789012:key/1234"
    settings                  = { "log.retention.ms" = "-1", "min.insync.replicas" = "3" }
  }

  assert {
    condition     = aws_s3_bucket.history.bucket == "orders-history" && aws_s3_bucket.history.force_destroy
    error_message = "name of the bucket"
  }
  assert {
    condition     = aws_s3_bucket_versioning.history.versioning_configuration[0].status == "Suspended" && length(aws_s3_bucket_lifecycle_configuration.history.rule) == 1
    error_message = "no versions"
  }
  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.history.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 7
    error_message = "unfinished uploads end after seven days"
  }
  assert {
    condition     = length(aws_kms_key.new) == 0 && output.kms_key_arn == "arn:aws:kms:eu-central-1:123456789012:key/1234"
    error_message = "a given key"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["101"].value, "\"object.store.url\" = \"s3://orders-history/history?region=eu-central-1\"\n")
    error_message = "brokers have the bucket"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.node["101"].value, "\"min.insync.replicas\" = \"3\"\n") && strcontains(aws_ssm_parameter.node["101"].value, "\"log.retention.ms\" = \"-1\"\n")
    error_message = "settings override those of the module"
  }
  assert {
    condition     = jsondecode(output.history_policy).Statement[0].Resource == "${aws_s3_bucket.history.arn}/history/*"
    error_message = "brokers write only the history"
  }
}

run "versions_are_kept_for_as_long_as_wanted" {
  variables {
    bucket_noncurrent_days = 60
  }

  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.history.rule[1].noncurrent_version_expiration[0].noncurrent_days == 60
    error_message = "deleted objects stay for 60 days"
  }
}

run "new_network" {
  command = plan

  variables {
    vpc_cidr                  = "10.99.0.0/20"
    nat_gateways              = 3
    domain                    = "log.example.internal"
    client_cidrs              = ["10.1.0.0/16"]
    client_security_group_ids = ["sg-0123456789abcdef0"]
    operator_cidrs            = ["10.2.0.0/16"]
  }

  assert {
    condition     = aws_subnet.private[0].cidr_block == "10.99.0.0/24" && length(aws_nat_gateway.new) == 3
    error_message = "subnets follow the given network"
  }
  assert {
    condition     = aws_route53_zone.hosts.name == "log.example.internal"
    error_message = "the given domain"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.hosts["clients-10.1.0.0/16"].from_port == 9092 && aws_vpc_security_group_ingress_rule.hosts["clients-10.1.0.0/16"].to_port == 9094
    error_message = "clients reach the ports of three brokers"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.hosts["clients-of-group-0"].referenced_security_group_id == "sg-0123456789abcdef0"
    error_message = "clients of a group"
  }
  assert {
    condition     = aws_vpc_security_group_ingress_rule.hosts["admin-of-voter-10.2.0.0/16"].to_port == 9644
    error_message = "operators reach the admin API"
  }
  assert {
    condition     = !contains([for name, rule in aws_vpc_security_group_ingress_rule.hosts : rule.cidr_ipv4], "0.0.0.0/0")
    error_message = "nothing is open to the internet"
  }
}

run "existing_network" {
  command = plan

  variables {
    vpc_id                      = "vpc-0123456789abcdef0"
    subnet_ids                  = ["subnet-0aaaaaaaaaaaaaaaa", "subnet-0bbbbbbbbbbbbbbbb", "subnet-0cccccccccccccccc"]
    s3_endpoint_route_table_ids = ["rtb-0123456789abcdef0"]
  }

  assert {
    condition     = length(aws_vpc.new) == 0 && length(aws_subnet.private) == 0 && length(aws_nat_gateway.new) == 0
    error_message = "no new network"
  }
  assert {
    condition     = aws_autoscaling_group.host["broker-2"].vpc_zone_identifier == toset(["subnet-0bbbbbbbbbbbbbbbb"])
    error_message = "the second host is in the second subnet"
  }
  assert {
    condition     = aws_vpc_endpoint.s3[0].route_table_ids == toset(["rtb-0123456789abcdef0"])
    error_message = "the endpoint is in the given route table"
  }
}

run "clients_outside" {
  command = plan

  variables {
    outside = { hostname = "orders.example.com", cidrs = ["198.51.100.0/24"], zone_id = "Z0123456789" }
  }

  assert {
    condition     = join(" ", [for id, listener in aws_lb_listener.broker : tostring(listener.port)]) == "20101 20102 20103 20201 20202 20203 20301 20302 20303"
    error_message = "a port for each broker"
  }
  assert {
    condition     = output.outside_bootstrap_servers == "orders.example.com:20101,orders.example.com:20201,orders.example.com:20301"
    error_message = "bootstrap servers outside"
  }
  assert {
    condition     = !aws_lb.outside[0].internal && aws_route53_record.outside[0].name == "orders.example.com"
    error_message = "a public load balancer with a name"
  }
  assert {
    condition     = local.addresses["102"]["advertised.listeners"] == "BROKERS://broker-1.orders.internal:9293,CLIENTS://broker-1.orders.internal:9093,OUTSIDE://orders.example.com:20102"
    error_message = "brokers advertise their port outside"
  }
}

run "more_brokers_than_ports_of_a_load_balancer" {
  command = plan

  variables {
    broker_hosts = 18
    outside      = { hostname = "orders.example.com", cidrs = ["198.51.100.0/24"], internal = true }
  }

  expect_failures = [aws_lb.outside]
}

run "monitoring" {
  variables {
    cloudwatch_agent = true
    alarm_topic_arns = ["arn:aws:sns:eu-central-1:123456789012:on-call"]
  }

  assert {
    condition     = length(aws_cloudwatch_metric_alarm.host_down) == 6 && length(aws_cloudwatch_metric_alarm.disk_full) == 6
    error_message = "alarms of each host and disk"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.host["broker-1"].value, "CLOUDWATCH_AGENT='true'") && strcontains(aws_iam_role_policy.host["voter"].policy, "cloudwatch:PutMetricData")
    error_message = "hosts run the agent"
  }
  assert {
    condition     = join("; ", [for widget in jsondecode(aws_cloudwatch_dashboard.cluster[0].dashboard_body).widgets : "${widget.properties.title}: ${length(widget.properties.metrics)}"]) == "CPU, percent: 6; Disks, percent full: 6; Failed status checks: 6; History, bytes: 1; Hosts in service: 6; Memory, percent: 6; Network, bytes: 12"
    error_message = "the dashboard has all hosts and disks"
  }
}

run "no_dashboard" {
  command = plan

  variables {
    cloudwatch_dashboard = false
  }

  assert {
    condition     = length(aws_cloudwatch_dashboard.cluster) == 0 && output.dashboard == null
    error_message = "no dashboard"
  }
}

run "certificates_of_a_private_ca" {
  variables {
    acm_pca_arn = "arn:aws:acm-pca:eu-central-1:123456789012:certificate-authority/1234"
  }

  assert {
    condition     = strcontains(aws_iam_role_policy.host["voter"].policy, "acm-pca:IssueCertificate")
    error_message = "hosts get certificates"
  }
  assert {
    condition     = strcontains(aws_ssm_parameter.host["voter-2"].value, "TLS_NAMES='voter-2.orders.internal'\n")
    error_message = "a certificate names its host"
  }
}

run "package_from_an_index" {
  variables {
    package = {
      requirements = "# pinned\ntierlog==0.1.0 \\\n    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111\n"
      index_url    = "https://packages.example.com/simple"
    }
  }

  assert {
    condition     = strcontains(aws_ssm_parameter.host["broker-1"].value, "PACKAGE_INDEX='https://packages.example.com/simple'\n") && strcontains(aws_s3_object.requirements[0].content, "tierlog==0.1.0")
    error_message = "hosts install from the index, by hash"
  }
}
