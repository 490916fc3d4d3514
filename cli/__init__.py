"""The one command `ringstep`, composed of what the parts export."""
