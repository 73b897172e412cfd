#!/usr/bin/env bash
# Start the SuperNode of agent @AGENT@:  ./start-supernode.sh [DATA [KEEP]]
#   DATA  folder with this agent's data (default: data/ next to this script); focusfl does not send it anywhere
#   KEEP  folder for the agent's state between rounds (default: keep/ next to this script)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_HOME="$here/flower" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy="$NO_PROXY"
command -v flower-supernode >/dev/null || {
  echo "flower-supernode was not found; activate the environment where focusfl[flower] is installed" >&2
  exit 1
}
umask 077
data=${1:-$here/data}
keep=${2:-$here/keep}
[ -d "$data" ] || {
  echo "$data does not exist; put this agent's data there, or give its folder: $0 DATA" >&2
  exit 1
}
mkdir -p "$FLWR_HOME" "$keep"
data=$(cd "$data" && pwd)
keep=$(cd "$keep" && pwd)
case "$data$keep" in
  *[\"\\]*)
    echo "$data, $keep: Flower does not accept quotes or backslashes in a path; use other folders" >&2
    exit 1
    ;;
esac
cd "$here"
exec flower-supernode \
  --superlink "@SUPERLINK@" --root-certificates "$here/ca.pem" \
  --auth-supernode-private-key "$here/node.key" \
  --host 127.0.0.1 --port "${PORT:-@SUPERNODE_PORT@}" \
  --node-config "agent=@AGENT@ data=\"$data\" keep=\"$keep\""
