"""Search methods judged over recorded tables: a suite of tasks, runs side by side, hits and regret."""
