"""Runs policies against networks and says what they gained, with intervals and paired tests."""
