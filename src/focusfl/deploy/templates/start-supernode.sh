#!/usr/bin/env bash
# Start the SuperNode of agent @AGENT@:  ./start-supernode.sh [DATA [KEEP]]
#   DATA  folder with this agent's data, by default data/ next to this script; it is read here and sent nowhere
#   KEEP  folder for what the agent keeps from round to round, by default keep/
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_HOME="$here/flower" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy="$NO_PROXY"
command -v flower-supernode >/dev/null || {
  echo "flower-supernode: not found; activate the environment that holds focusfl[flower]" >&2
  exit 1
}
umask 077
data=${1:-$here/data}
keep=${2:-$here/keep}
[ -d "$data" ] || {
  echo "$data: no such folder; put this agent's data there, or name its folder: $0 DATA" >&2
  exit 1
}
mkdir -p "$FLWR_HOME" "$keep"
data=$(cd "$data" && pwd)
keep=$(cd "$keep" && pwd)
case "$data$keep" in
  *[\"\\]*)
    echo "$data, $keep: Flower cannot take quotes and backslashes in a path; name other folders" >&2
    exit 1
    ;;
esac
cd "$here"
exec flower-supernode \
  --superlink "@SUPERLINK@" --root-certificates "$here/ca.pem" \
  --auth-supernode-private-key "$here/node.key" \
  --host 127.0.0.1 --port "${PORT:-@SUPERNODE_PORT@}" \
  --node-config "agent=@AGENT@ data=\"$data\" keep=\"$keep\""
