"""The queries of views as text, SQL or Python: what is surely wrong about them, found without Spark."""
