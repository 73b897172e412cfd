#!/usr/bin/env bash
# Start the SuperNode of agent @AGENT@:  ./start-supernode.sh [DATA [KEEP]]
#   DATA  folder with this agent's data (default: data/ next to this script); focusfl does not send it anywhere
#   KEEP  folder for the agent's state between rounds (default: keep/ next to this script)
# What this node insists on, whatever the server says (docs/secure-sums.md):
#   MINIMUM=@MINIMUM@        the smallest number of agents in a secure sum, 2 or more
#   SECURE=true      take part in secure runs only (default: false)
#   allowed-apps     a file next to this script: the hashes of the apps that may run here, one per line
set -eu
here=$(cd "$(dirname "$0")" && pwd)
minimum=${MINIMUM:-@MINIMUM@}
secure=${SECURE:-false}
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 RAY_USAGE_STATS_ENABLED=0
export FLWR_HOME="$here/flower" NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}"
export no_proxy="$NO_PROXY"
command -v flower-supernode >/dev/null || {
  echo "flower-supernode was not found; activate the environment where focusfl[flower] is installed" >&2
  exit 1
}
case "$minimum" in
  '' | *[!0-9]* | 0 | 1)
    echo "MINIMUM=$minimum: expected a whole number, 2 or more" >&2
    exit 1
    ;;
esac
case "$secure" in
  true | false) ;;
  *)
    echo "SECURE=$secure: expected true or false" >&2
    exit 1
    ;;
esac
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
case "$data$keep$here" in
  *[\"\\]*)
    echo "$data, $keep, $here: Flower does not accept quotes or backslashes in a path; use other folders" >&2
    exit 1
    ;;
esac
set -- flower-supernode
[ ! -e "$here/allowed-apps" ] || set -- focusfl deploy supernode "$here/allowed-apps"
cd "$here"
exec "$@" \
  --superlink "@SUPERLINK@" --root-certificates "$here/ca.pem" \
  --auth-supernode-private-key "$here/node.key" \
  --host 127.0.0.1 --port "${PORT:-@SUPERNODE_PORT@}" \
  --node-config "agent=@AGENT@ data=\"$data\" keep=\"$keep\" identity=\"$here\" minimum=$minimum secure=$secure"
