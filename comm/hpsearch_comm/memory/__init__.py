"""Memory that the ranks of one host share, and the words in it by which they wait for each other."""
