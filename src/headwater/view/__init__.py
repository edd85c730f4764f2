"""View rows to people and programs: HTTP, server-sent events, pages."""
