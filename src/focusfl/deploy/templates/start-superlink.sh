#!/usr/bin/env bash
# Start the SuperLink:  ./start-superlink.sh [MEGABYTES]
#   MEGABYTES  what a node's reply may bring, in addition to four times the size of its message (default: 16)
# It listens on loopback only; nodes and operators reach it through the proxy, start-proxy.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FOCUSFL_AUTHORITY="$here/ca.pem"
export FLWR_HOME="$here/flower" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy="$NO_PROXY"
command -v focusfl >/dev/null || {
  echo "focusfl was not found; activate the environment where focusfl[flower] is installed" >&2
  exit 1
}
umask 077
mkdir -p "$FLWR_HOME"
cd "$here"
exec focusfl deploy superlink --reply-mb "${1:-16}" \
  --host 127.0.0.1 --port @SUPERLINK_PORT@ \
  --ssl-ca-certfile "$here/ca.pem" --ssl-certfile "$here/server.pem" --ssl-keyfile "$here/server.key" \
  --enable-supernode-auth \
  --disable-runtime-dependency-installation \
  --database "$FLWR_HOME/superlink.db"
