#!/usr/bin/env bash
# fetch.sh: copies the jars of Spark's Kafka source into the cache, once for each content of pom.xml.
# Prints the directory. Needs Maven and Java 17. TIERLOG_CACHE overrides the cache directory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
jars=$cache/spark-kafka-$(cksum <"$here/pom.xml" | cut -d' ' -f1)
if [ ! -f "$jars/.complete" ]; then
  command -v mvn >/dev/null || { echo "fetch: Maven is not installed (apt-get install maven)" >&2; exit 1; }
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars" -DincludeScope=runtime >&2
  touch "$jars/.complete"
fi
printf '%s\n' "$jars"
