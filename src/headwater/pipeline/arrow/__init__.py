"""Arrow columns as bytes and back, sorted, flattened or cut into blocks; no Spark plan and no state."""
