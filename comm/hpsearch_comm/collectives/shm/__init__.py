"""The algorithms of one host, through the memory that its ranks share."""
