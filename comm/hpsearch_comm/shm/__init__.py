"""Shared memory of the ranks on one host, and synchronization in it."""
