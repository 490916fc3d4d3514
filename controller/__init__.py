"""The controller: hands out Job_IDs and keeps every switch of the fabric programmed."""

import os

# gRPC's core writes a line to standard error, past every log, for each handshake that fails and
# each server that says goodbye. It reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
