"""Collectives between processes. Imports nothing of the search or of the trainers."""
