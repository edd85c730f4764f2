"""Log to derived streams, on Spark: the fastest way that fits each view."""
