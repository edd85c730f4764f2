"""Workers: handlers for the messages of share groups, called until each message has succeeded."""
