"""SQL over tables: Spark's analyzed plan rewritten into the operators."""
