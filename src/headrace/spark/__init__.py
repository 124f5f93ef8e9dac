"""The Spark engine: our kernels in Spark's Python workers, Spark's own exchange between them."""
