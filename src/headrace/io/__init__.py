"""Where records come from and where they go, written once for both engines."""
