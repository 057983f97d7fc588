"""The algorithms: what is sent and reduced, where and in which order."""
