#!/usr/bin/env bash
# Prints the path of Prometheus' promtool, building it once from its pinned Go module. It takes about four minutes of
# CPU time. The binary is kept in $TIERLOG_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tierlog. Needs Go, on PATH or
# where localstack/get-s3-server.sh installed it.
set -euo pipefail

version=v0.314.0
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
binary=$cache/bin/promtool-$version
mkdir -p "$cache/bin"

# one build at a time: concurrent test runs wait for it and use its result
exec 9>"$cache/promtool.lock"
flock 9
if [[ ! -x $binary ]]; then
    echo "get-promtool: building Prometheus $version (once)" >&2
    staging=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    cd "$staging"
    PATH="$PATH:$cache/go/bin"
    # `go install package@version` refuses this module, because its go.mod excludes versions of others
    go mod init build >&2
    go get "github.com/prometheus/prometheus/cmd/promtool@$version" >&2
    CGO_ENABLED=0 nice -n 10 go build -trimpath -ldflags '-s -w' -tags remove_all_sd -o promtool \
        github.com/prometheus/prometheus/cmd/promtool >&2
    ./promtool --version >&2
    mv promtool "$binary"
fi
echo "$binary"
