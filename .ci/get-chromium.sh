#!/usr/bin/env bash
# Prints the path of a Chromium without a window, installing Debian's package once if this is root on Debian. Fails if there is none:
# the tests of the web page in a browser then say that they did not run.
set -euo pipefail

find_it() {
  local name
  for name in chromium chromium-browser google-chrome; do
    command -v "$name" && return
  done
  return 1
}

find_it && exit
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "get-chromium: no Chromium, and not root on Debian" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# one installation at a time
exec 9>"${TMPDIR:-/tmp}/tierlog-chromium.lock"
flock 9
if ! find_it >/dev/null; then
  timeout 5m apt-get update -qq >&2
  timeout 10m apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
fi
find_it
