"""Run a sweep: the main loop, the run of a study, the plan, and the Python API."""
