"""What a view's state depends on, from the structure of its plan.

Two versions of a view are compared by it.
"""
