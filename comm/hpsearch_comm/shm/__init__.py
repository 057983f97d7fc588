"""Memory that the ranks of one host share, and how they wait for each other in it."""
