"""How fast the collectives are, beside Gloo and Open MPI in the same processes: `python -m hpsearch_comm.benchmark`."""
