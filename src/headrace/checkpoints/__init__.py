"""What a checkpoint holds, the same on every engine."""
