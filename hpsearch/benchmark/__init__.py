"""Comparison of search methods on recorded tables: suites of tasks, parallel runs, hits and regret."""
