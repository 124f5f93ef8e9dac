"""Loops over Arrow's own buffers, compiled by Numba and run without the interpreter lock.

Every function here takes NumPy views of Arrow buffers and plain numbers, allocates nothing
that outlives it, and is cached on disk, so that a process compiles none of them twice.
"""
