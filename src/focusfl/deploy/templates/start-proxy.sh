#!/usr/bin/env bash
# Start the proxy in front of the SuperLink: port @NODE_PORT@ for nodes, port @OPERATOR_PORT@ for operators.
#   ./start-proxy.sh [MEGABYTES]
#   MEGABYTES  size at which run/access.log moves to access.log.1, then 2, then 3 (default: 100)
# After changing nginx.conf, operators.map or a certificate, reload it: kill -HUP "$(cat run/nginx.pid)"
set -eu
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin"
command -v nginx >/dev/null || {
  echo "nginx was not found; install it (Debian, Ubuntu: apt-get install nginx-light)" >&2
  exit 1
}
umask 077
mkdir -p "$here/run"
log=$here/run/access.log
limit=$((${1:-100} * 1000000))
proxy=$$ # nginx keeps the process id of this script
(
  while sleep "${CHECK_SECONDS:-60}" && kill -0 "$proxy"; do
    if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt "$limit" ]; then
      [ ! -f "$log.2" ] || mv -f "$log.2" "$log.3"
      [ ! -f "$log.1" ] || mv -f "$log.1" "$log.2"
      cp "$log" "$log.1" && : >"$log" # nginx has it open
    fi
  done
) >/dev/null 2>&1 &
exec nginx -e stderr -p "$here" -c "$here/nginx.conf"
