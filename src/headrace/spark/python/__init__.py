"""Spark's Python processes: how they start, what they are sent, and how their errors come back."""
