"""Speed of the collectives beside Gloo and Open MPI, all in the same processes."""
