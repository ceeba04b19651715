#!/usr/bin/env bash
# Prints the path of tflint, building it once from its pinned Go module. It takes about four minutes of CPU time. The
# binary is kept in $TIERLOG_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tierlog. Needs Go, on PATH or where
# localstack/get-s3-server.sh installed it.
set -euo pipefail

version=v0.64.0
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
binary=$cache/bin/tflint-$version
mkdir -p "$cache/bin"

# one build at a time: concurrent test runs wait for it and use its result
exec 9>"$cache/tflint.lock"
flock 9
if [[ ! -x $binary ]]; then
    echo "get-tflint: building tflint $version (once)" >&2
    staging=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    PATH="$PATH:$cache/go/bin"
    GOBIN=$staging CGO_ENABLED=0 nice -n 10 go install -trimpath -ldflags '-s -w' \
        "github.com/terraform-linters/tflint@$version" >&2
    "$staging/tflint" --version >&2
    mv "$staging/tflint" "$binary"
fi
echo "$binary"
