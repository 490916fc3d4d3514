"""The native parts of the host library: sources, and :mod:`~ringstep.hostlib.native.build`."""
