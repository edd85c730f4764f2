"""The text of an error that Spark reports when a function in Python raises."""

__all__ = ["PRINTED"]

PRINTED = """Job aborted: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/home/ann/.venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 2044, in main
    process()
  File "/home/ann/shop/app.py", line 31, in clean
    return int(strip(text))
               ^^^^^^^^^^^
  File "/home/ann/shop/texts.py", line 4, in strip
    raise ValueError(f"no number: {text}")
ValueError: no number: x
"""
