"""Benchmarks: commands that end with one JSON line, never timed tests."""
