#!/bin/sh
# What the Ringstep containers of job.yaml run: register, renew or release.
#
# Settings: RINGSTEP_JOB_NAME, RINGSTEP_RING (hosts in ring order; several rings: separated by
# spaces), RINGSTEP_REQUEST_ID (the same in all pods of one job), RINGSTEP_LEASE,
# RINGSTEP_RENEW_EVERY, RINGSTEP_REGISTER_OPTIONS, RINGSTEP_ENV_FILE, RINGSTEP_STRICT, and those of
# the command ringstep: RINGSTEP_CONTROLLER, RINGSTEP_CA, RINGSTEP_TOKEN_FILE.

set -u
: "${RINGSTEP_BIN:=ringstep}" "${RINGSTEP_ENV_FILE:=/ringstep/env}"
: "${RINGSTEP_LEASE:=10m}" "${RINGSTEP_RENEW_EVERY:=60s}"
name=${RINGSTEP_JOB_NAME:-}

give_up() {
    printf 'ringstep: %s\n' "$*" >&2
    if [ "${RINGSTEP_STRICT:-0}" = 1 ]; then
        exit 1
    fi
    exit 0
}

register() {
    # The training container sources this file; without Ringstep it is empty.
    : >"$RINGSTEP_ENV_FILE" || give_up "$RINGSTEP_ENV_FILE cannot be written"
    [ -n "$name" ] || give_up "no RINGSTEP_JOB_NAME"
    [ -n "${RINGSTEP_RING:-}" ] || give_up "no RINGSTEP_RING: hosts in ring order"
    request=${RINGSTEP_REQUEST_ID:-$name}
    set --
    for ring in $RINGSTEP_RING; do
        set -- "$@" --ring "$ring"
    done
    # All pods do this: the same request id and the same job are one registration.
    # shellcheck disable=SC2086 # words of the configuration
    said=$("$RINGSTEP_BIN" job register --name "$name" "$@" --lease "$RINGSTEP_LEASE" \
        --request-id "$request" ${RINGSTEP_REGISTER_OPTIONS:-} --json 2>&1) ||
        give_up "not registered: $said"
    said=$("$RINGSTEP_BIN" job env "$name" --format shell 2>&1) ||
        give_up "no environment: $said"
    # Whoever reads the file sees all of it or nothing.
    if ! { printf '%s\n' "$said" >"$RINGSTEP_ENV_FILE.new" &&
        mv "$RINGSTEP_ENV_FILE.new" "$RINGSTEP_ENV_FILE"; }; then
        give_up "$RINGSTEP_ENV_FILE cannot be written"
    fi
}

generation() {
    sed -n 's/^export RINGSTEP_GENERATION=\([0-9]*\)$/\1/p' "$RINGSTEP_ENV_FILE" 2>/dev/null
}

# Runs a command until it ends or the pod does; a shell that is process 1 must pass SIGTERM on.
attend() {
    trap 'test -z "${!:-}" || { kill "$!" 2>/dev/null; wait "$!"; }; exit 0' TERM
    "$@" &
    wait "$!"
}

renew() {
    held=$(generation)
    if [ -n "$held" ]; then
        attend "$RINGSTEP_BIN" job renew "$name" --every "$RINGSTEP_RENEW_EVERY" \
            --generation "$held"
    fi
    # Nothing (more) to renew. A sidecar that ended would be started again, and again.
    attend sleep infinity
}

release() {
    held=$(generation)
    [ -n "$held" ] || exit 0
    # The pod that ends first must not take the job away from the others.
    [ "${JOB_COMPLETION_INDEX:-0}" = 0 ] || exit 0
    "$RINGSTEP_BIN" job release "$name" --generation "$held" ||
        printf 'ringstep: not released, its lease will run out\n' >&2
    exit 0
}

case ${1:-} in
    register) register ;;
    renew) renew ;;
    release) release ;;
    *)
        printf 'usage: %s register|renew|release\n' "$0" >&2
        exit 2
        ;;
esac
