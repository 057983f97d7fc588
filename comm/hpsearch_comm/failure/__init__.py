"""How a group ends before its time: who sees it, how it is told, and what every wait looks at."""
