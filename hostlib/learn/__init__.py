"""Training of the detector and the selector. Needs PyTorch: ``ringstep[train]``."""
