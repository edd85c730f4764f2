"""The last operator of every view: which rows have changed, are complete or have expired."""
