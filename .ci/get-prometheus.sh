#!/usr/bin/env bash
# Prints the path of a Prometheus server, fetching it once: from the Debian package, without installing it, or else built from
# the pinned Go module, which takes some minutes of CPU time. The binary is kept in $TIERLOG_CACHE, by default
# ${XDG_CACHE_HOME:-~/.cache}/tierlog. The build needs Go, on PATH or where localstack/get-s3-server.sh installed it.
set -euo pipefail

version=v0.314.0
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
binary=$cache/bin/prometheus
mkdir -p "$cache/bin"

from_package() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    apt-get download -qq prometheus >&2 ||
        { [ "$(id -u)" = 0 ] && timeout 5m apt-get update -qq >&2 && apt-get download -qq prometheus >&2; } || return 1
    dpkg-deb -x prometheus_*.deb package && package/usr/bin/prometheus --version >&2 && mv package/usr/bin/prometheus prometheus
}

from_source() {
    PATH="$PATH:$cache/go/bin"
    command -v go >/dev/null || { echo "get-prometheus: apt-get has no package prometheus, and there is no Go to build it" >&2; return 1; }
    echo "get-prometheus: building Prometheus $version (once)" >&2
    # `go install package@version` refuses this module, because its go.mod excludes versions of others
    go mod init build >&2
    go get "github.com/prometheus/prometheus/cmd/prometheus@$version" >&2
    CGO_ENABLED=0 nice -n 10 go build -trimpath -ldflags '-s -w' -tags remove_all_sd -o prometheus \
        github.com/prometheus/prometheus/cmd/prometheus >&2
    ./prometheus --version >&2
}

# one at a time: concurrent test runs wait for it and use its result
exec 9>"$cache/prometheus.lock"
flock 9
if [[ ! -x $binary ]]; then
    staging=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    cd "$staging"
    from_package || from_source
    mv prometheus "$binary"
fi
echo "$binary"
