#!/bin/sh
# Starts the four switches of topology.toml as software switches, until ctrl-C. They have a control
# plane and no wires: enough to see what a controller does. docs/lab.md has a fabric with packets.
set -eu
pids=
trap 'kill $pids 2>/dev/null; exit 0' INT TERM
for id in 1 2 3 4; do
    ringstep softswitch run --device-id "$id" --grpc "127.0.0.1:955$id" &
    pids="$pids $!"
done
wait
