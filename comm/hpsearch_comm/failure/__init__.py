"""How a group ends early: who detects it, how the ranks are notified, and what every wait checks."""
