#!/usr/bin/env bash
# Runs the live smokes of the chosen providers, each of which prints one classification.
#
#   CRABBOX_LIVE=1                 without it nothing is touched
#   CRABBOX_LIVE_PROVIDERS=a,b     which ones: docker-sandbox, agent-sandbox, opensandbox
#   CRABBOX_LIVE_COORDINATOR=0     the only value there is: no provider here has a coordinator
#   CRABBOX_BIN=PATH               a crabbox that is built already
#
# A guard that holds is no failure: it says environment_blocked and exits with 0. A smoke's own exit code is passed on.
set -euo pipefail
cd "$(dirname "$0")/.."

blocked() { echo "classification=environment_blocked${2:+ provider=$2} reason=$1"; }

if [ "${CRABBOX_LIVE:-}" != 1 ]; then
  blocked "CRABBOX_LIVE is not 1"
  exit 0
fi
case ${CRABBOX_LIVE_COORDINATOR:-0} in
  0) ;;
  *)
    blocked "CRABBOX_LIVE_COORDINATOR is not 0, and this build has no coordinator"
    exit 0
    ;;
esac
IFS=', ' read -r -a providers <<<"${CRABBOX_LIVE_PROVIDERS:-}"
if [ "${#providers[@]}" = 0 ]; then
  blocked "CRABBOX_LIVE_PROVIDERS names no provider"
  exit 0
fi
for provider in "${providers[@]}"; do
  case $provider in
    docker-sandbox | agent-sandbox | opensandbox | '') ;;
    *)
      echo "unknown provider \"$provider\" in CRABBOX_LIVE_PROVIDERS" >&2
      exit 2
      ;;
  esac
done

code=0
for provider in "${providers[@]}"; do
  [ -n "$provider" ] || continue
  smoke=scripts/live-$provider-smoke.sh
  if [ -x "$smoke" ]; then
    "$smoke" || code=$?
  else
    blocked "this build does not have the provider yet" "$provider"
  fi
done
exit "$code"
