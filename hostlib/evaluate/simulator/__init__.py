"""The packet simulator as a source of sweeps: scenario files out, ``ringstep sim``, results in."""
