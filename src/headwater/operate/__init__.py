"""The caretaker's tools, over all stages."""
