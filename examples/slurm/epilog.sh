#!/bin/sh
# Slurm hook, for EpilogSlurmctld: ends the renewals of a job's lease and releases the job. Where
# that fails the lease does it, so a lost epilog costs nothing but time.

set -u
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=examples/slurm/common.sh
. "${RINGSTEP_HOOKS:-$here}/common.sh"

[ -n "${SLURM_JOB_ID:-}" ] || give_up "no SLURM_JOB_ID; is this a Slurm hook?"
wanted || exit 0
generation_file=$RINGSTEP_STATE/$job_name.generation
if [ ! -r "$generation_file" ]; then
    # Never registered: one node, or the prolog gave up.
    exit 0
fi
generation=$(cat "$generation_file")
stop_renewing
if said=$("$RINGSTEP_BIN" job release "$job_name" --generation "${generation:-0}" 2>&1); then
    log "released"
else
    # An epilog has nothing to hold up: the job is over, strict or not.
    log "not released, its lease will run out: $said"
fi
rm -f "$generation_file"
exit 0
