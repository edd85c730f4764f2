"""Spark itself: its session, its jars and classes, and its plans read and edited from Python."""
