# shellcheck shell=sh
# What prolog.sh and epilog.sh share; sourced by both.

# Slurm starts its hooks without a search path.
PATH=${PATH:-/usr/local/bin:/usr/bin:/bin}
export PATH

RINGSTEP_CONF=${RINGSTEP_CONF:-/etc/ringstep/ringstep.conf}
if [ -r "$RINGSTEP_CONF" ]; then
    set -a
    # shellcheck source=/dev/null
    . "$RINGSTEP_CONF"
    set +a
fi
: "${RINGSTEP_BIN:=ringstep}" "${RINGSTEP_SCONTROL:=scontrol}"
: "${RINGSTEP_STATE:=/run/ringstep-slurm}" "${RINGSTEP_LOG:=/var/log/ringstep-slurm.log}"
: "${RINGSTEP_LEASE:=10m}" "${RINGSTEP_RENEW_EVERY:=60s}"

job_name=slurm-${SLURM_JOB_ID:-}

log() {
    line="$(date -u +%Y-%m-%dT%H:%M:%SZ) $job_name: $*"
    # A log that cannot be written must not end the hook.
    { printf '%s\n' "$line" >>"$RINGSTEP_LOG"; } 2>/dev/null || printf '%s\n' "$line" >&2
}

# A user's job never fails for Ringstep's sake, unless the site wants that.
give_up() {
    log "$*"
    if [ "${RINGSTEP_STRICT:-0}" = 1 ]; then
        exit 1
    fi
    exit 0
}

wanted() {
    [ -z "${RINGSTEP_PARTITIONS:-}" ] && return 0
    case " $RINGSTEP_PARTITIONS " in
        *" ${SLURM_JOB_PARTITION:-} "*) return 0 ;;
    esac
    return 1
}

# Ends the renewals that the prolog started. The number may belong to another process by now, so
# its command line is looked at first.
stop_renewing() {
    pid_file=$RINGSTEP_STATE/$job_name.pid
    [ -r "$pid_file" ] || return 0
    pid=$(cat "$pid_file")
    case $pid in
        '' | *[!0-9]*) ;;
        *)
            if tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q "job renew $job_name "; then
                kill "$pid" 2>/dev/null || true
            fi
            ;;
    esac
    rm -f "$pid_file"
}
