"""What one shard keeps between batches: immutable files that a result names, and a copy of them in LMDB."""
