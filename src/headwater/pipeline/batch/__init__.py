"""The same view as a batch: over all records up to a result, by our operators or by plain ones of Spark."""
