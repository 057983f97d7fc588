"""Failures of a group: detection, notification of the other ranks, and the state that every wait checks."""
