"""The declarations of an application file, checked before anything starts; importing them loads no Spark."""
