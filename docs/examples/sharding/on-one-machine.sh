#!/usr/bin/env bash
# All shards on this machine, some at a time: ./on-one-machine.sh WORKFLOW [SHARDS] [AT_ONCE]
# It uses more cores than one process does. AGAC_REMOTE may be a folder.
set -euo pipefail
export WORKFLOW=$1 SHARDS=${2:-16}
at_once=${3:-$(getconf _NPROCESSORS_ONLN)}

open=$(seq "$SHARDS")
while [ -n "$open" ]; do
  # Prints the numbers of shards that wait for groups of others, to be begun again when all others had their turn.
  open=$(printf '%s\n' "$open" | xargs -P "$at_once" -I{} sh -c '
    agac -q run -a "$WORKFLOW" --shard "{}/$SHARDS" >&2
    case $? in
      0 | 3) ;;       # 3: finished; the merged errors.jsonl names the rows that failed
      75) echo {} ;;
      *) exit 255 ;;  # xargs begins no other one; run this script again
    esac')
done
agac merge -a "$WORKFLOW" || { code=$?; [ "$code" = 3 ] || exit "$code"; } # 3: merged, and some rows failed
