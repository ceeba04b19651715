#!/bin/sh
# Makes this host what /etc/tierlog/host.env says, and starts its nodes. Runs at each boot (tierlog-boot.service), and
# again by hand: `/usr/local/lib/tierlog/fetch`. What is there already is left as it is, and running nodes keep running.
# A step that fails ends it; systemd tries again.
set -eu
. /etc/tierlog/host.env
export AWS_DEFAULT_REGION="$REGION"

state=/var/lib/tierlog
secrets=/run/tierlog/secrets # in memory, and read again at each boot
imds=http://169.254.169.254/latest

say() { echo "tierlog-boot: $*"; }

metadata() {
  token=$(curl -sSf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$imds/api/token")
  curl -sSf -H "X-aws-ec2-metadata-token: $token" "$imds/meta-data/$1"
}

# replace FILE OWNER MODE SOURCE: FILE becomes a copy of SOURCE, at once, and only if it differs. SOURCE is removed.
replace() {
  chown "$2" "$4"
  chmod "$3" "$4"
  if cmp -s "$4" "$1"; then
    rm "$4"
  else
    mv "$4" "$1"
    say "changed $1"
  fi
}

run_at_each_boot() {
  units=/etc/systemd/system
  cat > "$units/.new" << 'END'
[Unit]
Description=Prepare this host for tierlog, and start its nodes
Wants=network-online.target
After=network-online.target cloud-final.service
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/local/lib/tierlog/fetch
Restart=on-failure
RestartSec=15

[Install]
WantedBy=multi-user.target
END
  replace "$units/tierlog-boot.service" root 644 "$units/.new"
  cat > "$units/.new" << 'END'
[Unit]
Description=Fetch renewed certificates of tierlog, which nodes read by themselves

[Service]
Type=oneshot
ExecStart=/usr/local/lib/tierlog/boot renew
END
  replace "$units/tierlog-renew.service" root 644 "$units/.new"
  cat > "$units/.new" << 'END'
[Unit]
Description=Fetch renewed certificates of tierlog daily

[Timer]
OnCalendar=daily
RandomizedDelaySec=6h
Persistent=true

[Install]
WantedBy=timers.target
END
  replace "$units/tierlog-renew.timer" root 644 "$units/.new"
  systemctl daemon-reload
  systemctl enable --quiet tierlog-boot.service tierlog-renew.timer
  systemctl start --no-block tierlog-renew.timer
}

# Only if it has changed: changes of Route 53 are made in another region, and a host has to restart without them.
publish_name() {
  address=$(metadata local-ipv4)
  if [ "$(getent ahostsv4 "$HOST.$DOMAIN" | cut -d ' ' -f 1 | sort -u)" = "$address" ]; then
    return
  fi
  aws route53 change-resource-record-sets --hosted-zone-id "$ZONE_ID" --change-batch "{\"Changes\": [{\"Action\": \"UPSERT\",
    \"ResourceRecordSet\": {\"Name\": \"$HOST.$DOMAIN\", \"Type\": \"A\", \"TTL\": 10, \"ResourceRecords\": [{\"Value\": \"$address\"}]}}]}" > /dev/null
  say "$HOST.$DOMAIN is $address"
}

create_user() {
  getent passwd tierlog > /dev/null || useradd --system --user-group --home-dir "$state" --shell /sbin/nologin tierlog
  install -d -m 755 "$state"
}

# disk NUMBER DEVICE: mounted, and formatted if it is empty.
disk() {
  path="$state/disk-$1"
  install -d -m 755 "$path"
  if mountpoint -q "$path"; then
    return
  fi
  found=0
  blkid -p "$2" > /dev/null || found=$?
  case $found in
    0) ;;
    2) # nothing is on it, or it cannot be read
      if ! dd if="$2" of=/dev/null bs=1M count=1 2> /dev/null; then
        say "cannot read $2, so it is not formatted: see dmesg" >&2
        exit 1
      fi
      say "formatting $2"
      mkfs.ext4 -q -m 0 -E nodiscard "$2"
      ;;
    *)
      say "blkid cannot tell what is on $2" >&2
      exit 1
      ;;
  esac
  mount -o noatime "$2" "$path"
  say "$2 is mounted on $path"
}

# NVMe disks in the order of their serial numbers, which a reboot does not change. Links with a suffix name the same disks.
mount_instance_storage() {
  number=0
  seen=' '
  for link in /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*; do
    device=$(readlink -f "$link")
    case "$link$seen" in
      *-part*) continue ;;
      *" $device "*) continue ;;
    esac
    [ -b "$device" ] || continue
    seen="$seen$device "
    disk "$number" "$device"
    number=$((number + 1))
  done
  if [ "$number" != "$DISKS" ]; then
    say "this host has $number NVMe disks and not $DISKS: is its instance type that of the module?" >&2
    exit 1
  fi
}

# The volume of a voter outlives the instance. The instance before may still hold it for a minute.
attach_volume() {
  link=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_$(echo "$VOLUME_ID" | tr -d -)
  if [ ! -e "$link" ]; then
    aws ec2 wait volume-available --volume-ids "$VOLUME_ID"
    aws ec2 attach-volume --volume-id "$VOLUME_ID" --instance-id "$(metadata instance-id)" --device /dev/sdf > /dev/null
    aws ec2 wait volume-in-use --volume-ids "$VOLUME_ID"
  fi
  tries=60
  until [ -e "$link" ] || [ "$tries" = 0 ]; do
    sleep 1
    tries=$((tries - 1))
  done
  if [ ! -e "$link" ]; then
    say "volume $VOLUME_ID is attached, but there is no $link" >&2
    exit 1
  fi
  disk 0 "$(readlink -f "$link")"
}

# An environment for each pinned package; /opt/tierlog is the one in use. A node uses a new one after its next restart.
install_package() {
  venv="/opt/tierlog-$PACKAGE_SHA256"
  if [ ! -e "$venv/complete" ]; then
    command -v "$PYTHON" > /dev/null || dnf install -y -q "$PYTHON"
    rm -rf "$venv" "$venv.package"
    install -d -m 755 "$venv.package"
    aws s3 cp --only-show-errors "$PACKAGE_URL" "$venv.package/package"
    echo "$PACKAGE_SHA256  $venv.package/package" | sha256sum --check --quiet
    "$PYTHON" -m venv "$venv"
    if [ -n "$PACKAGE_INDEX" ]; then
      "$venv/bin/pip" install -q --disable-pip-version-check --require-hashes --index-url "$PACKAGE_INDEX" -r "$venv.package/package"
    else
      tar -xzf "$venv.package/package" -C "$venv.package"
      "$venv/bin/pip" install -q --disable-pip-version-check --no-index --no-deps "$venv.package"/wheels/*.whl
    fi
    rm -rf "$venv.package"
    touch "$venv/complete"
    say "installed package $PACKAGE_SHA256"
  fi
  ln -sfn "$venv" /opt/tierlog
}

# parameters PATH DIRECTORY: each parameter right below PATH becomes a file that nodes can read.
parameters() {
  names=$(aws ssm get-parameters-by-path --path "$1" --query 'Parameters[].[Name]' --output text)
  for name in $names; do
    (
      umask 077
      aws ssm get-parameter --name "$name" --with-decryption --query Parameter.Value --output text > "$2/.new"
    )
    replace "$2/${name##*/}" root:tierlog 640 "$2/.new"
  done
}

fetch_secrets() {
  install -d -m 750 -o root -g tierlog /run/tierlog "$secrets"
  parameters "$PARAMETERS/secrets/nodes" "$secrets"
  if [ "$ROLE" = broker ]; then
    parameters "$PARAMETERS/secrets/brokers" "$secrets"
    (
      umask 077
      printf 'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="%s";\n' \
        "$(cat "$secrets/broker.password")" > "$secrets/.new"
    )
    replace "$secrets/broker.jaas" root:tierlog 640 "$secrets/.new"
  fi
  if [ -n "$PCA_ARN" ]; then
    issue_certificate
  fi
  for file in quorum tls.pem ca.pem; do
    if [ ! -s "$secrets/$file" ]; then
      say "there is no parameter $PARAMETERS/secrets/nodes/$file: run bin/make-secrets" >&2
      exit 1
    fi
  done
}

# The key is made here and never leaves this host. A new one is made in the last third of its certificate's life.
issue_certificate() {
  tls=/etc/tierlog/tls
  install -d -m 750 -o root -g tierlog "$tls"
  if ! openssl x509 -in "$tls/tls.pem" -noout -checkend $((CERTIFICATE_DAYS * 86400 / 3)) > /dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    # first what may be denied: each certificate costs money, and systemd repeats a step that fails
    aws acm-pca get-certificate-authority-certificate --certificate-authority-arn "$PCA_ARN" \
      --query Certificate --output text > "$work/ca.pem"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$HOST.$DOMAIN" \
      -addext "subjectAltName=$(echo "$TLS_NAMES" | sed 's/[^ ]*/DNS:&/g; s/ /,/g')" \
      -keyout "$work/key" -out "$work/request" 2> /dev/null
    certificate=$(aws acm-pca issue-certificate --certificate-authority-arn "$PCA_ARN" --csr "fileb://$work/request" \
      --signing-algorithm "$PCA_ALGORITHM" --validity "Value=$CERTIFICATE_DAYS,Type=DAYS" --query CertificateArn --output text)
    aws acm-pca wait certificate-issued --certificate-authority-arn "$PCA_ARN" --certificate-arn "$certificate"
    aws acm-pca get-certificate --certificate-authority-arn "$PCA_ARN" --certificate-arn "$certificate" \
      --query Certificate --output text > "$work/certificate"
    cat "$work/key" "$work/certificate" > "$work/tls.pem"
    replace "$tls/ca.pem" root:tierlog 640 "$work/ca.pem"
    replace "$tls/tls.pem" root:tierlog 640 "$work/tls.pem"
    rm -r "$work"
  fi
  for file in tls.pem ca.pem; do
    install -m 600 "$tls/$file" "$secrets/.new"
    replace "$secrets/$file" root:tierlog 640 "$secrets/.new"
  done
}

install_unit() {
  units=/etc/systemd/system
  aws s3 cp --only-show-errors "s3://$BUCKET/$UNIT_KEY" "$units/.new"
  replace "$units/tierlog@.service" root 644 "$units/.new"
  install -d -m 755 "$units/tierlog@.service.d"
  printf '[Service]\nReadWritePaths=%s\n' "$state" > "$units/.new"
  replace "$units/tierlog@.service.d/disks.conf" root 644 "$units/.new"
  systemctl daemon-reload
}

# first_users ID: before the first start of a broker. A cluster that has users already keeps its own.
first_users() {
  if [ ! -e "$state/disk-0/$1/meta.properties" ]; then
    runuser -u tierlog -- /opt/tierlog/bin/tierlog storage format --config "/etc/tierlog/$1.toml" \
      --add-scram "SCRAM-SHA-512=[name=broker,password-file=$secrets/broker.password]" \
      --add-scram "SCRAM-SHA-512=[name=admin,password-file=$secrets/admin.password]" \
      --add-scram "SCRAM-SHA-512=[name=prometheus,password-file=$secrets/prometheus.password]"
  fi
}

start_nodes() {
  parameters "$PARAMETERS/$HOST/nodes" /etc/tierlog
  for id in $NODES; do
    for mounted in "$state"/disk-*; do
      [ -d "$mounted/$id" ] || install -d -m 700 -o tierlog -g tierlog "$mounted/$id"
    done
    if [ "$ROLE" = broker ]; then
      first_users "$id"
    fi
    systemctl start --no-block "tierlog@$id" 9>&- # what it starts must not keep the lock
    say "started node $id"
  done
}

watch_host() {
  command -v amazon-cloudwatch-agent-ctl > /dev/null || dnf install -y -q amazon-cloudwatch-agent
  amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -s -c "ssm:$PARAMETERS/agent"
}

# One run at a time: at boot, by hand or daily, each writes files under the same temporary names.
exec 9> /run/tierlog-boot.lock
flock -w 600 9 || {
  say "another run has not ended for ten minutes: systemctl status tierlog-boot tierlog-renew" >&2
  exit 1
}
if [ "${1:-}" = renew ]; then
  fetch_secrets
  exit
fi
run_at_each_boot
publish_name
create_user
if [ "$ROLE" = broker ]; then
  mount_instance_storage
else
  attach_volume
fi
install_package
fetch_secrets
install_unit
start_nodes
if [ "$CLOUDWATCH_AGENT" = true ]; then
  watch_host
fi
