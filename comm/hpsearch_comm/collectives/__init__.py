"""The algorithms of the collectives."""
