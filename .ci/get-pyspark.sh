#!/usr/bin/env bash
# Prints the path of a directory with the oldest PySpark that tierlog supports, installing it once: for PYTHONPATH, before
# the newest one of the virtual environment. It is kept in $TIERLOG_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tierlog.
# 435 MB. Usage: .ci/get-pyspark.sh PYTHON
set -euo pipefail

version=4.0.5
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
directory=$cache/pyspark-$version
mkdir -p "$cache"

# one installation at a time: concurrent test runs wait for it and use its result
exec 9>"$cache/pyspark.lock"
flock 9
if [[ ! -d $directory ]]; then
    echo "get-pyspark: installing PySpark $version (once)" >&2
    staging=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$staging"' EXIT
    "$1" -m pip --disable-pip-version-check --quiet install --no-deps --target "$staging/pyspark" \
        "pyspark==$version" py4j==0.10.9.9 >&2
    mv "$staging/pyspark" "$directory"
fi
echo "$directory"
