"""Carry a sweep out: the loop, the run of a study around it, the plan, and the Python API."""
