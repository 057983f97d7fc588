"""Collectives within one host, through shared memory."""
