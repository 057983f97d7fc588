"""Speed of the collectives, alongside Gloo and Open MPI in the same processes: `python -m hpsearch_comm.benchmark`."""
