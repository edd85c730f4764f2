"""A declared view becomes a streaming plan, or the same view as a batch; nothing runs."""
