"""Looking after queues: their state, their messages, and what became dead letters."""
