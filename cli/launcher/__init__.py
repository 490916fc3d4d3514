"""What ``ringstep run`` is made of: a training command with the fabric and the tuner around it."""
