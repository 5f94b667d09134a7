#!/usr/bin/env bash
# In the folder of the project: ./slurm-submit.sh [SHARDS]
set -euo pipefail
export SHARDS=${1:-16}
array=$(sbatch --parsable --array="1-$SHARDS" slurm-shards.sbatch)
merge=$(sbatch --parsable --dependency="afterok:${array%%;*}" --kill-on-invalid-dep=yes slurm-merge.sbatch)
echo "shards: job ${array%%;*}, merge: job ${merge%%;*}"
