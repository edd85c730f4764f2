"""Sketches that Spark wrote, read and merged without Spark."""
