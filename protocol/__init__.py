"""What every part of Ringstep must agree on: tags, RoCEv2 frames, the marker.

Standard library only, and integers only where a data plane has to agree bit for bit.
"""
