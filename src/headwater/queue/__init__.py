"""State machines of queues on the log, without I/O: records shared by the members of a group."""
