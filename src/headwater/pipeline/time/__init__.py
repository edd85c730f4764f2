"""Event time: the watermark of a batch, which rows come too late for it, and what wakes an idle view."""
