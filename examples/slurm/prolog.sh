#!/bin/sh
# Slurm hook, for PrologSlurmctld and for TaskProlog.
#
# PrologSlurmctld, once per job on the slurmctld host: registers the job's nodes as a ring and keeps
# its lease renewed. TaskProlog, on the nodes as the user: prints the job's variables in the way that
# Slurm puts them into the task's environment. Which of the two it is, Slurm says in
# SLURM_SCRIPT_CONTEXT; an argument, register or environment, says so instead.

set -u
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=examples/slurm/common.sh
. "${RINGSTEP_HOOKS:-$here}/common.sh"

# The hosts of one rail, separated by commas.
ring_of_rail() {
    pattern=${RINGSTEP_RAIL_HOST:-%h-%r}
    for host in $hosts; do
        printf '%s\n' "$pattern" | sed -e "s/%h/$host/g" -e "s/%r/$1/g"
    done | paste -s -d , -
}

register() {
    [ -n "${SLURM_JOB_ID:-}" ] || give_up "no SLURM_JOB_ID; is this a Slurm hook?"
    [ -n "${SLURM_JOB_NODELIST:-}" ] || give_up "no SLURM_JOB_NODELIST"
    wanted || exit 0
    nodes=$("$RINGSTEP_SCONTROL" show hostnames "$SLURM_JOB_NODELIST" 2>&1) ||
        give_up "'$RINGSTEP_SCONTROL show hostnames $SLURM_JOB_NODELIST' failed: $nodes"
    hosts=$(printf '%s\n' "$nodes" | sed -e "${RINGSTEP_HOST_SED:-}") ||
        give_up "RINGSTEP_HOST_SED: sed cannot read '${RINGSTEP_HOST_SED:-}'"
    # shellcheck disable=SC2086 # one word per host
    set -- $hosts
    if [ $# -lt 2 ]; then
        log "one node: no ring to register"
        exit 0
    fi
    set --
    if [ -n "${RINGSTEP_RAILS:-}" ]; then
        for rail in $RINGSTEP_RAILS; do
            set -- "$@" --ring "$(ring_of_rail "$rail")" --rail "$rail"
        done
    else
        set -- --ring "$(printf '%s\n' "$hosts" | paste -s -d , -)"
    fi
    tenant=${RINGSTEP_TENANT:-}
    [ "$tenant" = account ] && tenant=${SLURM_JOB_ACCOUNT:-}
    [ -n "$tenant" ] && set -- "$@" --tenant "$tenant"
    # A job that is requeued is another registration; a hook that is run twice is not.
    restart=${SLURM_RESTART_COUNT:-${SLURM_JOB_RESTART_COUNT:-0}}
    # shellcheck disable=SC2086 # words of the configuration
    set -- job register --name "$job_name" "$@" --lease "$RINGSTEP_LEASE" \
        --request-id "slurm-${SLURM_CLUSTER_NAME:-cluster}-$SLURM_JOB_ID-$restart" \
        ${RINGSTEP_REGISTER_OPTIONS:-} --json
    if ! said=$("$RINGSTEP_BIN" "$@" 2>&1); then
        # What an earlier run of a requeued job left is in the way; its epilog may have been lost.
        if [ "$restart" -gt 0 ] && "$RINGSTEP_BIN" job release "$job_name" >/dev/null 2>&1; then
            log "released what an earlier run left"
            said=$("$RINGSTEP_BIN" "$@" 2>&1) || give_up "not registered: $said"
        else
            give_up "not registered: $said"
        fi
    fi
    generation=$(printf '%s\n' "$said" | sed -n 's/^  "generation": \([0-9]*\),*$/\1/p')
    log "registered: $(printf '%s\n' "$said" | sed -n 's/^  "id": \([0-9]*\),*$/Job_ID \1/p')," \
        "generation ${generation:-?}"
    mkdir -p "$RINGSTEP_STATE" || give_up "$RINGSTEP_STATE cannot be made; the lease runs out"
    printf '%s\n' "${generation:-0}" >"$RINGSTEP_STATE/$job_name.generation" ||
        give_up "$RINGSTEP_STATE cannot be written; the lease runs out"
    stop_renewing
    # In a session of its own, so that Slurm does not wait for it or end it with the hook.
    setsid "$RINGSTEP_BIN" job renew "$job_name" --every "$RINGSTEP_RENEW_EVERY" \
        --generation "${generation:-0}" </dev/null >/dev/null 2>&1 &
    printf '%s\n' "$!" >"$RINGSTEP_STATE/$job_name.pid"
    exit 0
}

environment() {
    [ -n "${SLURM_JOB_ID:-}" ] || give_up "no SLURM_JOB_ID; is this a Slurm hook?"
    wanted || exit 0
    [ "${SLURM_JOB_NUM_NODES:-${SLURM_NNODES:-2}}" -lt 2 ] && exit 0
    said=$("$RINGSTEP_BIN" job env "$job_name" --format dotenv 2>&1) ||
        give_up "no environment: $said"
    # Slurm takes "export NAME=value" lines from a TaskProlog's output, without quotes.
    printf '%s\n' "$said" | sed -n 's/^RINGSTEP_[A-Z_]*=/export &/p'
    exit 0
}

case ${1:-${SLURM_SCRIPT_CONTEXT:-prolog_slurmctld}} in
    register | prolog_slurmctld) register ;;
    environment | prolog_task) environment ;;
    *) give_up "not made for ${1:-$SLURM_SCRIPT_CONTEXT}; use PrologSlurmctld and TaskProlog" ;;
esac
