"""Number of workers per segment (width): pure functions of free workers, waiting trials and measured times."""
