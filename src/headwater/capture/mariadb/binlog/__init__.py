"""The binlog itself: its events, row images, transactions and positions."""
