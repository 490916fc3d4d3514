"""Traces of collectives: files, contention schedules with labels, a fluid model to make them.

A trace says, call by call, what ran, how long it took, and what the network was doing meanwhile.
"""
