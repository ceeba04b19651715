#!/usr/bin/env bash
# Starts an S3 server on this machine for tierlog and creates a bucket. Usage: start.sh [versitygw|minio] [port]
# Data is kept in ./s3-data (or $S3_DATA). Stop it with Ctrl-C.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
server=${1:-versitygw}
port=${2:-9000}
data=${S3_DATA:-$PWD/s3-data}
export AWS_ACCESS_KEY_ID=${AWS_ACCESS_KEY_ID:-tierlog} AWS_SECRET_ACCESS_KEY=${AWS_SECRET_ACCESS_KEY:-tierlog-secret}

binary=$("$here/get-s3-server.sh" "$server")
mkdir -p "$data/tierlog" # both servers serve a folder of the data directory as a bucket
echo "object.store.url = s3://tierlog/?endpoint=http://127.0.0.1:$port&region=us-east-1"
echo "export AWS_ACCESS_KEY_ID=$AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY=$AWS_SECRET_ACCESS_KEY"

case $server in
    versitygw)
        export ROOT_ACCESS_KEY=$AWS_ACCESS_KEY_ID ROOT_SECRET_KEY=$AWS_SECRET_ACCESS_KEY
        exec "$binary" --port "127.0.0.1:$port" --quiet posix "$data"
        ;;
    minio)
        export MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_UPDATE=off
        exec "$binary" server --quiet --address "127.0.0.1:$port" "$data"
        ;;
esac
