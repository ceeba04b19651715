#!/usr/bin/env bash
# fetch-java.sh: copies the jars of the Java client, Kafka Streams and Kafka's command line tools into the cache,
# once for each content of pom.xml.
# Prints the directory. Needs Maven and Java 17. TIERLOG_CACHE overrides the cache directory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
version=$(sed -n 's/.*<kafka.version>\(.*\)<.*/\1/p' "$here/pom.xml")
jars=$cache/java-clients-$version-$(cksum <"$here/pom.xml" | cut -d' ' -f1)
mkdir -p "$cache"
# one download at a time: concurrent test runs wait for it
exec 9>"$cache/java-clients.lock"
flock 9
if [ ! -f "$jars/.complete" ]; then
  command -v mvn >/dev/null || { echo "fetch-java: Maven is not installed (apt-get install maven)" >&2; exit 1; }
  mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DoutputDirectory="$jars" -DincludeScope=runtime >&2
  touch "$jars/.complete"
fi
printf '%s\n' "$jars"
