"""The algorithms: what is sent and reduced where, in which order."""
