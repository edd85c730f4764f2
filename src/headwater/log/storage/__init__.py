"""One partition on disk: segments, indexes, recovery, retention and compaction."""
