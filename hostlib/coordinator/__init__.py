"""The coordinator: from what NCCL ran to what it does next, by node (docs/coordinator.md).

Layers, each importing only those above it:

- what decides: ``policy`` (the interface), ``fixed``, ``descent``, ``autoccl``, ``policies``
- from rings to samples: ``thinning``, ``telemetry``, ``join``, ``gpu``
- one node: ``messages``, ``agent`` (offers, acknowledgements and telemetry of its file)
- all nodes: ``inference`` (the policy's thread), ``cache``, ``group`` (a communicator and its
  tables), ``membership``, ``report``, ``skeleton`` (epochs)
- between nodes: ``links`` (the interface), ``wire``, ``channel``, ``tcp``, ``mpi``
- the process: ``loop``, ``files``, ``control``, ``service``, ``cli``
"""
