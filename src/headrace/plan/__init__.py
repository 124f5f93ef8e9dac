"""The plan of a pipeline: its steps, its stages, and how it is shown."""
