#!/usr/bin/env bash
# Start the proxy in front of the SuperLink: port @NODE_PORT@ for nodes, port @OPERATOR_PORT@ for operators.
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
exec nginx -e stderr -p "$here" -c "$here/nginx.conf"
