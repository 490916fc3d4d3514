#!/bin/sh
# Proves the plugin inside of real NCCL on a machine with one GPU.
#
#   bench/one_gpu_nccl.sh [--ranks 2] [--seconds 20] [--json]
#
# Two or three ranks share the GPU: each has a NCCL_HOSTID of its own, so that NCCL takes it for a
# node and talks over sockets. The coordinator's side offers and commits decisions meanwhile; the
# profiler's telemetry and NCCL's own log say what ran, on every rank.
# Without a GPU, or without PyTorch for CUDA: says why and exits with 77 (skipped).
# Exit 0: every rank ran what was decided. 1: one did not. 2: wrong arguments.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
if [ -x "$root/.venv/bin/python" ]; then
    python=$root/.venv/bin/python
else
    python=$(command -v python3) || {
        echo "skipped: needs Python 3.11; run \`make test\` once" >&2
        exit 77
    }
fi

# What a shell of the user may have set would decide instead of the plugin, or keep ranks apart.
unset NCCL_ALGO NCCL_PROTO NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_TUNER_PLUGIN \
    NCCL_PROFILER_PLUGIN NCCL_NET_PLUGIN CUDA_LAUNCH_BLOCKING RINGSTEP_JOB RINGSTEP_SHM_DIR \
    RINGSTEP_SHM_TOKEN RINGSTEP_STATIC_DIGEST RINGSTEP_MAX_CHANNELS RINGSTEP_PROFILE \
    RINGSTEP_NO_GRAPHS

exec "$python" "$root/bench/one_gpu_nccl.py" "$@"
