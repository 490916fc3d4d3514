"""Brings a whole Ringstep system up on one machine, over the parts' public interfaces."""
