"""Measuring: engines and baselines side by side in one run, their results compared."""
