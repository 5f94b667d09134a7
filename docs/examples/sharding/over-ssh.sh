#!/usr/bin/env bash
# One shard a host: ./over-ssh.sh WORKFLOW FOLDER HOST…    where each host has the project and agac.env in FOLDER.
# Run it again after a failure: what is finished ends at once. For a dead host name another one in its place: with more
# or fewer hosts every row would belong to another shard.
set -euo pipefail
workflow=$1 folder=$2
shift 2
hosts=("$@")

shard() { # NUMBER HOST: until it is finished
  local code tries=0
  while true; do
    code=0
    ssh -n -o BatchMode=yes -o ServerAliveInterval=30 "$2" \
      "cd '$folder' && . ./agac.env && exec agac -q run -a '$workflow' --shard $1/${#hosts[@]}" \
      >>"shard-$1.log" 2>&1 || code=$?
    case $code in
      0 | 3) return 0 ;; # 3: finished; the merged errors.jsonl names the rows that failed
      75) ;;             # it waits for groups of other shards
      1 | 255)           # 255: no connection, or it was lost; then 1 may say that the shard still runs there
        if [ "$code $tries" = "1 0" ] || [ "$((tries += 1))" -gt 10 ]; then return "$code"; fi ;;
      *) return "$code" ;;
    esac
    sleep "${AGAIN:-30}"
  done
}

running=()
for number in "${!hosts[@]}"; do
  shard $((number + 1)) "${hosts[number]}" &
  running+=($!)
done
failed=0
for number in "${!running[@]}"; do
  if ! wait "${running[number]}"; then
    failed=1
    echo "shard $((number + 1)) at ${hosts[number]} failed: see shard-$((number + 1)).log" >&2
  fi
done
if [ "$failed" = 1 ]; then exit 1; fi
. ./agac.env
agac merge -a "$workflow" || { code=$?; [ "$code" = 3 ] || exit "$code"; } # 3: merged, and some rows failed
