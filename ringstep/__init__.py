"""Ringstep keeps ring collectives of distributed training in step."""

__version__ = "0.1.0"
