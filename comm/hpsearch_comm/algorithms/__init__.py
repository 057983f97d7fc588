"""Collectives as algorithms over links or shared memory; each file derives what it moves."""
