"""The operator's tools; may import every stage."""
