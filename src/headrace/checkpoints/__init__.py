"""What both engines keep of a job, so that it can go on: whose it is, what it fits, who uses it."""
